"""What one call of `ingot.compile` asked for, as a value that is passed down and can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The parameters of `ingot.compile` in `torch.compile`'s names; `backend` None is Ingot."""

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable | None = None
    mode: str | None = None
    options: Mapping[str, Any] | None = field(default=None)
    name: str | None = None
    recompile_limit: int | None = None
    isolate_recompiles: bool = False
    shapes_spec: Any = None

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments of `ingot.compile`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}
