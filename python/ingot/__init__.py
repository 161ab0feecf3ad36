"""Ingot: a compiler for PyTorch programs.

`model = ingot.compile(model)` has the signature and the meaning of `torch.compile`. The names of
`torch.compiler` and those of `torch._dynamo` that programs use are here as well, so that a program
moves by changing one word. Everything public is in `__all__`; each name is defined, with its
documentation, in the small file of its subject.
"""

from pathlib import Path as _Path

from ._backend import Stats, dynamo_backend, stats
from ._built_for import check as _check_build
from ._compile import compile, compile_in_place
from ._control import (
    allow_in_graph,
    assume_constant_result,
    disable,
    graph_break,
    is_compiling,
    reset,
)
from ._errors import (
    BackendCompilerFailed,
    ConstraintViolationError,
    FailOnRecompileLimitHit,
    InvalidBackend,
    Unsupported,
    UserError,
)
from ._explain import Explanation, explain
from ._marks import mark_dynamic, mark_static, maybe_mark_dynamic
from ._module import CompiledModule
from ._options import list_mode_options, list_options
from ._registry import list_backends, lookup_backend, register_backend
from ._stance import set_stance

_check_build(_Path(__file__).parent)  # before anything can load the extension

__version__ = "0.1.0"
__all__ = [
    "BackendCompilerFailed",
    "CompiledModule",
    "ConstraintViolationError",
    "Explanation",
    "FailOnRecompileLimitHit",
    "InvalidBackend",
    "Stats",
    "Unsupported",
    "UserError",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_in_place",
    "disable",
    "dynamo_backend",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "list_mode_options",
    "list_options",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "maybe_mark_dynamic",
    "register_backend",
    "reset",
    "set_stance",
    "stats",
]
