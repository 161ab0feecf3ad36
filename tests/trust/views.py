"""Random programs over views: chains of views, writes through them, what the result is asked.

A program is data (a list of steps) and so can be run by eager and by a compiled function, and be
printed. Steps are (name, arguments); what a step cannot be applied to is left out when the program
is made, on a real tensor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

Step = tuple[str, tuple]

# ---- views: each takes a tensor and plain arguments ----

VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "conj": lambda t: t.conj(),
    "real": lambda t: t.real,
    "imag": lambda t: t.imag,
    "neg": lambda t: torch._neg_view(t),
    "adjoint": lambda t: t.mH,
    "view_as_real": torch.view_as_real,
    "view_as_complex": torch.view_as_complex,
    "select": lambda t, d, i: t.select(d, i),
    "slice": lambda t, d, a, b, s: t.movedim(d, 0)[a:b:s].movedim(0, d),
    "transpose": lambda t, a, b: t.transpose(a, b),
    "flatten": lambda t: t.view(-1),
    "unsqueeze": lambda t, d: t.unsqueeze(d),
    "squeeze": lambda t: t.squeeze(),
    "expand": lambda t, n: t.unsqueeze(0).expand(n, *t.shape),
    "diagonal": lambda t: t.diagonal(),
    "unfold": lambda t, d, n: t.unfold(d, n, n),
    "split": lambda t, n, i: t.split(n)[i],
    "chunk": lambda t, n, i: t.chunk(n)[i],
    "unbind": lambda t, i: t.unbind(0)[i],
    "tensor_split": lambda t, n, i: t.tensor_split(n)[i],
    "detach": lambda t: t.detach(),
    "alias": lambda t: t[...],
}


def _resized(t: torch.Tensor) -> torch.Tensor:
    return t.resolve_conj().resolve_neg()


# ---- what is not a view ----

COPIES: dict[str, Callable[..., torch.Tensor]] = {
    "clone": lambda t: t.clone(),
    "resolve": _resized,
    "times": lambda t: t * 1.5,
    "contiguous": lambda t: t.contiguous(),
    "conj_physical": torch.conj_physical,
    "empty_like": lambda t: torch.empty_like(t).copy_(t),
    "double": lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64),
}

WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "mul_": lambda t: t.mul_(3),
    "add_": lambda t: t.add_(1),
    "neg_": lambda t: t.neg_(),
    "zero_": lambda t: t.zero_(),
    "copy_": lambda t: t.copy_(t.detach().clone() * 2),
    "setitem": lambda t: t.__setitem__(..., 2.0),
    "conj_physical_": lambda t: t.conj_physical_(),
    "square_": lambda t: t.square_(),
    "add_itself": lambda t: t.add_(t),
    "div_": lambda t: t.div_(t.detach().abs() + 2),
}


def run(steps: list[Step], x: torch.Tensor, last: bool = True) -> list[torch.Tensor]:
    """The tensors along the chain; a write is made to the latest one."""
    chain = [x]
    for name, arguments in steps:
        if name == "fresh":
            chain.append(chain[0] * 1)
        elif name == "no_grad":
            with torch.no_grad():
                chain.append(VIEWS[arguments[0]](chain[-1], *arguments[1:]))
        elif name in WRITES:
            WRITES[name](chain[-1 - arguments[0]])
        else:
            chain.append((VIEWS.get(name) or COPIES[name])(chain[-1], *arguments))
    return chain if not last else chain[-1:]


def _arguments(r: random.Random, name: str, t: torch.Tensor) -> tuple:
    n = max(t.dim(), 1)
    dims = (r.randrange(n), r.randrange(n))
    size = t.shape[dims[0]] if t.dim() else 1
    first = t.shape[0] if t.dim() else 1
    match name:
        case "select":
            return (dims[0], r.randrange(max(size, 1)))
        case "slice":
            return (dims[0], r.randrange(2), max(size - r.randrange(2), 1), r.choice([1, 1, 2]))
        case "transpose":
            return dims
        case "unsqueeze":
            return (r.randrange(t.dim() + 1),)
        case "expand":
            return (r.choice([1, 2]),)
        case "unfold":
            return (dims[0], r.choice([1, 2]))
        case "split" | "chunk" | "tensor_split":
            return (r.choice([1, 2]), 0 if first < 3 else r.randrange(2))
        case "unbind":
            return (r.randrange(max(first, 1)),)
    return ()


def make(
    r: random.Random, x: torch.Tensor, length: int, *, writes: bool = True, no_grad: bool = True
) -> list[Step]:
    """A program of about `length` steps that eager can run as far as shapes and types go."""
    steps: list[Step] = [("fresh", ())] if r.random() < 0.8 else []
    names = [*VIEWS, "conj", "imag", "real", "view_as_real", "select", "slice"]
    for _ in range(length):
        t = run(steps, x.detach().clone(), last=False)[-1]
        kind = r.random()
        if kind < 0.15:
            steps.append((r.choice(list(COPIES)), ()))
        elif kind < 0.3 and writes and steps:
            steps.append((r.choice(list(WRITES)), (r.choice([0, 0, 0, 1]),)))
        else:
            name = r.choice(names)
            arguments = _arguments(r, name, t)
            if no_grad and r.random() < 0.08:
                name, arguments = "no_grad", (name, *arguments)
            steps.append((name, arguments))
        try:
            if run(steps, x.detach().clone())[-1].numel() == 0:
                steps.pop()
        except (RuntimeError, IndexError, NotImplementedError):
            steps.pop()
    return steps


def inputs(r: random.Random) -> tuple[torch.Tensor, Any]:
    """Random contents: all numbers are small integers, so that results are exact."""
    g = torch.Generator().manual_seed(r.randrange(1 << 30))
    sizes = r.choice([(4,), (4, 2), (2, 4), (3, 2, 2)])

    def numbers() -> torch.Tensor:
        return torch.randint(-4, 5, sizes, generator=g).double()

    dtype = r.choice([torch.complex64, torch.complex64, torch.complex128, torch.float32])
    x = torch.complex(numbers(), numbers()).to(dtype) if dtype.is_complex else numbers().to(dtype)
    return x, dtype
