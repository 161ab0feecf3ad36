"""What eager code can ask of a tensor: one table, for promises, replayed results and eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _formats(t: torch.Tensor) -> list[bool]:
    fits = {torch.channels_last: 4, torch.channels_last_3d: 5}
    return [t.is_contiguous(memory_format=f) for f in FORMATS if fits.get(f, t.dim()) == t.dim()]


# A row is what is asked and how; its answer is a plain value.
PROPERTIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "class": lambda t: type(t).__name__,
    "shape": lambda t: tuple(t.shape),
    "stride": lambda t: t.stride(),
    "dim": lambda t: t.dim(),
    "numel": lambda t: t.numel(),
    "dtype": lambda t: str(t.dtype),
    "device": lambda t: str(t.device),
    "layout": lambda t: str(t.layout),
    "itemsize": lambda t: (t.itemsize, t.element_size(), t.nbytes),
    "is_contiguous": _formats,
    "is_conj": lambda t: t.is_conj(),
    "is_neg": lambda t: t.is_neg(),
    "kinds": lambda t: (t.is_complex(), t.is_floating_point(), t.is_signed()),
    "layouts": lambda t: (t.is_sparse, t.is_quantized, t.is_mkldnn, t.is_nested, t.is_meta),
    "is_inference": lambda t: t.is_inference(),
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "has_history": lambda t: t.grad_fn is not None,
    "retains_grad": lambda t: t.retains_grad,
    "grad": lambda t: t.grad is None if t.is_leaf else None,
    "version": lambda t: None if t.is_inference() else t._version,
    "is_shared": lambda t: t.is_shared(),
    "is_pinned": lambda t: t.is_pinned(),
}

# Asked without a break: what a promise answers by itself.
WITHOUT_BREAK = (
    "class",
    "shape",
    "stride",
    "dim",
    "numel",
    "dtype",
    "device",
    "layout",
    "itemsize",
    "is_contiguous",
    "is_conj",
    "is_neg",
    "kinds",
    "layouts",
    "is_inference",
    "requires_grad",
    "is_leaf",
)


def ask(t: torch.Tensor, names: tuple[str, ...] = tuple(PROPERTIES)) -> dict[str, Any]:
    """The answers by name; one that PyTorch refuses is its message."""
    answers = {}
    for name in names:
        try:
            answers[name] = PROPERTIES[name](t)
        except RuntimeError as error:
            answers[name] = str(error).partition(".")[0]
    return answers
