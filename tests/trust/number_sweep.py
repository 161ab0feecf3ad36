"""Numbers and tensors without dims beside tensors of every type: random calls, beside eager.

Every operator of ATen whose arguments are tensors and numbers is called with tensors of all types,
with Python numbers and 0-dim tensors on either side, and as its in-place form. The data lie where a
number that is rounded once more, or once less, than eager rounds it shows: at the number itself, at
what it is in 16 bits, at their neighbours and multiples. Results of 16 bits may differ by two units
in the last place, truth values and integers not at all. (The sign of zero is left out: eager's own
differs between the vectors of a row and what is left over.)

Used by test_numbers.py; run as a program it prints what differs:
    python tests/trust/number_sweep.py [--count 10000] [--seed 0] [--only PATTERN]
"""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import pathlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "trace"))
from opinfo import compile_call

NUMBERS = (
    *(0.1, 3.14, -0.3, 1 / 3, 0.7, 1.0009765, 1e-3, 2.5, 257.0, 2049.5, 33333.3, -1e-6, 1e5),
    *(0, 1, 2, 3, -1, 7, 257, 2049, -300, 70001, True, False),
)  # fmt: skip
SPECIAL = (float("inf"), float("-inf"), float("nan"), -0.0, 1e300, 0.1 + 0.2j)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SMALL = (
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128),
)
RARE = (
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    torch.complex32,
)
SHAPES = ((37,), (40,), (5, 8), (1,), (), (1, 8), (0,))
# Results that are random, memory as it was found, or that a number decides the size of.
LEFT_OUT = (
    *("aten::*rand*", "aten::*dropout*", "aten::bernoulli*", "aten::normal*", "aten::*nomial*"),
    *("aten::empty*", "aten::new_empty*", "aten::poisson", "aten::cauchy*"),
    *("aten::rrelu*", "aten::*_like", "aten::exponential*", "aten::geometric*"),
    *("aten::log_normal*", "aten::bincount", "aten::smm", "aten::cholesky*"),
    *("aten::uniform*", "aten::random*", "aten::_*", "aten::tensor_split*", "aten::*gumbel*"),
    *("aten::equal", "aten::allclose", "aten::is_*", "aten::histc", "aten::arange*"),
    *("aten::linspace*", "aten::logspace*", "aten::range*", "aten::scalar_tensor", "aten::item"),
    *("aten::repeat_interleave*", "aten::set*", "aten::resize*", "aten::isclose", "aten::nonzero*"),
    # Kernels that trust what they are given, and those of other layouts and devices.
    *("aten::*sparse*", "aten::*mkldnn*", "aten::fbgemm*", "aten::*padded*", "aten::cudnn*"),
    *("aten::batch_norm_*", "aten::lu_*", "aten::adaptive_max*", "aten::linalg_*", "aten::or?qr"),
    *("aten::fake_*", "aten::hspmm", "aten::s*pmm", "aten::*_lowest"),
    *("aten::embedding*", "aten::histogram*", "aten::orm*", "aten::triangular_solve"),
    # Badly conditioned, or infinite and NaN on the way: the database of operators has them.
    *("aten::*polynomial*", "aten::*gamma*", "aten::*zeta*", "aten::*_margin_*", "aten::logit*"),
    *("aten::hardtanh_backward", "aten::gelu_backward", "aten::ldexp*", "aten::gcd*"),
    *("aten::mish_backward", "aten::pairwise_distance", "aten::prelu"),
    *("aten::special_logit", "aten::binary_cross_entropy_backward"),
    *("aten::*quantile", "aten::pinverse", "aten::masked_select_backward", "aten::slice_inverse"),
)  # fmt: skip


@dataclass
class Operator:
    call: Any
    name: str  # with namespace and overload
    kinds: list[str]  # of its arguments: tensor, number, real
    required: int
    in_place: bool


def operators(pattern: str = "*") -> list[Operator]:
    """Those whose required arguments are tensors and numbers, with one number or two tensors."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        base = schema.name
        if not base.startswith("aten::") or any(fnmatch.fnmatch(base, p) for p in LEFT_OUT):
            continue
        if not fnmatch.fnmatch(base[6:], pattern) or "out" in schema.overload_name:
            continue
        kinds, required, fits = [], 0, True
        for a in schema.arguments:
            kind = {"Tensor": "tensor", "number": "number", "float": "real"}.get(
                str(a.type.getElementType() if "Optional" in str(a.type) else a.type)
            )
            if a.is_out or (a.kwarg_only and not a.has_default_value()):
                fits = False
            if a.has_default_value():
                if kind not in ("number", "real") or (
                    a.kwarg_only and a.name not in ("alpha", "value")
                ):
                    break
            elif kind is None:
                fits = False
            kinds.append(kind or "other")
            required += not a.has_default_value()
        tensors, numbers = kinds.count("tensor"), len(kinds) - kinds.count("tensor")
        if not fits or not 1 <= tensors <= 3 or (tensors == 1 and not numbers):
            continue
        if not any(str(r.type) == "Tensor" for r in schema.returns):
            continue
        try:
            packet = getattr(torch.ops.aten, base[6:])
            call = getattr(packet, schema.overload_name or "default")
        except AttributeError:
            continue
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        found.append(Operator(call, f"{base[6:]}.{schema.overload_name}", kinds, required, writes))
    return sorted(found, key=lambda o: o.name)


@dataclass
class Case:
    operator: Operator
    args: list
    kwargs: dict = field(default_factory=dict)

    def run(self, *args: Any) -> Any:
        return self.operator.call(*args, **self.kwargs)

    def __str__(self) -> str:
        def text(v: Any) -> str:
            if not isinstance(v, torch.Tensor):
                return repr(v)
            inner = v.item() if v.numel() == 1 else list(v.shape)
            return f"{str(v.dtype)[6:]}{tuple(v.shape) if v.numel() == 1 else ''}{inner}"

        args = [text(a) for a in self.args] + [f"{k}={text(v)}" for k, v in self.kwargs.items()]
        return f"{self.operator.name}({', '.join(args)})"


def data(draw: random.Random, dtype: torch.dtype, shape: tuple, near: list[float]) -> torch.Tensor:
    """Elements at the numbers `near`, at their roundings, neighbours and multiples, and others."""
    n = 1
    for s in shape:
        n *= s
    values = []
    for _ in range(n):
        c = draw.choice(near) if near and draw.random() < 0.7 else draw.gauss(0, 2)
        how = draw.random()
        if how < 0.3:
            c = c * draw.choice((2, 3, 5, -1, 0.5, 10))
        elif how < 0.5:
            c = c * (1 + draw.choice((-1, 1)) * draw.choice((2**-8, 2**-11, 2**-9, 2**-24)))
        elif how < 0.55 and not dtype.is_complex:
            c = draw.choice((0.0, -0.0, float("inf"), float("-inf"), float("nan")))
        values.append(c)
    wide = torch.tensor(values, dtype=torch.float64)
    if dtype.is_complex:
        wide = torch.complex(wide, wide.flip(0) if n else wide)
        return wide.to(torch.complex64).to(dtype).reshape(shape)
    if not dtype.is_floating_point:
        wide = wide.nan_to_num(0, 5, -5)
        if dtype in (torch.uint8, torch.int8):
            wide = wide.clamp(0 if dtype == torch.uint8 else -128, 127)
        elif dtype in (torch.uint16, torch.uint32, torch.uint64):
            wide = wide.abs().clamp(0, 65535)
        elif dtype == torch.int16:
            wide = wide.clamp(-32768, 32767)
        return wide.round().to(torch.int64).to(dtype).reshape(shape)
    return wide.to(dtype).reshape(shape)


def cases(draw: random.Random, chosen: list[Operator]) -> Iterator[Case]:
    """Without end."""
    while True:
        operator = draw.choice(chosen)
        dtypes = draw.choices((FLOATS[1:3], FLOATS, SMALL, RARE), (6, 4, 3, 1))[0]
        main = draw.choice(dtypes)
        shape = draw.choices(SHAPES, (6, 6, 4, 3, 3, 2, 1))[0]
        pool = NUMBERS + SPECIAL if draw.random() < 0.15 else NUMBERS
        near = [float(c) for c in draw.choices(NUMBERS, k=2)]
        args: list = [None] * len(operator.kinds)
        first = operator.kinds.index("tensor") if draw.random() < 0.7 or operator.in_place else -1
        tensors = [k for k, kind in enumerate(operator.kinds) if kind == "tensor"]
        if first < 0:
            first = draw.choice(tensors)
        numbers = []
        for k, kind in enumerate(operator.kinds):
            if kind in ("number", "real"):
                if k >= operator.required and draw.random() < 0.5:
                    args = args[:k]
                    break
                c = draw.choice(pool) if draw.random() < 0.5 else draw.choice(near)
                if operator.call._schema.arguments[k].kwarg_only:  # alpha: what is left over of a
                    c = draw.choice((2, 0.5, -4, True))  # row is rounded on the way
                if kind == "real" and isinstance(c, complex):
                    c = c.real
                args[k] = c
                numbers.append(c)
            elif kind == "tensor" and k != first:
                how = draw.random()
                if how < 0.45:
                    args[k] = draw.choice(pool)
                    numbers.append(args[k])
                elif how < 0.65:
                    c = draw.choice(NUMBERS)
                    other = draw.choice((*FLOATS, torch.int64, torch.int32, torch.bool))
                    args[k] = torch.tensor(c).to(other)
                    numbers.append(float(c))
        some_complex = main.is_complex or any(type(c) is complex for c in numbers)
        if some_complex and any(n in operator.name for n in ("pow", "div")):
            continue  # large angles, and divisors of zero, where eager's processors differ
        near += [float(c) for c in numbers if not isinstance(c, complex) and abs(c) < 1e6]
        for k in range(len(args)):
            if operator.kinds[k] == "tensor" and args[k] is None:
                rare = main in RARE
                others = FLOATS + SMALL[:-2]  # a complex one may be a divisor
                dtype = main if rare or draw.random() < 0.8 else draw.choice(others)
                if k == first:
                    dtype = main
                size = shape if draw.random() < 0.85 else draw.choice(((1,), ()))
                args[k] = data(draw, dtype, shape if k == first else size, near)
        names = [a.name for a in operator.call._schema.arguments]
        kwargs = {}
        positional = []
        for a, value in zip(operator.call._schema.arguments, args, strict=False):
            if a.kwarg_only:
                kwargs[a.name] = value
            else:
                positional.append(value)
        assert len(names) >= len(args)
        yield Case(operator, positional, kwargs)


def _flat(out: Any) -> list:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """16-bit floats as integers in their order, so that neighbours differ by one."""
    bits = x.contiguous().view(torch.int16).long()
    return torch.where(bits < 0, -32768 - bits, bits)


def different(ours: Any, eager: Any, size: float = 0) -> str:
    """What differs, or nothing; wide floats beside operands of this size may have cancelled."""
    if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return "" if type(ours) is type(eager) else f"{type(ours)} instead of {type(eager)}"
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype}{tuple(ours.shape)} instead of {eager.dtype}{tuple(eager.shape)}"
    if ours.stride() != eager.stride():
        return f"strides {ours.stride()} instead of {eager.stride()}"
    if eager.numel() == 0:
        return ""
    if not (eager.is_floating_point() or eager.is_complex()) or eager.itemsize == 1:
        if eager.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            same = ours.view(torch.uint8) == eager.view(torch.uint8)
        else:
            same = ours == eager
        wrong = ~same
    else:
        if eager.is_complex():
            if eager.dtype == torch.complex32:
                ours, eager = ours.to(torch.complex64), eager.to(torch.complex64)
            ours, eager = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(eager)
            scale = torch.nan_to_num(eager.abs(), 0, 0, 0).amax(-1, keepdim=True)
            room = 64 * torch.finfo(eager.dtype).eps * scale.double() + 1e-30
            near = (ours.double() - eager.double()).abs() <= room
        elif eager.itemsize == 2:
            near = (_ordered(ours) - _ordered(eager)).abs() <= 2
        else:
            room = 64 * torch.finfo(eager.dtype).eps * (eager.double().abs() + size) + 1e-30
            near = (ours.double() - eager.double()).abs() <= room
        wrong = ~(near | (ours == eager) | (ours.isnan() & eager.isnan()))
    if not wrong.any():
        return ""
    k = tuple(wrong.nonzero()[0].tolist())
    count = f" ({int(wrong.sum())} of {wrong.numel()})"
    return f"{ours[k].item()!r} instead of {eager[k].item()!r} at {k}{count}"


def size_of(case: Case) -> float:
    finite = [
        t.abs()[t.isfinite()].max().item()
        for t in case.args
        if isinstance(t, torch.Tensor)
        and t.is_floating_point()
        and t.itemsize > 1
        and t.isfinite().any()
    ]
    return max(finite, default=0.0)


def run_eager(case: Case) -> tuple[list | None, Exception | None]:
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in case.args]
    try:
        results = _flat(case.run(*args))
    except Exception as error:
        return None, error
    return [*results, *(a for a in args if isinstance(a, torch.Tensor))], None


def judge_together(batch: list[Case]) -> list[tuple[Case, str]]:
    """Cases that eager carries out, as one program."""
    sizes: list[int] = []

    def all_of(*args: Any) -> list:
        sizes.clear()
        out, k = [], 0
        for case in batch:
            results = _flat(case.run(*args[k : k + len(case.args)]))
            k += len(case.args)
            sizes.append(len(results))
            out += results
        return out

    inputs = [a.clone() if isinstance(a, torch.Tensor) else a for case in batch for a in case.args]
    program, _ = compile_call(all_of, tuple(inputs), {})
    tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
    results = program(*tensors)
    found, k, t = [], 0, 0
    for case, n in zip(batch, sizes, strict=True):
        own = sum(isinstance(a, torch.Tensor) for a in case.args)
        ours = [*results[k : k + n], *tensors[t : t + own]]
        k, t = k + n, t + own
        want, _ = run_eager(case)
        for a, b in zip(ours, want, strict=True):
            if what := different(a, b, size_of(case)):
                found.append((case, what))
                break
    return found


def judge_alone(case: Case) -> str:
    want, failure = run_eager(case)
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in case.args]
    try:
        program, _ = compile_call(case.run, tuple(args), {})
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        ours = [*program(*tensors), *tensors]
    except Exception as error:
        if failure is not None or type(error).__name__ == "Unsupported":
            return ""
        return f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if failure is not None:
        return f"no error; eager: {type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    for a, b in zip(ours, want, strict=True):
        if what := different(a, b, size_of(case)):
            return what
    return ""


def judge(count: int, seed: int, pattern: str = "*", together: int = 40) -> tuple[list, Counter]:
    """The differences of `count` cases, and how many there were of each outcome."""
    draw = random.Random(seed)
    chosen = operators(pattern)
    counts: Counter[str] = Counter()
    found: list[tuple[Case, str]] = []
    batch: list[Case] = []
    refused: Counter[str] = Counter()

    def flush() -> None:
        if not batch:
            return
        try:
            wrong = judge_together(batch)
        except Exception:  # one of them cannot be recorded
            wrong = [(case, what) for case in batch if (what := judge_alone(case))]
        counts["run"] += len(batch)
        found.extend(wrong)
        batch.clear()

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases(draw, chosen):
            if counts["run"] + counts["raises"] + len(batch) >= count:
                break
            _, failure = run_eager(case)
            if failure is None:
                batch.append(case)
                if len(batch) == together:
                    flush()
            elif refused[case.operator.name] < 4 + counts["run"] // 400:  # few of what never works
                refused[case.operator.name] += 1
                counts["raises"] += 1
                if what := judge_alone(case):
                    found.append((case, what))
        flush()
    return found, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    faulthandler.enable()
    found, counts = judge(options.count, options.seed, options.only)
    by_name: dict[str, list[str]] = {}
    for case, what in found:
        by_name.setdefault(case.operator.name, []).append(f"{case}: {what}")
    for name, lines in sorted(by_name.items()):
        print(f"{name}: {len(lines)}")
        for line in lines[:4]:
            print(f"    {line}"[:260])
    print(dict(counts), len(found), "differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
