"""The judge of capture: runs a program in two worlds, eager and compiled, and compares them.

A program is a function of a World. It builds its state, compiles functions of it, calls them a few
times and changes things in between. Both worlds start from the same seed, so whatever differs in
the end was done by the compiler: results with types, strides and aliasing, exceptions with their
messages, changes of arguments and state, gradients, random numbers, prints, global modes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import io
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Program = Callable[["World"], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Put a program on the table."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    assert name not in PROGRAMS, name
    PROGRAMS[name] = function
    return function


@dataclasses.dataclass
class Tensor:
    """A tensor as it was when it was seen."""

    value: torch.Tensor
    facts: tuple  # class, type, sizes, strides, gradients, which storage, which object


class Snapshot:
    """Describes values as plain data that stays what it is; equal worlds describe equally."""

    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._storages: dict[int, list] = {}
        self._kept: list[Any] = []  # ids stay unique while their objects live

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return value if type(value) in _PLAIN else (type(value).__qualname__, repr(value))
        if isinstance(
            value, (enum.Enum, type, torch.dtype, torch.device, torch.layout, slice, range)
        ):
            return repr(value)
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            return getattr(value, "__qualname__", value.__name__)
        seen = self._objects.get(id(value))
        number = self._objects.setdefault(id(value), len(self._objects))
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, number)
        if seen is not None:
            return ("again", number)
        return (type(value).__qualname__, number, self._contents(value))

    def _contents(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return (str(value), [self.of(one) for one in value.args])
        if isinstance(value, np.ndarray):
            return (value.dtype.str, value.shape, value.strides, self.of(value.tolist()))
        if isinstance(value, np.generic):
            return self.of(value.item())
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, value))
        parts = []
        if isinstance(value, Mapping):
            parts.append([(self.of(k), self.of(v)) for k, v in value.items()])
        elif isinstance(value, (list, tuple, collections.deque)):
            parts.append([self.of(one) for one in value])
        attributes = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    attributes[name] = getattr(value, name)
        if attributes:
            parts.append([(k, self.of(v)) for k, v in attributes.items() if not _is_private(k, v)])
        return parts

    def _tensor(self, value: torch.Tensor, number: int) -> Tensor:
        facts = [type(value).__name__, str(value.dtype), tuple(value.shape), str(value.device)]
        facts += [value.requires_grad, value.grad_fn is None, str(value.layout), number]
        plain = value.detach()
        if value.layout is torch.strided:
            facts += [value.stride(), value.is_conj(), value.is_neg()]
            facts += self._place(value)
            plain = plain.resolve_conj().resolve_neg().clone()
        return Tensor(plain, tuple(facts))

    def _place(self, value: torch.Tensor) -> list:
        """Which storage, and where in it if another tensor has been seen there."""
        pointer = value.untyped_storage().data_ptr()
        if pointer == 0:
            return ["empty"]
        fresh = pointer not in self._storages
        entry = self._storages.setdefault(pointer, [len(self._storages), value.storage_offset()])
        return [entry[0], None if fresh else value.storage_offset() - entry[1]]


_BY_TEXT = (enum.Enum, type, torch.dtype, torch.device, torch.layout, slice, range)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def _is_private(name: str, value: Any) -> bool:
    """Attributes that belong to the machinery of PyTorch, not to the program."""
    return name.startswith(("_dynamo", "_ingot", "_backward_hooks", "__")) or name in (
        "_compiled_call_impl",
    )


def _free_frames(error: BaseException | None) -> None:
    """What the frames of an exception hold dies now, not when the cycle through it is found."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class World:
    """One run of a program. `compiler` is the identity for the eager world."""

    def __init__(self, compiler: Callable | None) -> None:
        self._compiler = compiler
        self.record: list[tuple[str, Any]] = []
        self._generator = torch.Generator().manual_seed(1234)

    def compile(self, function: Callable, **arguments: Any) -> Callable:
        """The compiled form of `function` (itself in the eager world)."""
        return function if self._compiler is None else self._compiler(function, **arguments)

    def t(
        self, *sizes: int, grad: bool = False, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """A tensor of this world's own random numbers."""
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.randn(sizes, generator=self._generator, dtype=torch.float64).to(dtype)
        else:
            made = torch.randint(-3, 6, sizes, generator=self._generator).to(dtype)
        return made.requires_grad_() if grad else made

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call and note everything that can be seen of it; an exception is a result too."""
        snapshot = Snapshot()
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                result = function(*args, **kwargs)
        except Exception as error:
            result = error
            _free_frames(error)
        self.record.append(("result", snapshot.of(result)))
        self.record.append(("arguments", snapshot.of([args, kwargs])))
        self.record.append(("printed", printed.getvalue()))
        self.record.append(("modes", (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                                      str(torch.get_default_dtype()))))  # fmt: skip
        return result

    def note(self, *values: Any) -> None:
        """Note some state of the program."""
        self.record.append(("state", Snapshot().of(list(values))))

    def backward(self, output: Any, *leaves: torch.Tensor) -> None:
        """Run backward from the sum of squares of a result and note the gradients."""
        if isinstance(output, torch.Tensor):
            with contextlib.suppress(RuntimeError):
                output.square().sum().backward()
        self.record.append(("gradients", Snapshot().of([leaf.grad for leaf in leaves])))
        for leaf in leaves:
            leaf.grad = None


class Difference(AssertionError):
    """The worlds differ, at a note if `step` is one."""

    def __init__(self, text: str, step: int | None = None) -> None:
        super().__init__(text)
        self.step = step


def run(function: Program, compiler: Callable | None) -> list[tuple[str, Any]]:
    """The record of one world."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    torch.manual_seed(99)
    world = World(compiler)
    try:
        function(world)
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
    world.record.append(("generator", Tensor(torch.get_rng_state(), ())))
    return world.record


def compare(function: Program, compiler: Callable) -> None:
    """Raise Difference unless the compiled world is the eager one."""
    expected = run(function, None)
    actual = run(function, compiler)
    if len(expected) != len(actual):
        raise Difference(f"{len(expected)} notes became {len(actual)}")
    for step, (one, other) in enumerate(zip(expected, actual, strict=True)):
        reason = difference(one, other)
        if reason is not None:
            raise Difference(f"note {step} ({one[0]}): {reason}", step)


class Shaken(TorchDispatchMode):
    """Eager where each computed number is up to a unit in the last place away from what it was.

    Monte Carlo arithmetic (D. S. Parker, 1997): what comes out differently has no digits that
    another order of the same sums would have to keep.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        computes = torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags
        own = all(r.alias_info is None for r in func._schema.returns)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and computes and own:
            unit = torch.finfo(result.dtype).eps
            random = torch.rand(result.shape, generator=self._generator, dtype=torch.float64)
            result.mul_((1 + unit * (2 * random - 1)).to(torch.float64))
        return result


def amplifies_rounding(function: Program, step: int) -> bool:
    """Whether eager's own note `step` changes visibly when its numbers change invisibly."""
    expected = run(function, None)
    for seed in range(3):
        with Shaken(seed):
            shaken = run(function, None)
        if len(shaken) != len(expected) or difference(expected[step], shaken[step]) is not None:
            return True
    return False


def difference(one: Any, other: Any) -> str | None:
    """Where two descriptions differ, or None. Numbers may differ by rounding."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.facts != other.facts:
            return f"{one.facts} became {other.facts}"
        return _close(one.value, other.value)
    if type(one) is not type(other):
        return f"{one!r} became {other!r}"
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{len(one)} parts became {len(other)}: {one!r} became {other!r}"
        for a, b in zip(one, other, strict=True):
            reason = difference(a, b)
            if reason is not None:
                return reason
        return None
    if isinstance(one, (float, complex)):
        equal = one == other or abs(one - other) <= 1e-5 + 1e-4 * abs(one)
        both_nan = one != one and other != other
        return None if equal or both_nan else f"{one!r} became {other!r}"
    return None if one == other else f"{one!r} became {other!r}"


_TOLERANCE = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}


def _close(one: torch.Tensor, other: torch.Tensor) -> str | None:
    if not (one.is_floating_point() or one.is_complex()):
        return None if torch.equal(one, other) else f"{one} became {other}"
    bound = _TOLERANCE.get(one.dtype, 2e-5)
    try:
        torch.testing.assert_close(other, one, rtol=10 * bound, atol=bound, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def scalar(x: torch.Tensor) -> float:
    """A number of a tensor that is the same in both worlds up to rounding."""
    value = x.sum().item()
    return value if math.isfinite(value) else 0.0
