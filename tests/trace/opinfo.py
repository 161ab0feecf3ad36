"""PyTorch's own operator database run through Ingot: what each sample gives, compared with eager.

Each sample is compared in value, type, strides and aliasing, also with its tensors made
non-contiguous and through the operator's in-place form; what raises in eager must raise.

Used by test_opinfo.py; run as a program it prints the table for all operators:
    python tests/trace/opinfo.py [--ops PATTERN] [--dtypes all] [--samples 3] [--bless]
tests/gpu/test_operators_on_gpu.py does the same on a GPU (--device cuda).
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Recording fails with an error that is not Ingot's own: the program falls back all the same.
FALLS_BACK = {
    "tensor_split": "PyTorch reads the data of the indices' tensor directly",
    "jiterator_*": "a kernel written as text, whose caller reads the data",
    "nn.functional.linear_cross_entropy.chunked": "an operator registered in Python",
    "nn.functional.linear_cross_entropy.chunked_none": "an operator registered in Python",
}
# What differs from eager, for which types, and why that is so.
INTEGERS = ("int64", "int32", "uint8")
DIFFERS = {
    "polygamma.*": (("float64",), "eager is 4e-10 off, Ingot agrees with mpmath"),
    "special.polygamma.*": (("float64",), "the same"),
    "nn.functional.max_pool1d": (INTEGERS, "PyTorch records a max_pool2d, which takes integers"),
}
# The same for GPUs alone.
DIFFERS_ON_GPUS = {
    "__rmod__": (INTEGERS, "a remainder of a division by zero, which is undefined there"),
    "nn.functional.conv_transpose1d": (
        ("complex64",), "cuDNN takes TF32, which eager allows too, for our layout; as eager without"
    ),
    "nn.functional.hardsigmoid": (("float64",), "eager's sixth there is a float32"),
    "nn.functional.hardswish": (("float64",), "the same"),
    "nn.functional.soft_margin_loss": (
        ("float16",), "eager overflows between two steps; programs for GPUs round once, in the end"
    ),
    "torch.ops.aten._flash_attention_forward": (
        ("bfloat16", "float16"), "a seed that nothing was drawn from is memory as it was found"
    ),
}  # fmt: skip
SUPPORTED = pathlib.Path(__file__).with_name("opinfo_supported.txt")
DTYPES = (
    "float32",  # the gate takes most samples of this one
    "bfloat16",
    "float16",
    "float64",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
)


def supported() -> dict[str, set[str]]:
    """The operators that are compiled whole, with the types they are compiled for."""
    lines = SUPPORTED.read_text().splitlines() if SUPPORTED.exists() else []
    return {name: set(dtypes) for name, *dtypes in map(str.split, lines)}


def differs(name: str, dtype: str, device: str = "cpu") -> bool:
    known = DIFFERS if device == "cpu" else DIFFERS | DIFFERS_ON_GPUS
    return any(fnmatch.fnmatch(name, p) and dtype in dtypes for p, (dtypes, _) in known.items())


@dataclass
class Outcome:
    """`kind`: ok, raises (as eager does), none (no sample), unsupported (a counted fallback),
    wrong, or crash (eager does not raise)."""

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


def samples(op: Any, dtype: torch.dtype, limit: int, device: str = "cpu") -> list[Any]:
    """At most `limit` samples, spread over all the database makes; the same ones every time.

    Every third one is non-contiguous. For a type that the operator does not support there may be
    none.
    """
    torch.manual_seed(0)
    try:
        made = list(itertools.islice(op.sample_inputs(device, dtype, requires_grad=False), 60))
    except Exception:
        if dtype in op.supported_dtypes(device):
            raise
        return []
    if limit == 1:
        made = made[:1]
    elif len(made) > limit:
        made = [made[k * (len(made) - 1) // (limit - 1)] for k in range(limit)]
    return [_noncontiguous(s) if k % 3 == 1 else s for k, s in enumerate(made)]


def _noncontiguous(sample: Any) -> Any:
    try:
        return sample.noncontiguous()
    except RuntimeError:  # a layout that has no strides
        return sample


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
    """With tensors of the same strides; those that share memory share it in the copy."""
    storages: dict[int, torch.Tensor] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        value = value.detach()
        if value.is_conj() or value.is_neg():
            return value.clone()
        key = value.untyped_storage()._cdata  # the addresses of empty ones are all null
        if key not in storages:
            elements = value.untyped_storage().nbytes() // value.element_size()
            whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(
                value.untyped_storage(), 0, (elements,), (1,)
            )
            storages[key] = whole.clone()
        whole = storages[key]
        if whole.dtype != value.dtype:
            return value.clone()
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())

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


def compare(
    ours: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor | None,
    operands: Sequence[torch.Tensor] = (),
) -> str:
    """What is different, or nothing. Floats may be twice as far from the fp64 run as eager is."""
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return f"{ours.dtype}{tuple(ours.shape)} instead of {eager.dtype}{tuple(eager.shape)}"
    if ours.layout != eager.layout:
        return "another layout"
    ours, eager = ours.resolve_conj().resolve_neg(), eager.resolve_conj().resolve_neg()
    if eager.layout != torch.strided:
        ours, eager = ours.to_dense(), eager.to_dense()
    elif eager.numel() > 1 and ours.stride() != eager.stride():
        return f"strides {ours.stride()} instead of {eager.stride()}"
    if not (eager.is_floating_point() or eager.is_complex()):
        return "" if torch.equal(ours, eager) else "other values"
    if eager.dtype.itemsize == 1:  # the small floats have hardly an operator
        return "" if torch.equal(ours.view(torch.uint8), eager.view(torch.uint8)) else "other bits"
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
    # A sum of many may cancel: it is as good as its largest operand is.
    for t in operands:
        if t.dtype == eager.dtype and t.numel() > 4 * eager.numel():
            scale = max(scale, t[torch.isfinite(t)].abs().max().item() if t.numel() else 0)
    if reference is None or reference.shape != eager.shape:
        distance = _error(a, b)
        return "" if distance <= 32 * unit * max(scale, 1e-30) else f"{distance:.3g} from eager"
    r = reference[finite]
    theirs, mine = _error(b, r), _error(a, r)
    if mine <= 2 * theirs + 2 * unit * scale:
        return ""
    return f"error {mine:.3g}, eager's {theirs:.3g}"


def aliases(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[tuple]:
    """For each output, the first of inputs and outputs whose memory it shares, and where."""
    seen, found = [*inputs, *outputs], []
    for k, out in enumerate(outputs):
        if out.layout != torch.strided or out.numel() == 0:
            found.append(())
            continue
        memory = out.untyped_storage().data_ptr()
        first = next(
            i
            for i, t in enumerate(seen)
            if t is out or (t.layout == torch.strided and t.untyped_storage().data_ptr() == memory)
        )
        own = first == len(inputs) + k
        apart = out.storage_offset() - seen[first].storage_offset()
        found.append((first, None if own else apart))
    return found


def check_sample(name: str, fn: Callable, sample: Any) -> Outcome:
    """One sample, compiled on copies of the inputs and run on others."""
    case = ((sample.input, *sample.args), sample.kwargs)
    args, kwargs = _copy(case)
    theirs_in, failure = _tensors((args, kwargs)), None
    torch.manual_seed(42)  # what the database's random entries seed with before they draw
    try:
        theirs = _tensors(fn(*args, **kwargs))
    except Exception as error:
        failure = error
    try:
        args, kwargs = _copy(case)
        program, _ = compile_call(fn, args, kwargs)
    except Exception as error:
        if failure is not None:
            return Outcome("raises", f"{type(failure).__name__}")  # not compiled, so eager does
        known = type(error).__name__ == "Unsupported" or any(
            fnmatch.fnmatch(name, pattern) for pattern in FALLS_BACK
        )
        kind = "unsupported" if known else "crash"
        return Outcome(kind, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = _double(_copy(case))
            torch.set_default_dtype(torch.float64)  # that integers become
            reference = [*_tensors(fn(*args, **kwargs)), *_tensors((args, kwargs))]
    except Exception:
        reference = []
    finally:
        torch.set_default_dtype(torch.float32)
    ours_in = _tensors(_copy(case))
    torch.manual_seed(42)
    try:
        ours = program(*ours_in)
    except Exception as error:
        if type(error).__name__ == "Unsupported":  # addresses, say
            return Outcome("unsupported", str(error))
        if failure is None:
            return Outcome("crash", f"{type(error).__name__}: {error}")
        if type(error) is not type(failure):
            return Outcome("wrong", f"{error!r} instead of {failure!r}")
        return Outcome("raises", f"{type(failure).__name__}")
    if failure is not None:
        text = str(failure).partition(chr(10))[0]
        return Outcome("wrong", f"no error; eager: {type(failure).__name__}: {text}")
    if len(ours) != len(theirs):
        return Outcome("wrong", f"{len(ours)} outputs instead of {len(theirs)}")
    if aliases(ours, ours_in) != (want := aliases(theirs, theirs_in)):
        return Outcome("wrong", f"aliases {aliases(ours, ours_in)} instead of {want}")
    ours, theirs = [*ours, *ours_in], [*theirs, *theirs_in]
    wide = (torch.float64, torch.complex128)
    all_narrow = not any(t.dtype in wide for t in theirs_in)
    if len(reference) != len(theirs):
        reference = [None] * len(theirs)
    for a, b, r in zip(ours, theirs, reference, strict=True):
        difference = compare(a, b, r if all_narrow else None, theirs_in)
        # Beside wide operands a narrow result may cancel: then the fp64 run decides.
        if difference and not all_narrow and r is not None and b.dtype not in wide:
            difference = compare(a, b, r, theirs_in)
        if difference:
            return Outcome("wrong", difference)
    return Outcome("ok")


def check(op: Any, dtype: torch.dtype, limit: int, device: str = "cpu") -> Outcome:
    """The worst outcome over the operator's samples and its in-place form's; `raises` where eager
    does for every one."""
    order = {"none": 0, "raises": 1, "ok": 2, "unsupported": 3, "crash": 4, "wrong": 5}
    worst = Outcome("none")
    name = full_name(op)
    in_place = op.inplace_variant
    for k, sample in enumerate(samples(op, dtype, limit, device)):
        forms = [("", op.op)]
        if in_place is not None and k == 0 and not sample.broadcasts_input:
            forms.append(("in place: ", in_place))
        for form, fn in forms:
            with torch.no_grad():
                outcome = check_sample(name, fn, sample)
            if order[outcome.kind] > order[worst.kind]:
                worst = Outcome(outcome.kind, form + outcome.detail)
    return worst


def is_random(op: Any, device: str = "cpu") -> bool:
    """Whether two eager runs differ: uninitialised memory or random numbers."""
    known = torch.float32 in op.supported_dtypes(device)
    for sample in samples(op, torch.float32, 1, device) if known else []:
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
    parser.add_argument("--dtypes", default="all")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th operator from the k-th")
    parser.add_argument("--bless", action="store_true", help="rewrite the list of operators")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    dtypes = DTYPES if options.dtypes == "all" else options.dtypes.split(",")
    counts: Counter[str] = Counter()
    compiled = supported()
    for op in itertools.islice(operators(options.ops), part, None, parts):
        name = full_name(op)
        if is_random(op, options.device):
            counts["random"] += 1
            continue
        good = compiled.setdefault(name, set())
        found: dict[str, list[str]] = {}
        for dtype in dtypes:
            outcome = check(op, getattr(torch, dtype), options.samples, options.device)
            if outcome.kind == "wrong" and differs(name, dtype, options.device):
                outcome = Outcome("differs")
            counts[outcome.kind] += 1
            if outcome.kind == "ok":
                good.add(dtype)
            else:
                good.discard(dtype)
            if outcome.kind not in ("ok", "none", "raises", "differs"):
                line = f"{outcome.kind:12s} {name:40s} {outcome.detail}"
                found.setdefault(line[:200], []).append(dtype)
        for line, where in found.items():
            print(line, *where, flush=True)
    print(dict(counts))
    if options.bless:
        lines = [
            " ".join([name, *(d for d in DTYPES if d in good)])
            for name, good in sorted(compiled.items())
            if good
        ]
        SUPPORTED.write_text("\n".join(lines) + "\n")
    return 1 if counts["wrong"] or counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
