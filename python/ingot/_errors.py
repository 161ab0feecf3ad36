"""The errors of the interface, by the names that users of `torch.compile` catch.

All derive from the standard classes that PyTorch's derive from, so that `except RuntimeError` goes
on working. A program's own exceptions never become one of these.
"""

from __future__ import annotations

import traceback
from typing import Any


class CompileError(RuntimeError):
    """What all errors of the interface have in common, except `FailOnRecompileLimitHit`."""


class Unsupported(CompileError):
    """A break under `fullgraph=True`: `reason` says why, `user_stack` where (innermost last).

    It leaves the compiled call through whatever the program catches; `finally` and `__exit__` run.
    """

    def __init__(
        self, reason: str, user_stack: traceback.StackSummary | None = None, hint: str = ""
    ) -> None:
        self.reason = reason
        self.user_stack = user_stack or traceback.StackSummary()
        self.hint = hint
        where = "".join(self.user_stack.format()).rstrip()
        parts = [reason, f"from user code:\n{where}" if where else "", hint and f"hint: {hint}"]
        super().__init__("\n\n".join(filter(None, parts)))
        self.msg = str(self)

    def __reduce__(self) -> tuple:
        return type(self), (self.reason, self.user_stack, self.hint)


class InvalidBackend(CompileError):
    """A backend's name that nobody registered."""

    def __init__(self, name: str, near: str = "") -> None:
        self.name = name
        super().__init__(
            f"Invalid backend: {name!r}{near}, see `ingot.list_backends()` for available backends."
        )

    def __reduce__(self) -> tuple:
        return type(self), (self.name,)


class BackendCompilerFailed(CompileError):
    """A backend raised: `inner_exception` is what it raised."""

    def __init__(self, backend: Any, inner_exception: BaseException) -> None:
        self.backend_name = backend if isinstance(backend, str) else _name_of(backend)
        self.inner_exception = inner_exception
        super().__init__(
            f"backend={self.backend_name!r} raised:\n"
            f"{type(inner_exception).__name__}: {inner_exception}"
        )

    def __reduce__(self) -> tuple:
        return type(self), (self.backend_name, self.inner_exception)


class UserError(CompileError):
    """A use of the interface that cannot be meant, with what to do instead."""


class ConstraintViolationError(UserError):
    """A size marked dynamic that the program fixes, or outside the range it was marked with."""


class FailOnRecompileLimitHit(Exception):
    """More recordings of one function than `recompile_limit` under `fullgraph=True`."""


def _name_of(backend: Any) -> str:
    return getattr(backend, "__name__", type(backend).__name__)
