"""What takes the place of `torch.utils.checkpoint.checkpoint` in a recording.

See `src/capture/checkpoint_calls.cpp`. The signature is PyTorch's, so that Python itself binds what
the program gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import noop_context_fn


def plan(
    function: Callable,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> str | tuple[bool, bool, tuple]:
    """Why the call is eager's; or whether it is reentrant, whether it draws the same random numbers
    again, and the arguments that take part."""
    preserves = kwargs.pop("preserve_rng_state", True)
    if use_reentrant is None:
        return "it warns"
    if debug or context_fn is not noop_context_fn:
        return "contexts of its own"
    if not isinstance(use_reentrant, bool) or not isinstance(preserves, bool):
        return "another kind of flag"
    if not use_reentrant:
        return False, preserves, args
    if kwargs:
        return "arguments by name"
    if not any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
        return "no argument needs a gradient"
    return True, preserves, args


def recorded(
    function: Callable,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """The function's call, once."""
    kwargs.pop("preserve_rng_state", True)
    return function(*args, **kwargs)
