"""What the training tests share: gradients of one step, and the judgement against float64.

A compiled gradient is right when it is at most twice as far from the float64 gradient as eager's,
plus a few roundings of the largest element: the measure all tests here use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

import ingot

Tensors = list[torch.Tensor | None]


def double(value):
    """The same structure with float tensors in float64; modules are copied."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, torch.Tensor):
        wide = value.detach().double() if value.is_floating_point() else value.detach().clone()
        return wide.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(double(v) for v in value)
    if isinstance(value, dict):
        return {k: double(v) for k, v in value.items()}
    return value


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def strides(t: torch.Tensor) -> list[int]:
    """Of the dims that are walked along."""
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]


def assert_as_good(
    got: Tensors,
    eager: Tensors,
    exact: Tensors,
    names: Sequence[str] | None = None,
    extra: float = 0.0,
) -> None:
    """Same Nones, types and strides, and at most twice eager's error against `exact`, plus
    `extra`."""
    names = names or [str(k) for k in range(len(eager))]
    for name, g, e, x in zip(names, got, eager, exact, strict=True):
        assert (g is None) == (e is None), name
        if e is None:
            continue
        assert (g.dtype, g.shape, g.stride()) == (e.dtype, e.shape, e.stride()), name
        assert torch.equal(g.isnan(), e.isnan()), name
        scale = x.abs().max().item() if x.numel() else 0.0
        room = extra + 2 * worst(e, x) + 8 * torch.finfo(e.dtype).eps * max(scale, 1e-6)
        assert not worst(g, x) > room, f"{name}: {worst(g, x)} > {room}, eager {worst(e, x)}"


def compile_all(function: Callable) -> Callable:
    """Compiled, without any way back to eager."""
    return ingot.compile(function, fullgraph=True, options={"fallback": False})


def gradients(
    function: Callable[..., torch.Tensor], leaves: Sequence[torch.Tensor], seed: int = 0
) -> tuple[torch.Tensor, Tensors]:
    """The loss that `function()` gives and the gradients of `leaves`."""
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(seed)
    loss = function()
    loss.backward()
    return loss.detach(), [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
