"""Ingot: a compiler for PyTorch programs.

`model = ingot.compile(model)` has the signature and the meaning of `torch.compile`. Today Dynamo
captures the Python (through its public backend interface) and everything behind it is Ingot's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ._backend import Stats, dynamo_backend, stats
from ._options import list_mode_options, list_options, resolve

__version__ = "0.1.0"
__all__ = ["Stats", "compile", "dynamo_backend", "list_mode_options", "list_options", "stats"]

_TORCH_PARAMETERS = frozenset(inspect.signature(torch.compile).parameters)


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
) -> Callable:
    """Compile a module or a function; also a decorator, with and without arguments.

    The parameters are `torch.compile`'s. `backend` is Ingot unless another is named. Raises
    RuntimeError for `mode` together with `options`, and for an unknown mode or option.
    """
    own = backend is None or backend in ("ingot", dynamo_backend)
    if own:
        resolve(mode, options)  # complains now, not at the first call
    arguments = {
        "fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "options": options, "name": name,
        "disable": disable, "recompile_limit": recompile_limit, "shapes_spec": shapes_spec,
        "isolate_recompiles": isolate_recompiles,
        "backend": dynamo_backend if own else backend,
    }  # fmt: skip
    # Older supported versions of PyTorch lack the newest parameters.
    for key in [key for key in arguments if key not in _TORCH_PARAMETERS]:
        if arguments.pop(key) not in (None, False):
            raise RuntimeError(
                f"torch.compile of PyTorch {torch.__version__} has no parameter {key}"
            )
    return torch.compile(model, **arguments)
