"""PyTorch's databases of modules and operators through `ingot.compile`, each case beside eager.

A case is called, its differentiable results go backward with fixed cotangents, and what a user can
see is compared: results, gradients (also which are None), buffers and inputs afterwards, types,
strides, exceptions. Floats may be twice as far from a float64 run as eager's are. What falls back
has to give the same; the reasons are counted.

Used by test_modules.py and test_swept.py; run as a program it prints what differs:
    python tests/training/sweep.py operators [--only PATTERN] [--dtypes float32] [--samples 6]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import faulthandler
import fnmatch
import itertools
import pathlib
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "trace"))
from judge import strides
from opinfo import compare, full_name

WIDE = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64}
WIDE[torch.complex64] = torch.complex128


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _copied(tree: Any, wide: bool = False) -> Any:
    """Leaves of their own with the same strides; modules are copied whole."""
    seen: dict[int, Any] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in seen:
            made = value.detach()
            dtype = WIDE.get(made.dtype, made.dtype) if wide else made.dtype
            same = made.layout == torch.strided and not made.is_conj() and not made.is_neg()
            spread = (
                same
                and made.numel()
                and not made.is_contiguous()
                and min(made.stride(), default=1) > 0
            )
            if same and made.numel() and 0 in made.stride():
                once = made
                for d in range(made.dim()):
                    once = once.narrow(d, 0, 1) if made.stride(d) == 0 else once
                new = once.clone().to(dtype).expand(made.shape)
            elif not same:
                new = made.clone()
                new = new.to(dtype) if made.dtype != dtype else new
            elif spread:
                new = torch.empty_strided(
                    made.shape, made.stride(), dtype=dtype, device=made.device
                ).copy_(made)
            else:
                new = made.clone().to(dtype)
            seen[id(value)] = new.requires_grad_(value.requires_grad)
        return seen[id(value)]

    return pytree.tree_map(one, tree)


@dataclass
class Case:
    """A call of `function`, or of the module that it is."""

    function: Callable
    args: tuple
    kwargs: dict
    label: str = ""
    gradients: bool = True
    symbol: tuple[int, int] | None = None  # which tensor's which size is symbolic, compiled


@dataclass
class Seen:
    """What one run shows. `groups` are named lists of tensors and Nones."""

    error: BaseException | None = None
    groups: dict[str, list] = field(default_factory=dict)
    drew: bool = False


def generator_state(on_gpu: bool) -> torch.Tensor:
    """Bytes of the generators that a case may draw from."""
    states = [torch.get_rng_state()]
    if on_gpu:
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def see(case: Case, compiled: bool = False, wide: bool = False) -> Seen:
    """One run on copies of everything."""
    args, kwargs = _copied((case.args, case.kwargs), wide)
    function, owned = case.function, []
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function)
        if wide:
            function = function.double()
        owned = list(function.parameters())
        buffers = list(function.buffers())
    else:
        buffers = []
    leaves = [t for t in tensors_of((args, kwargs)) if t.requires_grad]
    leaves = list({id(t): t for t in [*leaves, *owned]}.values())
    inputs = tensors_of((args, kwargs))
    call = ingot.compile(function) if compiled else function
    if compiled and case.symbol is not None:
        ingot.maybe_mark_dynamic(inputs[case.symbol[0]], case.symbol[1])
    seen = Seen()
    torch.manual_seed(42)
    on_gpu = any(t.is_cuda for t in [*inputs, *owned])
    state = generator_state(on_gpu)
    try:
        with torch.set_grad_enabled(case.gradients), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = tensors_of(call(*args, **kwargs))
            seen.groups["requires"] = [torch.tensor(t.requires_grad) for t in outputs]
            seen.groups["result"] = [t.detach() for t in outputs]
            roots = [t for t in outputs if t.requires_grad and t.grad_fn is not None]
            if case.gradients and roots and leaves:
                generator = torch.Generator().manual_seed(5)
                tangents = [
                    torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t)
                    for t in roots
                ]
                torch.autograd.backward(roots, tangents)
                seen.groups["gradient"] = [t.grad for t in leaves]
    except Exception as error:
        seen.error = error
    seen.drew = not torch.equal(state, generator_state(on_gpu))
    seen.groups["buffer"] = buffers
    seen.groups["input"] = [t.detach() for t in inputs]
    seen.groups["generator"] = [generator_state(on_gpu)] if not wide else [None]
    return seen


def difference(case: Case, random_values: bool = False) -> str:
    """What a compiled run shows otherwise than eager's, or nothing."""
    eager = see(case)
    ours = see(case, compiled=True)
    if eager.error is not None or ours.error is not None:
        if eager.error is None:
            return f"raises {type(ours.error).__name__}: {_line(ours.error)}"
        if ours.error is None:
            return f"no error; eager: {type(eager.error).__name__}: {_line(eager.error)}"
        if type(ours.error) is not type(eager.error):
            return f"{ours.error!r} instead of {eager.error!r}"[:300]
        if _line(ours.error) != _line(eager.error):
            return f"message {_line(ours.error)!r} instead of {_line(eager.error)!r}"
        return ""
    exact = Seen()
    if not eager.drew:
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            exact = see(case, wide=True)
        finally:
            torch.set_default_dtype(default)
    if ours.groups.keys() != eager.groups.keys():
        return f"shows {sorted(ours.groups)} instead of {sorted(eager.groups)}"
    operands = [t for t in eager.groups["input"] if t.layout == torch.strided]
    for name, want in eager.groups.items():
        got = ours.groups[name]
        if len(got) != len(want):
            return f"{len(got)} {name}s instead of {len(want)}"
        references = exact.groups.get(name, [])
        if exact.error is not None or len(references) != len(want):
            references = [None] * len(want)
        for k, (a, b, r) in enumerate(zip(got, want, references, strict=True)):
            if (a is None) != (b is None):
                return f"{name} {k}: {'None' if a is None else 'a tensor'}, not as eager"
            if b is None or random_values:
                continue
            if b.is_meta or b.layout not in (torch.strided, torch.sparse_coo):
                continue
            dense = a.layout == b.layout == torch.strided
            if name == "gradient" and dense and a.shape == b.shape and strides(a) == strides(b):
                # Eager's gradients of views are strided as what comes in is, also where it says
                # nothing; nor does the contract for the layout of gradients look there.
                a = a.as_strided(b.shape, b.stride())
            narrow = b.dtype in WIDE
            what = compare(
                a.detach(), b.detach(), r.detach() if narrow and r is not None else None, operands
            )
            if what and within_roundings(a, b, r if narrow else None, want):
                continue
            if what.startswith("error") and name in ("result", "gradient"):
                what = what if _average(case) else ""
            if what:
                return f"{name} {k} {tuple(b.shape)}: {what}"
    return ""


def stretched(tree: Any, seed: int) -> Any:
    """The same case with its differentiable inputs up to a fifth larger."""
    generator = torch.Generator().manual_seed(seed)

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        factor = 1 + 0.2 * torch.rand(value.shape, generator=generator).to(value.device)
        with torch.no_grad():  # in place, to keep the strides
            return _copied(value).detach().mul_(factor).requires_grad_()

    return pytree.tree_map(one, tree)


def worse_on_average(runs: Iterator[tuple[list, list, list]]) -> bool:
    """Whether tensors of compiled runs are on the whole further from float64 than eager's may be.

    With few elements eager's error is a matter of luck: one that happens to be right to the last
    bit is not to be met. So the errors of several draws are added up, tensor by tensor.
    """
    mine, theirs, room = Counter(), Counter(), Counter()
    for got, want, exact in runs:
        for k, (a, b, x) in enumerate(zip(got, want, exact, strict=True)):
            if b is None or x is None or not b.numel():
                continue
            if a is None or a.dtype != b.dtype or a.stride() != b.stride():
                return True
            if b.dtype not in WIDE:
                if not torch.equal(a, b):
                    return True
                continue
            if not torch.equal(a.isfinite(), b.isfinite()):
                return True
            mine[k] += (a.to(x.dtype) - x).abs().nan_to_num(0, 0).max().item()
            theirs[k] += (b.to(x.dtype) - x).abs().nan_to_num(0, 0).max().item()
            room[k] += 8 * torch.finfo(b.dtype).eps * x.abs().nan_to_num(0, 0).max().item()
    return not mine or any(mine[k] > 2 * theirs[k] + room[k] for k in mine)


def _average(case: Case) -> bool:
    def run() -> Iterator[tuple[list, list, list]]:
        for seed in range(8):
            args, kwargs = stretched((case.args, case.kwargs), seed)
            other = dataclasses.replace(case, args=args, kwargs=kwargs)
            seen = see(other, compiled=True), see(other), see(other, wide=True)
            if any(s.error is not None for s in seen):
                return
            yield tuple(
                [t for name in ("result", "gradient") for t in s.groups.get(name, [])] for s in seen
            )

    return worse_on_average(run())


def within_roundings(
    got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, group: list
) -> bool:
    """Whether the difference is a few roundings: of the largest element (eight, as in judge.py), or
    without a float64 run, of the largest that was computed beside it: a gradient may cancel."""
    same = (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    if not same or not (eager.is_floating_point() or eager.is_complex()) or eager.numel() == 0:
        return False
    if not got.isfinite().all() or not eager.isfinite().all():
        return False
    eps = torch.finfo(eager.dtype).eps
    wide = torch.complex128 if eager.is_complex() else torch.float64
    if exact is not None:
        mine, theirs = ((t.to(wide) - exact).abs().max().item() for t in (got, eager))
        return mine <= 2 * theirs + 8 * eps * max(exact.abs().max().item(), 1e-6)
    beside = [t for t in group if t is not None and t.dtype == eager.dtype and t.numel()]
    scale = max(t.abs()[t.isfinite()].max().item() for t in beside if t.isfinite().any())
    return (got.to(wide) - eager.to(wide)).abs().max().item() <= 32 * eps * scale


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


# Modules ---------------------------------------------------------------------------------------


def modules(pattern: str = "*") -> Iterator[Any]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if fnmatch.fnmatch(info.name, pattern):
            yield info


def module_cases(
    info: Any, dtype: torch.dtype, training: bool, device: str = "cpu"
) -> Iterator[Case]:
    """All inputs of the database, the module in this mode."""
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device=device, dtype=dtype, requires_grad=True, training=training
    )
    for k, sample in enumerate(samples):
        if sample.forward_input is None:
            continue
        made = sample.constructor_input
        torch.manual_seed(k)
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        if not any(
            isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()
        ):
            module = module.to(device, dtype)
        forward = sample.forward_input
        yield Case(module, tuple(forward.args), forward.kwargs, f"{k} {sample.desc}")


def module_errors(info: Any) -> Iterator[Case]:
    """The calls that the database says must raise."""
    from torch.testing._internal.common_modules import ModuleErrorEnum

    if info.module_error_inputs_func is None:
        return
    torch.manual_seed(0)
    for k, error in enumerate(
        info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
    ):
        if error.error_on is not ModuleErrorEnum.FORWARD_ERROR:
            continue
        sample = error.module_error_input
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs)
        yield Case(
            module, tuple(sample.forward_input.args), sample.forward_input.kwargs, f"error {k}"
        )


# Operators -------------------------------------------------------------------------------------


def differentiable_operators(pattern: str = "*") -> Iterator[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.supports_autograd and fnmatch.fnmatch(full_name(op), pattern):
            yield op


def spread(made: list, limit: int) -> list:
    if len(made) <= limit:
        return made
    if limit == 1:
        return made[:1]
    return [made[k * (len(made) - 1) // (limit - 1)] for k in range(limit)]


def operator_cases(op: Any, dtype: torch.dtype, limit: int, device: str = "cpu") -> Iterator[Case]:
    """At most `limit` samples, spread over the database's; with the in-place form and `out=`."""
    torch.manual_seed(0)
    made = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=True), 80))
    function, in_place = op.op, op.inplace_variant
    chosen = spread(made, limit)
    for k, sample in enumerate(chosen):
        arguments = (sample.input, *sample.args)
        yield Case(lambda *a, **kw: function(*a, **kw), arguments, sample.kwargs, f"{k}")
        if k and k != len(chosen) - 1:
            continue
        if (
            in_place is not None
            and not sample.broadcasts_input
            and isinstance(sample.input, torch.Tensor)
        ):

            def written(x, *a, **kw):
                return in_place(x.clone(), *a, **kw)

            yield Case(written, arguments, sample.kwargs, f"{k} in place")
        if op.supports_out:
            with torch.no_grad():
                try:
                    want = function(*_copied(arguments), **_copied(sample.kwargs))
                except Exception:
                    continue
            if isinstance(want, torch.Tensor):
                out = torch.zeros_like(want)
                yield Case(
                    lambda *a, **kw: function(*a, **kw),
                    arguments,
                    {**sample.kwargs, "out": out},
                    f"{k} out",
                    gradients=False,
                )


def operator_errors(op: Any) -> Iterator[Case]:
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    function = op.op
    for k, error in enumerate(op.error_inputs("cpu")):
        sample = error.sample_input
        yield Case(
            lambda *a, **kw: function(*a, **kw),
            (sample.input, *sample.args),
            sample.kwargs,
            f"error {k}",
            gradients=False,
        )


# The table -------------------------------------------------------------------------------------


def judge(
    cases: Iterator[Case], counts: Counter, reasons: Counter, random_values: bool = False
) -> list[str]:
    """The differences of all these cases; counts how they were run."""
    found = []
    for case in cases:
        ingot.reset()
        try:
            what = difference(case, random_values)
        except Exception:  # of the comparison itself
            what = "sweep: " + traceback.format_exc().strip().rpartition("\n")[2]
        stats = ingot.stats()
        for reason in stats.reasons:
            reasons[reason.partition("\n")[0][:120]] += 1
        counts["wrong" if what else "fell back" if stats.reasons else "compiled"] += 1
        if what:
            found.append(f"{case.label}: {what}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["modules", "operators"])
    parser.add_argument("--only", default="*")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--device", default="cpu", help="on cuda without the calls that raise")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th entry from the k-th")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    part, parts = map(int, options.part.split("/"))

    def tell(name: str, found: list[str]) -> None:
        for line in found[:4]:
            print(f"{name}: {line}"[:330], flush=True)

    if options.what == "modules":
        for info in itertools.islice(modules(options.only), part, None, parts):
            for dtype in options.dtypes.split(","):
                for training in (True, False):
                    try:
                        cases = list(
                            module_cases(info, getattr(torch, dtype), training, options.device)
                        )
                    except Exception as error:
                        counts["no cases"] += 1
                        print(info.name, dtype, "no cases", _line(error))
                        continue
                    mode = "train" if training else "eval"
                    tell(f"{info.name} {dtype} {mode}", judge(iter(cases), counts, reasons))
            if options.device == "cpu":  # some end the use of a GPU
                tell(f"{info.name} errors", judge(module_errors(info), counts, reasons))
    else:
        for op in itertools.islice(differentiable_operators(options.only), part, None, parts):
            for dtype in options.dtypes.split(","):
                kind = getattr(torch, dtype)
                if kind not in op.supported_backward_dtypes(options.device):
                    continue
                cases = operator_cases(op, kind, options.samples, options.device)
                tell(f"{full_name(op)} {dtype}", judge(cases, counts, reasons))
            if options.device == "cpu":
                tell(f"{full_name(op)} errors", judge(operator_errors(op), counts, reasons))
    print(dict(counts))
    for reason, n in reasons.most_common(60):
        print(f"{n:6d} {reason}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
