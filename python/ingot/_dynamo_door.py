"""Capture by TorchDynamo: what `torch.compile(model, backend="ingot")` does, with Ingot's errors.

The second door. It asks PyTorch's public functions only, and imports nothing before it is used.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import _errors, _registry
from ._backend import dynamo_backend
from ._explain import Break, Explanation
from ._settings import Settings

_PARAMETERS = frozenset(inspect.signature(torch.compile).parameters)


def compile(function: Callable, settings: Settings) -> Callable:
    """`function` captured by TorchDynamo and compiled by the backend of the settings."""
    inner = torch.compile(_entry(function), **_arguments(settings))

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except Exception as error:
            own = _own_error(error, settings)
            if own is None:
                raise
            raise own from error

    return compiled


def _arguments(settings: Settings) -> dict[str, Any]:
    """The settings as torch.compile takes them."""
    arguments = settings.arguments()
    if settings.backend is None:
        arguments["backend"] = dynamo_backend
        options = dict(settings.options or {})
        if options.pop("capture", None):
            arguments["options"] = options or None
    elif settings.backend is _registry.aot_eager:
        arguments["backend"] = "aot_eager"
    if "dynamic_shapes" in _PARAMETERS:  # the name of 2.14
        arguments["dynamic_shapes"] = arguments.pop("shapes_spec")
    # Older supported versions of PyTorch lack the newest parameters.
    for key in [key for key in arguments if key not in _PARAMETERS]:
        if arguments.pop(key) not in (None, False):
            raise RuntimeError(
                f"torch.compile of PyTorch {torch.__version__} has no parameter {key}"
            )
    return arguments


def _entry(function: Callable) -> Callable:
    """What TorchDynamo shall start from. It passes over the code of `torch.nn` until it meets the
    user's: a module of PyTorch itself needs a caller. Others do not, and then their hooks run
    outside, so that a hook added later is seen.
    """
    module = getattr(function, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return function
    if not type(module).forward.__module__.startswith("torch."):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # Code of its own: TorchDynamo keeps and counts what it compiled by the code object.
    call.__code__ = call.__code__.replace(co_name=type(module).__name__)
    return call


def _own_error(error: Exception, settings: Settings) -> Exception | None:
    """Dynamo's error as one of ours; None when it is none of the interface's."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch.fx.experimental")):
        return None
    names = {cls.__name__ for cls in type(error).__mro__}
    if "Unsupported" in names:
        return _errors.Unsupported(getattr(error, "msg", str(error)), error.real_stack)
    if "BackendCompilerFailed" in names:
        backend = settings.backend or "ingot"
        return _errors.BackendCompilerFailed(backend, error.inner_exception)
    if "FailOnRecompileLimitHit" in names:
        return _errors.FailOnRecompileLimitHit(str(error))
    if "ConstraintViolationError" in names:
        return _errors.ConstraintViolationError(str(error))
    return _errors.UserError(str(error)) if "UserError" in names else None


def explain(function: Callable, settings: Settings, args: tuple, kwargs: dict) -> Explanation:
    """What TorchDynamo makes of one call."""
    import torch._dynamo

    found = torch._dynamo.explain(function)(*args, **kwargs)
    return Explanation(
        graphs=found.graphs,
        graph_count=found.graph_count,
        graph_break_count=max(found.graph_break_count, 0),
        break_reasons=[Break(str(one.reason), list(one.user_stack)) for one in found.break_reasons],
        op_count=found.op_count,
        ops_per_graph=found.ops_per_graph,
        out_guards=found.out_guards,
        compile_times=found.compile_times,
    )


def _loaded() -> bool:
    return "torch._dynamo" in sys.modules


def is_compiling() -> bool:
    """Whether TorchDynamo is at work."""
    return torch.compiler.is_compiling()


def graph_break() -> None:
    """Nothing outside a compiled function."""
    if _loaded():
        sys.modules["torch._dynamo"].graph_break()


def disable(function: Callable, recursive: bool, reason: str | None) -> Callable:
    """`function`, not looked at by TorchDynamo."""
    return torch.compiler.disable(function, recursive, reason=reason)


def allow_in_graph(function: Callable) -> Callable:
    """`function` as one node of TorchDynamo's graph."""
    return torch.compiler.allow_in_graph(function)


def assume_constant(function: Callable) -> None:
    """Mark `function` as torch.compiler.assume_constant_result does."""
    function._dynamo_marked_constant = True


def reset() -> None:
    """Forget what TorchDynamo compiled."""
    if _loaded():
        torch.compiler.reset()
