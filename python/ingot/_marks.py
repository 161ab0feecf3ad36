"""Marks on tensors: which sizes will change and which never do.

Kept as attributes of the tensor by the names that PyTorch's own marks have, so that
`torch._dynamo.mark_dynamic` means the same to Ingot and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from . import _checks


class DimRange(NamedTuple):
    """A marked dim with the bounds the user gave."""

    dim: int
    min: int | None
    max: int | None


def _each(t: torch.Tensor, index: Any, mark: Callable[[int], None]) -> None:
    """`mark` for each dim that `index` names, from the front; nothing is marked if one is none."""
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"expected a tensor to mark, got {t!r} of type {type(t).__name__}")
    if isinstance(index, int) and not isinstance(index, bool):
        index = (index,)
    if not isinstance(index, (list, tuple)):
        raise AssertionError(f"Expected index to be int, list, or tuple, got {type(index)}")
    for one in index:
        _checks.whole("index", one, none=False)
        if not -t.dim() <= one < t.dim():
            raise IndexError(
                f"index is {one}: a tensor of {t.dim()} dims has {-t.dim()} to {t.dim() - 1}"
            )
    for one in index:
        mark(one % t.dim())


def _attribute(t: torch.Tensor, name: str, empty: Callable[[], Any]) -> Any:
    if not hasattr(t, name):
        setattr(t, name, empty())
    return getattr(t, name)


def mark_dynamic(
    t: torch.Tensor,
    index: int | Sequence[int],
    *,
    hint_override: int | None = None,
    min: int | None = None,
    max: int | None = None,
    specialize_on: list[Any] | None = None,
) -> None:
    """Say that size `index` of `t` changes from call to call, between `min` and `max`.

    A program that fixes such a size is an error (ConstraintViolationError). Raises TypeError,
    IndexError or ValueError for what names no size, or no range.
    """
    _checks.whole("hint_override", hint_override, least=0)
    _checks.whole("min", min, least=0)
    _checks.whole("max", max, least=0)
    if min is not None and max is not None and min > max:
        raise ValueError(f"min is {min} and max is {max}: min is at most max")
    if specialize_on is not None and not isinstance(specialize_on, (list, tuple)):
        raise TypeError(f"specialize_on is {specialize_on!r}: a list of callables or None")

    def mark(dim: int) -> None:
        _attribute(t, "_dynamo_dynamic_indices", set).add(dim)
        _attribute(t, "_dynamo_dynamic_range", set).add(DimRange(dim, min, max))
        hints = _attribute(t, "_dynamo_hint_overrides", dict)
        if hint_override:
            hints[dim] = hint_override
        _attribute(t, "_specialize_on", dict)[dim] = specialize_on or []
        t._has_dynamo_dim_marking = True

    _each(t, index, mark)


def maybe_mark_dynamic(t: torch.Tensor, index: int | Sequence[int]) -> None:
    """As `mark_dynamic`, but a program that fixes the size is compiled for the fixed size."""

    def mark(dim: int) -> None:
        _attribute(t, "_dynamo_weak_dynamic_indices", set).add(dim)
        t._has_dynamo_dim_marking = True

    _each(t, index, mark)


def mark_static(t: Any, index: int | Sequence[int] | None = None) -> Any:
    """Say that size `index` of `t` (all sizes: None) never becomes symbolic.

    Also takes a class of modules, whose attributes are then taken as constants, as they always are.
    """
    if isinstance(t, type) and issubclass(t, torch.nn.Module):
        t._dynamo_marked_static = True
        return t
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static expects a tensor/nn.Module class but received {type(t)}")

    def mark(dim: int) -> None:
        _attribute(t, "_dynamo_static_indices", set).add(dim)
        t._has_dynamo_dim_marking = True

    _each(t, list(range(t.dim())) if index is None else index, mark)
    return None
