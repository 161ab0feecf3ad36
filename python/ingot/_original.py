"""From a compiled callable back to what it was made of."""

from __future__ import annotations

import types
from typing import Any

from ._module import CompiledModule
from ._settings import Settings


def mark(compiled: Any, function: Any, settings: Settings) -> None:
    """Remember that `compiled` was made of `function`."""
    compiled._ingot_original = compiled._torchdynamo_orig_callable = function
    compiled._ingot_settings = settings
    # functools.wraps of the user copies the attributes to functions that are not this one.
    compiled._ingot_id = compiled._torchdynamo_wrapper_id = id(compiled)


def original(function: Any) -> Any:
    """What `function` was before it was compiled; itself if it was not."""
    if isinstance(function, CompiledModule):
        return function._orig_mod
    if isinstance(function, types.MethodType):
        inner = original(function.__func__)
        unchanged = inner is function.__func__
        return function if unchanged else types.MethodType(inner, function.__self__)
    if getattr(function, "_ingot_id", None) == id(function):
        return function._ingot_original
    return function
