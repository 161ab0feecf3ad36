"""`ingot.compile`: from a function, a method, a class or a module to its compiled form.

What captures the program is behind one door (`_doors.py`); here is only what is the same for every
door: the forms of the call, the errors, the stance, the marks on the result.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch

from . import _checks, _doors, _options, _registry
from ._module import wrap_module
from ._original import mark, original
from ._settings import Settings


def compile(
    model: Callable | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    dynamic_shapes: Any = None,
) -> Callable:
    """Compile a module or a function; also a decorator, with and without arguments.

    The parameters are `torch.compile`'s. `backend` is Ingot unless another is named: a name of
    `list_backends()`, or a callable that takes an `fx.GraphModule` and examples. `shapes_spec` is
    called `dynamic_shapes` from PyTorch 2.14 on; TorchDynamo's capture follows it, Ingot's own
    does not and says so.

    A module comes back as an object of its own class that shares everything with the original (see
    `CompiledModule`); a function as a function with its name and signature; a class is changed in
    place so that calls of its objects are compiled.

    Raises RuntimeError for `mode` together with `options` and for an unknown mode or option,
    InvalidBackend for an unknown backend, TypeError and ValueError for an argument of the wrong
    type or out of range.
    """
    _checks.each(
        _checks.truth,
        {"fullgraph": fullgraph, "disable": disable, "isolate_recompiles": isolate_recompiles},
    )
    _checks.truth("dynamic", dynamic, none=True)
    _checks.each(_checks.text, {"mode": mode, "name": name})
    _checks.whole("recompile_limit", recompile_limit, least=0)
    _checks.shapes("shapes_spec", shapes_spec, dynamic)
    _checks.shapes("dynamic_shapes", dynamic_shapes, dynamic)
    if shapes_spec is not None and dynamic_shapes is not None:
        raise ValueError("shapes_spec and dynamic_shapes are two names of one parameter")
    settings = Settings(
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=_registry.canonical(backend),
        mode=mode,
        options=options,
        name=name,
        recompile_limit=recompile_limit,
        isolate_recompiles=isolate_recompiles,
        shapes_spec=shapes_spec if dynamic_shapes is None else dynamic_shapes,
    )
    if settings.backend is None:
        _options.resolve(mode, options)  # complains now, not at the first call
    elif mode is not None and options is not None:
        raise RuntimeError(_options.BOTH)
    if model is None:
        return functools.partial(_compile, settings=settings, disable=disable)
    return _compile(model, settings, disable)


def compile_in_place(module: torch.nn.Module, **arguments: Any) -> None:
    """Compile the calls of `module` itself, as `module.compile()` does with `torch.compile`.

    `arguments` are those of `ingot.compile`. The object stays what it is; hooks are compiled too.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}")
    module._compiled_call_impl = compile(module._call_impl, **arguments)


def _switched_off() -> bool:
    return os.environ.get("TORCH_COMPILE_DISABLE") == "1" or (
        os.environ.get("TORCHDYNAMO_DISABLE") == "1"
    )


def _compile(model: Any, settings: Settings, disable: bool = False) -> Any:
    if model is None:
        raise RuntimeError("Model can't be None")
    if disable or _switched_off():
        return model
    model = original(model)
    if isinstance(model, torch.jit.RecursiveScriptModule):
        raise RuntimeError(
            "ingot.compile does not compile torch.jit.script or torch.jit.freeze models: "
            "compile the original eager module instead"
        )
    if isinstance(model, torch.nn.Module):
        return wrap_module(model, settings, compile_callable)
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(_compile(model.__func__, settings))
    if inspect.isclass(model):
        model.__call__ = _compile(model.__call__, settings)
        if issubclass(model, torch.nn.Module):
            model._call_impl = _compile(model._call_impl, settings)
        return model
    if not callable(model):
        raise AssertionError(f"A callable function is expected, but {type(model)} is provided.")
    return compile_callable(model, settings)


def compile_callable(function: Callable, settings: Settings) -> Callable:
    """A compiled callable with the name and the signature of `function`."""
    compiled = _doors.current(settings.backend, settings.options).compile(function, settings)
    mark(compiled, function, settings)
    return compiled
