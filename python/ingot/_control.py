"""What a program says to the compiler from inside: do not look here, end the graph, where am I.

What the words mean is the affair of the door that captures.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from . import _backend, _checks, _doors
from ._module import wrap_module
from ._original import original
from ._settings import Settings


def is_compiling() -> bool:
    """Whether this code is being captured now; False when it runs eagerly or is replayed."""
    return any(door.is_compiling() for door in _doors.DOORS)


def graph_break() -> None:
    """End the graph here: what is recorded runs, and recording goes on behind. Else nothing."""
    for door in _doors.DOORS:
        door.graph_break()


def disable(
    fn: Callable | None = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    """Never compile `fn`; with `recursive` nor what it calls. Also a decorator with arguments.

    A compiled function comes back as what it was; a module or a class as `ingot.compile` would
    return it, running eagerly. `reason` is given where the break is explained.
    """
    _checks.truth("recursive", recursive)
    _checks.text("reason", reason)
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    _checks.function("fn", fn)
    fn = original(fn)
    if inspect.isclass(fn):
        fn.__call__ = disable(fn.__call__, recursive, reason=reason)
        return fn
    call = functools.partial(_disabled, recursive=recursive, reason=reason)
    if isinstance(fn, torch.nn.Module):
        return wrap_module(fn, Settings(), call)
    return call(fn)


def _disabled(
    fn: Callable, settings: Settings | None = None, *, recursive: bool, reason: str | None
) -> Callable:
    return _doors.current().disable(fn, recursive, reason)


def allow_in_graph(fn: Any) -> Any:
    """Take `fn` as it is, without looking inside: its tensor operators are recorded all the same.

    A list or tuple of functions gives a list.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(one) for one in fn]
    if not callable(fn):
        raise AssertionError("allow_in_graph expects a callable")
    return _doors.current().allow_in_graph(fn)


def assume_constant_result(fn: Callable) -> Callable:
    """Say that `fn` always returns the same; its first result is kept as a constant."""
    _checks.function("fn", fn)
    for door in _doors.DOORS:
        door.assume_constant(fn)
    return fn


def reset() -> None:
    """Forget everything compiled in this process, and start the counters of `stats` anew."""
    for door in _doors.DOORS:
        door.reset()
    _backend.reset()
