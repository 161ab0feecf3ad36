"""Backends by name. A backend is a callable `(fx.GraphModule, list of tensors) -> callable`.

`ingot` is the compiler itself and the default; `eager` and `aot_eager` run the graph as it is. More
come from `register_backend`, from the entry points of the group `torch_dynamo_backends`, and from
what the program registered with PyTorch. PyTorch's own compilers stay reachable by their names.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from . import _checks
from ._backend import dynamo_backend
from ._errors import InvalidBackend

_registered: dict[str, Callable] = {"ingot": dynamo_backend}
_tags: dict[str, tuple[str, ...]] = {"ingot": ()}

# Names that only torch.compile can serve.
OF_TORCH = frozenset({"inductor", "cudagraphs", "openxla", "tvm"})


def register_backend(
    compiler_fn: Callable | None = None, name: str | None = None, tags: Sequence[str] = ()
) -> Callable:
    """Give a backend a name (its own by default); also a decorator, with and without arguments.

    Raises AssertionError when it is no callable or the name is taken.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(compiler_fn):
        raise AssertionError(f"compiler_fn must be callable, got {type(compiler_fn)}")
    name = name or compiler_fn.__name__
    if name in _registered:
        raise AssertionError(f"duplicate name: {name}")
    _registered[name] = compiler_fn
    _tags[name] = tuple(tags)
    return compiler_fn


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="torch_dynamo_backends")}


def _torchs() -> Any:
    """PyTorch's registry, where the program itself has loaded it."""
    return sys.modules.get("torch._dynamo.backends.registry")


def lookup_backend(compiler_fn: str | Callable) -> Callable:
    """The callable behind a name; a callable is itself. Raises InvalidBackend."""
    if not isinstance(compiler_fn, str):
        return compiler_fn
    if compiler_fn in _registered:
        return _registered[compiler_fn]
    if compiler_fn in _entry_points():
        return register_backend(_entry_points()[compiler_fn].load(), compiler_fn)
    registry = _torchs()
    if registry is not None and compiler_fn in registry._BACKENDS:
        return registry.lookup_backend(compiler_fn)
    known = [*_registered, *_entry_points(), *OF_TORCH]
    raise InvalidBackend(compiler_fn, _checks.nearest(compiler_fn, known))


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Names that `ingot.compile(backend=...)` knows, without those with one of the tags."""
    excluded = set(exclude_tags or ())
    names = {name for name in _registered if not excluded.intersection(_tags[name])}
    return sorted(names | set(_entry_points()))


def canonical(backend: str | Callable | None) -> str | Callable | None:
    """None for Ingot itself, a name for PyTorch's own compilers, a callable for all others."""
    if backend is None or backend in ("ingot", dynamo_backend):
        return None
    if isinstance(backend, str) and backend in OF_TORCH:
        return backend
    backend = lookup_backend(backend)
    if not callable(backend):
        raise TypeError(f"backend must be a string or callable, got {type(backend)}")
    return None if backend is dynamo_backend else backend


@functools.partial(register_backend, tags=("debug",))
def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable:
    """The graph, run as it is."""
    return gm.forward


@functools.partial(register_backend, tags=("debug",))
def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable:
    """The graph of ATen operators, run as it is."""
    return gm.forward
