"""Results that are views of one another, or of something nobody returns, as eager's are."""

from __future__ import annotations

import copy

import pytest
import torch
from judge import compile_all
from torch import nn

import ingot


def first_of(y):
    return y, y[:, 0]


def only_parts(y):
    return y.chunk(3, dim=-1)


def spread(y):
    return y.mean(1, keepdim=True).expand(-1, 5, -1)


def all_the_ways(y):
    turned = y.transpose(0, 1)
    return turned, y[..., 2:7:2], y.detach(), turned


def reshaped(y):
    whole = y.view(-1, 12)
    return whole, whole[3:], y.sum()


def written(y):
    part = y[:, 1:]
    part.mul_(2)
    return part, y


CASES = [first_of, only_parts, spread, all_the_ways, reshaped, written]


class Net(nn.Module):
    def __init__(self, results) -> None:
        super().__init__()
        self.layer, self.norm, self.results = nn.Linear(6, 12), nn.LayerNorm(12), results

    def forward(self, x):
        return self.results(self.norm(self.layer(x).relu()))


def leaves(results):
    results = results if isinstance(results, tuple) else (results,)
    return [t for t in results if t.requires_grad]


@pytest.mark.parametrize("results", CASES)
@pytest.mark.parametrize("used", ["all", "last"])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients(results, used, twice):
    torch.manual_seed(0)
    eager = Net(results).double()
    net = copy.deepcopy(eager)
    compiled = compile_all(net)
    for call in range(3):
        rows = 4 + call // 2  # with other sizes, too
        x = torch.randn(rows, 5, 6, dtype=torch.float64)
        shown = []
        for function, module in ((eager, eager), (compiled, net)):
            module.zero_grad()
            given = x.clone().requires_grad_()
            out = function(given)
            parts = leaves(out)
            parts = parts[-1:] if used == "last" else parts
            loss = sum((p.sin() * (k + 1)).sum() for k, p in enumerate(parts))
            if twice:
                (g,) = torch.autograd.grad(loss, given, create_graph=True)
                loss = loss + g.square().sum()
            loss.backward()
            out = out if isinstance(out, tuple) else (out,)
            shown.append((out, given.grad, [p.grad for p in module.parameters()]))
        (a, ga, pa), (b, gb, pb) = shown
        for u, v in zip(a, b, strict=True):
            torch.testing.assert_close(v, u)
            assert (u.stride(), u.requires_grad) == (v.stride(), v.requires_grad)
            for s, t in zip(a, b, strict=True):
                same = u.untyped_storage().data_ptr() == s.untyped_storage().data_ptr()
                assert same == (v.untyped_storage().data_ptr() == t.untyped_storage().data_ptr())
                assert (u is s) == (v is t)
        torch.testing.assert_close(gb, ga)
        for u, v in zip(pa, pb, strict=True):
            torch.testing.assert_close(v, u)


def test_a_write_to_one_is_seen_by_the_other():
    torch.manual_seed(0)
    eager = Net(first_of).double()
    net = copy.deepcopy(eager)
    shown, x = [], torch.randn(2, 5, 6, dtype=torch.float64)
    for function, module in ((eager, eager), (compile_all(net), net)):
        whole, first = function(x)
        first.add_(1)
        whole[:, 1:].mul_(3)
        whole.square().sum().backward()
        shown.append((whole, first, [p.grad for p in module.parameters()]))
    for u, v in zip(shown[0][:2], shown[1][:2], strict=True):
        torch.testing.assert_close(v, u)
    for u, v in zip(shown[0][2], shown[1][2], strict=True):
        torch.testing.assert_close(v, u)


def test_parts_behind_a_break():
    net = Net(only_parts)

    def step(x):
        a, b, c = net(x)
        print(end="")  # what lives on across the break shares memory
        return (a * b - c).sum()

    compiled = ingot.compile(step, options={"fallback": False})
    for _ in range(2):
        x = torch.randn(3, 5, 6)
        net.zero_grad()
        compiled(x).backward()
        mine = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        step(x).backward()
        for u, p in zip(mine, net.parameters(), strict=True):
            torch.testing.assert_close(u, p.grad)
