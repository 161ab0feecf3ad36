"""The stance: how compiled functions behave for a while, without being compiled anew.

One value for the process, as PyTorch's. A compiled function reads one flag per call while the
stance is the default; everything else is on the slow path here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

STANCES = (
    "default",
    "force_eager",
    "eager_on_recompile",
    "fail_on_recompile",
    "eager_then_compile",
    "aot_eager_then_compile",
)


@dataclass(frozen=True)
class Stance:
    """One of STANCES, and the backend that takes the place of every other."""

    stance: str = "default"
    force_backend: str | Callable | None = None


class _State:
    """The stance now; `special` when a call has to look at it."""

    __slots__ = ("special", "stance")

    def __init__(self) -> None:
        self.set(Stance())

    def set(self, stance: Stance) -> Stance:
        before = getattr(self, "stance", stance)
        self.stance, self.special = stance, stance != Stance()
        return before


STATE = _State()


class set_stance(contextlib.ContextDecorator):
    """Set the stance: as a function for good, as a context manager or a decorator for a while.

    `default` compiles; `force_eager` runs everything as if it were not compiled;
    `eager_on_recompile` uses what is compiled and runs eagerly where it does not fit;
    `fail_on_recompile` raises RuntimeError there; `eager_then_compile` runs the first call of each
    function eagerly. `force_backend` (with `default` only) takes the place of every backend.
    Raises RuntimeError for an unknown stance and inside a region that is being compiled.
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,  # accepted: guards always hold here
        force_backend: str | Callable | None = None,
    ) -> None:
        if stance not in STANCES:
            raise RuntimeError(f"invalid torch.compile stance {stance!r}: one of {STANCES}")
        if force_backend is not None and stance != "default":
            raise RuntimeError("non-default stance cannot have force_backend set")
        self._stance = Stance(stance, force_backend)
        self._before = _set(self._stance)

    def __call__(self, function: Callable) -> Callable:
        _set(self._before)
        return super().__call__(function)

    def __enter__(self) -> set_stance:
        _set(self._stance)
        return self

    def __exit__(self, *_: Any) -> None:
        _set(self._before)


def _set(stance: Stance) -> Stance:
    from ._control import is_compiling

    if is_compiling():
        raise RuntimeError("attempted to set_stance in a torch.compile region")
    return STATE.set(stance)


def call(compiled: Any, captured: Callable, args: tuple, kwargs: dict) -> Any:
    """A call of a compiled function under a stance other than the default."""
    from . import _doors, _registry

    stance = STATE.stance
    if stance.stance == "force_eager":
        return compiled._ingot_original(*args, **kwargs)
    if stance.stance in ("eager_then_compile", "aot_eager_then_compile"):
        if not getattr(compiled, "_ingot_called", False):
            compiled._ingot_called = True
            return compiled._ingot_original(*args, **kwargs)
        return captured(*args, **kwargs)
    if stance.force_backend is not None:
        backend = _registry.canonical(stance.force_backend)
        forced = compiled.__dict__.setdefault("_ingot_forced", {})
        if backend not in forced:
            settings = replace(compiled._ingot_settings, backend=backend, mode=None, options=None)
            forced[backend] = _doors.current(backend).compile(compiled._ingot_original, settings)
        return forced[backend](*args, **kwargs)
    return _doors.of(captured).call_compiled_only(stance.stance, captured, args, kwargs)
