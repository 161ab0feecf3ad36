"""The stance: how compiled functions behave for a while, without being compiled anew.

One value for the process, as PyTorch's. The doors hold what a call has to look at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
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


_now = Stance()


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
    """Tell the doors; the stance before."""
    from . import _doors
    from ._control import is_compiling

    global _now
    if is_compiling():
        raise RuntimeError("attempted to set_stance in a torch.compile region")
    for door in _doors.DOORS:
        door.set_stance(stance)
    before, _now = _now, stance
    return before
