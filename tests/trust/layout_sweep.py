"""PyTorch's modules and operators over tensors in all layouts: results, strides, gradients.

A random sample of a random entry of PyTorch's databases gets its tensors laid out anew: channels
last, permuted, with gaps, expanded, or cut to one image or one channel, whose strides then are
those of the whole. It runs in training or evaluation, with or without one symbolic size, and is
compared with eager as tests/training/sweep.py does: values, types and strides of results and
gradients.

Used by test_layouts.py; run as a program it prints what differs:
    python tests/trust/layout_sweep.py modules|operators [--count 1000] [--seed 0] [--only PATTERN]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import fnmatch
import itertools
import pathlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot

TESTS = pathlib.Path(__file__).parents[1]
sys.path += [str(TESTS / "training"), str(TESTS / "trace")]
import opinfo  # noqa: E402
import sweep  # noqa: E402

LAYOUTS = ("as it is", "channels last", "permuted", "gaps", "expanded", "one image", "one channel")
DTYPES = {
    "modules": (torch.float32, torch.float64, torch.bfloat16),
    "operators": (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8),
        *(torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2),
    ),
}


def laid_out(draw: random.Random, x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements (or some of them) in another layout, a leaf if `x` is one."""
    plain = x.layout == torch.strided and not x.is_conj() and not x.is_neg() and x.dim() > 0
    if not plain or x.is_quantized:
        return x
    y = x.detach()
    if layout == "channels last" and y.dim() in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        y = y.contiguous(memory_format=formats[y.dim()])
    elif layout == "permuted":
        order = draw.sample(range(y.dim()), y.dim())
        back = [order.index(d) for d in range(y.dim())]
        y = y.permute(order).contiguous().permute(back)
    elif layout == "gaps":
        d = draw.randrange(y.dim())
        whole = y.repeat_interleave(2, d)
        y = whole[tuple(slice(None, None, 2) if k == d else slice(None) for k in range(y.dim()))]
    elif layout == "expanded" and y.numel():
        d = draw.randrange(y.dim())
        y = y.narrow(d, 0, 1).clone().expand(y.shape)
    elif layout == "one image" and y.dim() > 2 and y.numel():
        y = laid_out(draw, y, draw.choice(LAYOUTS[:3]))[:1]
    elif layout == "one channel" and y.dim() > 2 and y.numel():
        y = laid_out(draw, y, draw.choice(LAYOUTS[:3]))[:, :1]
    return y.requires_grad_(x.requires_grad) if x.requires_grad else y


def relaid(draw: random.Random, case: sweep.Case) -> sweep.Case:
    layout = draw.choice(LAYOUTS)
    both = draw.random() < 0.5  # all tensors, or the first alone
    seen = 0

    def one(value: Any) -> Any:
        nonlocal seen
        if not isinstance(value, torch.Tensor):
            return value
        seen += 1
        return laid_out(draw, value, layout) if both or seen == 1 else value

    args, kwargs = pytree.tree_map(one, (case.args, case.kwargs))
    return dataclasses.replace(case, args=args, kwargs=kwargs, label=f"{case.label} {layout}")


def with_symbol(draw: random.Random, case: sweep.Case) -> sweep.Case:
    """One size of one tensor is symbolic."""
    sizes = [
        (k, d)
        for k, x in enumerate(sweep.tensors_of((case.args, case.kwargs)))
        for d in range(x.dim())
        if x.layout == torch.strided and x.shape[d] > 1
    ]
    if not sizes:
        return case
    return dataclasses.replace(case, symbol=draw.choice(sizes), label=f"{case.label} symbolic")


def module_case(draw: random.Random, info: Any) -> tuple[str, sweep.Case] | None:
    dtype, training = draw.choice(DTYPES["modules"]), draw.random() < 0.5
    try:
        cases = list(itertools.islice(sweep.module_cases(info, dtype, training), 40))
    except Exception:  # a type that the module does not have
        return None
    if not cases:
        return None
    case = draw.choice(cases)
    if draw.random() < 0.2 and isinstance(case.function, torch.nn.Module):
        # Parameters of other ranks refuse it, and those that are not made yet.
        with contextlib.suppress(RuntimeError, ValueError):
            formats = (torch.channels_last, torch.channels_last_3d)
            case.function.to(memory_format=draw.choice(formats))
    mode = "train" if training else "eval"
    return f"{info.name} {str(dtype)[6:]} {mode}", case


def operator_case(draw: random.Random, op: Any) -> tuple[str, sweep.Case] | None:
    dtype = draw.choice(DTYPES["operators"])
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    gradients = gradients and draw.random() < 0.7
    torch.manual_seed(0)
    try:
        made = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 60))
    except Exception:  # no sample of this type
        return None
    if not made:
        return None
    k = draw.randrange(len(made))
    sample, function = made[k], op.op
    case = sweep.Case(
        lambda *a, **kw: function(*a, **kw),
        (sample.input, *sample.args),
        sample.kwargs,
        f"{k}",
        gradients=gradients,
    )
    return f"{opinfo.full_name(op)} {str(dtype)[6:]}", case


def cases(draw: random.Random, what: str, pattern: str) -> Iterator[tuple[str, sweep.Case]]:
    if what == "modules":
        entries = list(sweep.modules(pattern))
    else:
        entries = [op for op in opinfo.operators(pattern) if not random_or_odd(op)]
    make = module_case if what == "modules" else operator_case
    while True:
        named = make(draw, draw.choice(entries))
        if named is None:
            continue
        name, case = named
        case = relaid(draw, case)
        yield name, with_symbol(draw, case) if draw.random() < 0.3 else case


# Whose values are random, memory as it was found, or not the same in two runs of eager's.
ODD = (
    *("empty*", "new_empty*", "rand*", "normal*", "bernoulli*", "multinomial*", "*dropout*"),
    *("*uniform*", "cauchy", "exponential", "geometric", "log_normal", "*rrelu", "svd_lowrank"),
    *("pca_lowrank", "linalg.*", "nn.functional.scaled_dot_product_attention", "jiterator*"),
    *("eig*", "svd", "qr", "geqrf", "ormqr", "lobpcg", "symeig", "lu*", "nonzero_static"),
    *("*fractional_max_pool*", "*_flash_attention*", "*efficient_attention*", "*poisson*"),
    *("*linear_cross_entropy*", "*alpha_dropout*", "*resize*", "*sparse*"),
)  # fmt: skip


def random_or_odd(op: Any) -> bool:
    return any(fnmatch.fnmatch(opinfo.full_name(op), p) for p in ODD)


def judge(what: str, count: int, seed: int, pattern: str = "*") -> tuple[list[str], Counter]:
    draw, counts, found = random.Random(seed), Counter(), []
    for name, case in itertools.islice(cases(draw, what, pattern), count):
        reasons: Counter[str] = Counter()
        random_values = "Dropout" in name or "RReLU" in name
        for line in sweep.judge(iter([case]), counts, reasons, random_values):
            if not known(name, line):
                found.append(f"{name}: {line}")
    return found, counts


# Error messages, which are another test's, and gradients of zero but for roundings.
KNOWN = ("*message*", "*CosineEmbeddingLoss float64*from eager")


def known(name: str, line: str) -> bool:
    dtype = name.split()[1] if " " in name else ""
    return any(fnmatch.fnmatch(f"{name}: {line}", p) for p in KNOWN) or opinfo.differs(
        name.split()[0], dtype
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["modules", "operators"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    ingot.reset()
    found, counts = judge(options.what, options.count, options.seed, options.only)
    for line in sorted(found):
        print(line[:300])
    print(dict(counts), len(found), "differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
