"""Capture by Ingot itself: the C++ recorder of `src/capture`.

What this file asks of it is `_ingot.capture(function, options) -> callable`. `options` holds every
row of the table of switches (`_options.py`) and

- `fullgraph`, `dynamic`, `recompile_limit` (None: the default), `name`: as in `ingot.compile`;
- `backend`: None, or a callable `(log, example_inputs) -> callable of the same inputs` that takes
  the place of the compiler; `log` is what `Recorder.export` returns (`_fx.py` makes a graph of it).

The callable takes what `function` takes. Functions marked `_ingot_disable` are breaks.
"""

from __future__ import annotations

from collections.abc import Callable

from ._settings import Settings


def compile(function: Callable, settings: Settings) -> Callable:
    """`function` captured by Ingot."""
    from . import _ingot

    raise NotImplementedError(f"own capture is not there yet: {function}, {settings}, {_ingot}")


def is_compiling() -> bool:
    """Whether this thread is recording."""
    return False


def graph_break() -> None:
    """A call that ends the graph: capture knows this function."""


def disable(function: Callable, recursive: bool, reason: str | None) -> Callable:
    """`function`, run without recording."""
    raise NotImplementedError


def allow_in_graph(function: Callable) -> Callable:
    """`function`, whose Python decides nothing that needs a guard."""
    function._ingot_in_graph = True
    return function


def reset() -> None:
    """Forget what was recorded."""
