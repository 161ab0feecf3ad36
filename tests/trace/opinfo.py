"""PyTorch's own operator database run through Ingot: what each sample gives, compared with eager.

Used by test_opinfo.py; run as a program it prints the table for all operators:
    python tests/trace/opinfo.py [--ops PATTERN] [--dtype float32] [--samples 3] [--bless]
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import math
import pathlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Recording fails with an error that is not Ingot's own: the program falls back all the same.
FALLS_BACK = {
    "tensor_split": "PyTorch reads the data of the indices' tensor directly",
    "nn.functional.linear_cross_entropy.chunked": "an operator registered in Python",
    "nn.functional.linear_cross_entropy.chunked_none": "an operator registered in Python",
}
SUPPORTED = pathlib.Path(__file__).with_name("opinfo_supported.txt")


@dataclass
class Outcome:
    """`kind`: ok, unsupported (a counted fallback), wrong, or crash (eager does not raise)."""

    kind: str
    detail: str = ""


def operators(pattern: str = "*") -> Iterator[Any]:
    """The database's entries by `name` or `name.variant`."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if fnmatch.fnmatch(full_name(op), pattern):
            yield op


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: Any, dtype: torch.dtype, limit: int) -> list[Any]:
    """At most `limit` samples, spread over all the database makes; the same ones every time."""
    torch.manual_seed(0)
    made = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 60))
    if len(made) <= limit:
        return made
    if limit == 1:
        return made[:1]
    return [made[k * (len(made) - 1) // (limit - 1)] for k in range(limit)]


def compile_call(fn: Callable, args: tuple, kwargs: dict) -> tuple[Callable, Any]:
    """Record fn(*args, **kwargs) and compile it: a callable over flat tensors, and the output."""
    from ingot import _ingot, _options

    flat, spec = pytree.tree_flatten((args, kwargs))
    recorder = _ingot.Recorder(_options.resolve())
    promised = [
        recorder.input(value, False, f"x{k}") if isinstance(value, torch.Tensor) else value
        for k, value in enumerate(flat)
    ]
    with recorder:
        a, k = pytree.tree_unflatten(promised, spec)
        out = fn(*a, **k)
    leaves, _ = pytree.tree_flatten(out)
    program = recorder.compile([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return program, out


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _copy(tree: Any) -> Any:
    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone(memory_format=torch.preserve_format)

    return pytree.tree_map(one, tree)


def _double(tree: Any) -> Any:
    wide = dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)
    wide[torch.complex64] = torch.complex128

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in wide:
            return value.detach().to(wide[value.dtype])
        return value

    return pytree.tree_map(one, tree)


def _error(x: torch.Tensor, reference: torch.Tensor) -> float:
    wide = torch.complex128 if reference.is_complex() else torch.float64
    difference = (x.to(wide) - reference.to(wide)).abs()
    finite = difference[torch.isfinite(difference)]
    return finite.max().item() if finite.numel() else 0.0


def compare(ours: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None) -> str:
    """What is different, or nothing. Floats may be twice as far from the fp64 run as eager is."""
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype}{tuple(ours.shape)} instead of {eager.dtype}{tuple(eager.shape)}"
    if eager.numel() > 1 and ours.stride() != eager.stride():
        return f"strides {ours.stride()} instead of {eager.stride()}"
    if not (eager.is_floating_point() or eager.is_complex()):
        return "" if torch.equal(ours, eager) else "other values"
    nan = torch.isnan(eager)
    if not torch.equal(torch.isnan(ours), nan):
        return "NaN elsewhere"
    infinite = torch.isinf(eager)
    if not torch.equal(torch.isinf(ours), infinite):
        return "infinity elsewhere"
    finite = ~(nan | infinite)
    if not finite.any():
        return ""
    a, b = ours[finite], eager[finite]
    unit = torch.finfo(eager.dtype).eps
    scale = b.abs().max().item()
    if reference is None or reference.shape != eager.shape:
        distance = _error(a, b)
        return "" if distance <= 32 * unit * max(scale, 1e-30) else f"{distance:.3g} from eager"
    r = reference[finite]
    theirs, mine = _error(b, r), _error(a, r)
    if mine <= 2 * theirs + 2 * unit * scale:
        return ""
    return f"error {mine:.3g}, eager's {theirs:.3g}"


def check_sample(op: Any, sample: Any) -> Outcome:
    """One sample, compiled and run twice (the second time with fresh inputs of the same shapes)."""
    fn = op.op
    args = (sample.input, *sample.args)
    try:
        eager = fn(*_copy(args), **_copy(sample.kwargs))
    except Exception as error:
        return Outcome("ok", f"eager raises {type(error).__name__}")
    try:
        program, _ = compile_call(fn, _copy(args), _copy(sample.kwargs))
    except Exception as error:
        known = type(error).__name__ == "Unsupported" or full_name(op) in FALLS_BACK
        kind = "unsupported" if known else "crash"
        return Outcome(kind, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = _tensors(fn(*_double(_copy(args)), **_double(_copy(sample.kwargs))))
    except Exception:
        reference = []
    inputs = _tensors((_copy(args), _copy(sample.kwargs)))
    torch.manual_seed(42)  # what the database's random entries seed with before they draw
    try:
        ours = program(*inputs)
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {error}")
    theirs = _tensors(eager)
    if len(ours) != len(theirs):
        return Outcome("wrong", f"{len(ours)} outputs instead of {len(theirs)}")
    if len(reference) != len(theirs):
        reference = [None] * len(theirs)
    for a, b, r in zip(ours, theirs, reference, strict=True):
        if difference := compare(a, b, r):
            return Outcome("wrong", difference)
    return Outcome("ok")


def check(op: Any, dtype: torch.dtype, limit: int) -> Outcome:
    """The worst outcome over the operator's samples."""
    if dtype not in op.supported_dtypes("cpu"):
        return Outcome("ok", "no samples")
    order = {"ok": 0, "unsupported": 1, "crash": 2, "wrong": 3}
    worst = Outcome("ok")
    for sample in samples(op, dtype, limit):
        with torch.no_grad():
            outcome = check_sample(op, sample)
        if order[outcome.kind] > order[worst.kind]:
            worst = outcome
    return worst


def is_random(op: Any) -> bool:
    """Whether two eager runs differ: uninitialised memory or random numbers."""
    known = torch.float32 in op.supported_dtypes("cpu")
    for sample in samples(op, torch.float32, 1) if known else []:
        try:
            runs = [
                _tensors(op.op(*_copy((sample.input, *sample.args)), **_copy(sample.kwargs)))
                for _ in range(2)
            ]
        except Exception:
            return False
        for a, b in zip(*runs, strict=True):
            if a.dtype.is_floating_point and math.isnan(float(a.sum())):
                continue
            try:
                if not torch.equal(a, b):
                    return True
            except NotImplementedError:  # a type without comparison cannot be checked either
                return True
    return op.name.startswith(("empty", "new_empty"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="*")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--bless", action="store_true", help="rewrite the list of operators")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    supported = []
    for op in operators(options.ops):
        name = full_name(op)
        if is_random(op):
            counts["random"] += 1
            continue
        outcome = check(op, getattr(torch, options.dtype), options.samples)
        counts[outcome.kind] += 1
        if outcome.kind == "ok":
            supported.append(name)
        else:
            print(f"{outcome.kind:12s} {name:50s} {outcome.detail}"[:180], flush=True)
    print(dict(counts))
    if options.bless and options.ops == "*" and options.dtype == "float32":
        SUPPORTED.write_text("\n".join(sorted(supported)) + "\n")
    return 1 if counts["wrong"] or counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
