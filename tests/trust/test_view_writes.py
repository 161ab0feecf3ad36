"""Views of complex and real tensors, writes through them, and gradients: random programs.

Each program runs in eager and compiled, three times with other numbers, with and without a
gradient. Compared: results with everything that a tensor can be asked, the input afterwards,
gradients, and exceptions with their messages. `python -m pytest ... ` runs a part of what
`python tests/trust/test_view_writes.py --cases 10000 --seed 1` does.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot

sys.path.insert(0, str(Path(__file__).parent))
import views
from properties import ask


def _outcome(
    function: Any, x: torch.Tensor, grad: bool, whole: bool
) -> tuple[list, list[torch.Tensor]]:
    """What a call does, as plain facts and the tensors to compare."""
    x = x.clone().requires_grad_(grad)
    weight = torch.ones((), dtype=x.dtype, requires_grad=True)
    try:
        results = function(x)
    except Exception as error:
        return [type(error).__name__, str(error)], [x.detach()]
    facts: list = [ask(t) for t in results]
    for t, answers in zip(results, facts, strict=True):
        if t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            # The first call writes to an input twice: while it is recorded, and when it runs.
            answers["version"] = answers["version"] != 0
    tensors = [t.detach().resolve_conj().resolve_neg().clone() for t in results]
    last = results[-1]
    if grad and facts[-1]["requires_grad"] is True and facts[-1]["has_history"] is True:
        if last.dtype in (torch.complex64, torch.complex128):
            loss = (last * (1 + 2j)).abs().square().sum()
        else:
            loss = (last * 3).square().sum()
        try:
            (g,) = torch.autograd.grad(loss, x, allow_unused=True, retain_graph=True)
        except RuntimeError:
            return [*facts, "its gradient raises"], [x.detach()]
        facts.append(None if g is None else str(g.dtype))
        if g is not None:
            tensors.append(g.resolve_conj().resolve_neg())
    try:
        last.mul_(weight.real.to(last.dtype) if not last.is_complex() else weight.to(last.dtype))
        facts.append("written")
    except RuntimeError as error:
        facts.append(str(error).partition(" is a view")[2] or str(error))
    tensors.append(x.detach())
    if whole:
        tensors += [t.detach().resolve_conj().resolve_neg() for t in results]
    return facts, tensors


def _difference(a: tuple[list, list], b: tuple[list, list]) -> str:
    if a[0] != b[0]:
        for p, q in zip(a[0], b[0], strict=False):
            if isinstance(p, dict) and isinstance(q, dict):
                p, q = ({k: v for k, v in p.items() if q.get(k) != v}, q)
                if p:
                    return f"facts: {p} and { ({k: q.get(k) for k in p}) }"
            elif p != q:
                return f"{p!r} and {q!r}"
        return f"{a[0]} and {b[0]}"
    for i, (p, q) in enumerate(zip(a[1], b[1], strict=True)):
        if p.shape != q.shape or p.dtype != q.dtype:
            return f"tensor {i}: {p.dtype} {p.shape} and {q.dtype} {q.shape}"
        if not torch.allclose(p, q, rtol=1e-5, atol=1e-6, equal_nan=True):
            return f"tensor {i}: {p.tolist()} and {q.tolist()}"
    return ""


def case(seed: int) -> tuple[str, str]:
    """Runs one random program; what differs, and the program as text."""
    r = random.Random(seed)
    x, _ = views.inputs(r)
    steps = views.make(r, x, r.randrange(1, 7))
    grad, whole = r.random() < 0.6, r.random() < 0.4
    text = f"seed {seed}: {x.dtype} {tuple(x.shape)} grad={grad} whole={whole} {steps}"

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return views.run(steps, x, last=not whole)

    compiled = ingot.compile(program)
    for turn in range(3):
        given = x + turn
        expected = _outcome(program, given, grad, whole)
        found = _outcome(compiled, given, grad, whole)
        if different := _difference(expected, found):
            return f"call {turn}: {different}", text
    return "", text


@pytest.mark.parametrize("part", range(10))
def test_random_programs(part: int) -> None:
    for seed in range(part * 25, part * 25 + 25):
        different, text = case(seed)
        assert not different, f"{text}\n{different}"
        ingot.reset()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wrong = 0
    for seed in range(options.seed, options.seed + options.cases):
        different, text = case(seed)
        ingot.reset()
        if different:
            wrong += 1
            print(f"{text}\n    {different}", flush=True)
    print(f"{options.cases} programs, {wrong} wrong")


if __name__ == "__main__":
    main()
