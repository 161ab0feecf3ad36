"""PyTorch's own controls, where the program uses them: they act on Ingot's own capture as well.

`torch.compiler.set_stance` and `reset`, `torch._dynamo.config` and `error_on_graph_break` keep what
they were told in modules of TorchDynamo's. Nothing is imported for them: `watch` waits until the
program itself has loaded TorchDynamo, and then says to the extension where to look. What decorators
say of functions (`disable`, `assume_constant_result`, `allow_in_graph`) the extension reads from
the functions (src/capture/torch_words.h).

A call looks whether the stance is another (one comparison); the rest is asked where something is
about to be recorded.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

_DYNAMO = "torch._dynamo"


@functools.cache
def watch() -> None:
    """Follow PyTorch's controls, from now or from when the program loads TorchDynamo."""
    if loaded():
        attach()
    else:
        sys.meta_path.insert(0, _Waiting())


def loaded() -> bool:
    """Whether the program has loaded TorchDynamo, wholly."""
    module = sys.modules.get(_DYNAMO)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


class _Waiting(importlib.abc.MetaPathFinder):
    """Sees TorchDynamo's import, which it leaves to others."""

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del spec.loader.exec_module
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)  # it may be tried again
                raise
            attach()

        spec.loader.exec_module = exec_module
        return spec


class _Forgets:
    """Stands among TorchDynamo's backends, which `torch._dynamo.reset` asks to forget as well."""

    def reset(self) -> None:
        from . import _ingot

        _ingot.capture_forget()


_forgets = _Forgets()


def attach() -> None:
    """Say to the extension where the controls are. TorchDynamo is loaded."""
    from . import _ingot, _own_door, _stance

    frames = sys.modules["torch._dynamo.eval_frame"]
    flags = sys.modules.get("torch._dynamo.utils")
    rules = sys.modules.get("torch._dynamo.trace_rules")
    allowed = getattr(rules, "_allowed_callable_ids", None)
    if allowed is not None:
        0 in allowed  # noqa: B015  (makes the set)
    _own_door.mark_known()
    _stance.tell_dynamo()
    _ingot.capture_controls(
        vars(frames),
        vars(flags) if hasattr(flags, "_error_on_graph_break") else None,
        getattr(allowed, "function_ids", None),
        _stance.follow_dynamo,
        settings,
    )
    settings()


def settings() -> tuple[bool, int, int, bool | None]:
    """What `torch._dynamo.config` says: whether nothing is to be compiled, how many recordings may
    serve one call and one function (-1: not said), and what the option `dynamic` would be."""
    backends = getattr(sys.modules["torch._dynamo.eval_frame"], "cached_backends", None)
    if backends is not None:
        backends.setdefault(id(_forgets), _forgets)
    config = sys.modules["torch._dynamo.config"]
    dynamic = None
    if not getattr(config, "assume_static_by_default", True):
        dynamic = True
    elif not getattr(config, "automatic_dynamic_shapes", True):
        dynamic = False
    return (
        bool(getattr(config, "disable", False)),
        getattr(config, "recompile_limit", -1),
        getattr(config, "accumulated_recompile_limit", -1),
        dynamic,
    )


def suppresses_errors() -> bool:
    """Whether `torch._dynamo.config` has a graph run eagerly where a backend fails."""
    return loaded() and bool(getattr(sys.modules["torch._dynamo.config"], "suppress_errors", False))
