"""The stance: how compiled functions behave for a while, without being compiled anew.

One value for the process, PyTorch's: `torch.compiler.set_stance` and `ingot.set_stance` act on both
doors, and what was set last holds. Once the program has loaded TorchDynamo the value is kept there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _checks, _registry

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
    skip_guard_eval_unsafe: bool = False  # guards always hold here; TorchDynamo is told


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
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable | None = None,
    ) -> None:
        if stance not in STANCES:
            raise RuntimeError(
                f"invalid torch.compile stance {stance!r}{_checks.nearest(stance, STANCES)}: "
                f"one of {STANCES}"
            )
        _checks.truth("skip_guard_eval_unsafe", skip_guard_eval_unsafe)
        if force_backend is not None and stance != "default":
            raise RuntimeError("non-default stance cannot have force_backend set")
        _registry.canonical(force_backend)  # complains now, not at the first call
        self._stance = Stance(stance, force_backend, skip_guard_eval_unsafe)
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
    """Set the stance; the one before."""
    from ._control import is_compiling

    global _now
    if is_compiling():
        raise RuntimeError("attempted to set_stance in a torch.compile region")
    dynamo = _dynamo()
    if dynamo is None:
        before, _now = _now, stance
        _tell_own(stance)
        return before
    before = _from_dynamo(dynamo._set_stance(_for_dynamo(stance)))
    follow_dynamo(dynamo._stance)
    return before


def _tell_own(stance: Stance) -> None:
    if "ingot._ingot" in sys.modules or stance != Stance():
        from . import _own_door

        _own_door.set_stance(stance)


def _dynamo() -> Any:
    """TorchDynamo's module that holds its stance, where the program has loaded it."""
    from . import _torch_controls

    return sys.modules.get("torch._dynamo.eval_frame") if _torch_controls.loaded() else None


def tell_dynamo() -> None:
    """TorchDynamo has been loaded: what was set before holds there, too."""
    dynamo = _dynamo()
    if dynamo is not None and _now != Stance():
        dynamo._stance = _for_dynamo(_now)


def follow_dynamo(stance: Any) -> None:
    """TorchDynamo's stance is another: so is own capture's."""
    global _now
    theirs = _from_dynamo(stance)
    if theirs == _now:
        return
    _tell_own(theirs)
    _now = theirs


def _from_dynamo(stance: Any) -> Stance:
    return Stance(stance.stance, stance.backend, stance.skip_guard_eval_unsafe)


def _for_dynamo(stance: Stance) -> Any:
    from ._backend import dynamo_backend

    backend = stance.force_backend
    if backend is not None:  # names that PyTorch does not know
        found = _registry.canonical(backend)
        backend = dynamo_backend if found is None else found
        if backend is _registry.aot_eager:
            backend = "aot_eager"
    return _dynamo().DynamoStance(stance.stance, stance.skip_guard_eval_unsafe, backend)
