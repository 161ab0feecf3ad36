"""Gradients of results that other results are computed from, as features kept by a hook are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot


class Net(nn.Module):
    """Gives what it computes on the way: a chain of features, the last of them logits."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 6)
        self.past, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.inplace = inplace

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        early = nn.functional.relu(self.first(x), inplace=self.inplace)
        late = torch.tanh(self.second(early))
        logits = self.last(late + self.past(x))
        return {"early": early, "late": late, "logits": logits, "loss": logits.square().mean()}


def _grads(net: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def _asked_alone(net: Net, out: dict) -> Any:
    return torch.autograd.grad(out["logits"].sum(), [out["early"], out["late"]])


def _asked_twice(net: Net, out: dict) -> Any:
    first = torch.autograd.grad(out["loss"], out["logits"], retain_graph=True)
    return first + torch.autograd.grad(out["loss"], [out["early"], net.first.weight])


def _kept(net: Net, out: dict) -> Any:
    out["early"].retain_grad()
    out["late"].retain_grad()
    out["loss"].backward()
    return [out["early"].grad, out["late"].grad, *_grads(net)]


def _changed_by_a_hook(net: Net, out: dict) -> Any:
    out["late"].register_hook(lambda g: g * 3)
    (out["loss"] + out["early"].sum()).backward()
    return _grads(net)


def _with_a_graph(net: Net, out: dict) -> Any:
    (g,) = torch.autograd.grad(out["loss"], out["late"], create_graph=True)
    g.square().sum().backward()
    return [g, *_grads(net)]


def _plainly(net: Net, out: dict) -> Any:
    (out["loss"] * 2 + out["logits"].sum() + out["early"].square().sum()).backward()
    return _grads(net)


WAYS = [_asked_alone, _asked_twice, _kept, _changed_by_a_hook, _with_a_graph, _plainly]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    return a == b


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_of_features(way: Callable, inplace: bool) -> None:
    x = torch.randn(5, 4)
    expected = Net(inplace)
    compiled_net = Net(inplace)
    compiled = ingot.compile(compiled_net)
    for _ in range(3):
        expected.zero_grad()
        compiled_net.zero_grad()
        wanted, found = way(expected, expected(x)), way(compiled_net, compiled(x))
        assert len(wanted) == len(found)
        assert all(map(_alike, wanted, found)), (wanted, found)
    assert ingot.stats().training > 0


def test_a_feature_that_a_module_s_hook_has_kept() -> None:
    def run(compiler: Callable) -> list[torch.Tensor]:
        net, kept, found = Net(), {}, []
        net.second.register_forward_hook(lambda m, i, o: kept.update(features=o))
        called = compiler(net)
        for _ in range(3):
            logits = called(torch.ones(2, 4))["logits"]
            weights = torch.autograd.grad(logits[:, 1].sum(), kept["features"])[0]
            found.append((weights.mean(0) * kept["features"]).sum().detach())
        return found

    assert all(map(torch.allclose, run(lambda net: net), run(ingot.compile)))


def test_dropout_is_drawn_once() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = nn.functional.dropout(x * 2, 0.5)
        return y, (y * x).sum()

    compiled = ingot.compile(f)
    for _ in range(2):
        x = torch.randn(100, requires_grad=True)
        y, loss = compiled(x)
        before = torch.get_rng_state()
        (g,) = torch.autograd.grad(loss, y, retain_graph=True)
        assert torch.equal(before, torch.get_rng_state())
        assert torch.allclose(g, x)
        y.retain_grad()
        loss.backward()
        mask = (y != 0) * 2.0
        assert torch.allclose(x.grad, y.detach() + 2 * mask * x, atol=1e-5)
