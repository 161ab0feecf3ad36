"""Who captures Python: the one place that decides.

A door is a module with `compile`, `explain`, `reset`, `is_compiling`, `graph_break`, `disable`,
`allow_in_graph` and `assume_constant`: `_own_door` (Ingot's own recorder, src/capture)
and `_dynamo_door` (TorchDynamo through torch.compile). The option `capture` (variable
INGOT_CAPTURE) says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from . import _dynamo_door, _options, _own_door


def current(backend: Any = None, options: Mapping[str, Any] | None = None) -> ModuleType:
    """The door for a new compiled function."""
    if isinstance(backend, str):
        return _dynamo_door  # PyTorch's own compilers take what TorchDynamo gives
    given = None if backend is not None else (options or {}).get("capture")
    chosen = given or _options.resolve().capture
    if chosen not in ("own", "dynamo"):
        raise RuntimeError(f"the option capture is {chosen!r}: own or dynamo")
    return _own_door if chosen == "own" else _dynamo_door


DOORS = (_own_door, _dynamo_door)  # both may be in use in one process
