"""Products of f32 by matrix units that know bf16 (by vectors where the processor has none)."""

from __future__ import annotations

import pytest
import torch

import ingot


class Product(torch.nn.Module):
    """A frozen right side, or one that is given."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


SHAPES = [(128, 768, 768), (197, 768, 300), (64, 3072, 256), (33, 515, 97), (300, 64, 64)]


def errors(exact: torch.Tensor, *rivals: torch.Tensor) -> list[tuple[float, float]]:
    """Of each: root of the mean square, and the largest."""
    found = []
    for r in rivals:
        d = (r.double() - exact).abs()
        found.append((d.square().mean().sqrt().item(), d.max().item()))
    return found


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_frozen_right_sides_are_as_exact_as_eager(m: int, k: int, n: int, spread: float) -> None:
    torch.manual_seed(m + k)
    module = Product(k, n).eval()
    x = torch.randn(m, k) * torch.logspace(0, torch.tensor(spread).log10().item(), m)[:, None]
    compiled = ingot.compile(module)
    with torch.no_grad():
        compiled(x)
        ours, eager = compiled(x), module(x)
        exact = torch.nn.functional.linear(
            x.double(), module.linear.weight.double(), module.linear.bias.double()
        )
    (rms, largest), (eager_rms, eager_largest) = errors(exact, ours, eager)
    assert rms <= 2 * eager_rms
    assert largest <= 2 * eager_largest


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("form", ["nn", "tn", "nt", "tt"])
def test_all_orders_of_operands_with_gradients(m: int, k: int, n: int, form: str) -> None:
    torch.manual_seed(7)
    left = torch.randn((m, k) if form[0] == "n" else (k, m))
    right = torch.randn((k, n) if form[1] == "n" else (n, k))

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a if form[0] == "n" else a.t()
        b = b if form[1] == "n" else b.t()
        return (a @ b) * 0.5 + 1

    compiled = ingot.compile(product)
    results = []
    for f, dtype in ((compiled, torch.float32), (product, torch.float32), (product, torch.float64)):
        a, b = (t.to(dtype).clone().requires_grad_() for t in (left, right))
        out = f(a, b)
        torch.manual_seed(8)
        out.backward(torch.randn(m, n).to(dtype))
        results.append((out.detach(), a.grad, b.grad))
    for ours, eager, exact in zip(*results, strict=True):
        assert ours.dtype == eager.dtype
        assert ours.stride() == eager.stride()
        (rms, largest), (eager_rms, eager_largest) = errors(exact, ours, eager)
        assert rms <= 2 * eager_rms
        assert largest <= 2 * eager_largest


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40])
@pytest.mark.parametrize("side", ["left", "right"])
def test_strange_numbers_flow_as_in_eager(value: float, side: str) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(100, 128), torch.randn(128, 96)
    b[:, 5] = 0
    if side == "left":
        a[17, 3] = value
    else:
        b[3, 17] = value
    ours, eager = ingot.compile(torch.matmul)(a, b), a @ b
    torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-5, atol=1e-4)


def test_what_is_all_tiny_is_not_lost() -> None:
    torch.manual_seed(2)
    a, b = torch.randn(64, 96) * 1e-25, torch.randn(96, 64) * 1e-12
    ours, eager = ingot.compile(torch.matmul)(a, b), a @ b
    exact = a.double() @ b.double()
    assert (ours.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max()


def test_zeros_stay_zeros() -> None:
    a, b = torch.zeros(64, 96), torch.randn(96, 64)
    assert torch.equal(ingot.compile(torch.matmul)(a, b), a @ b)
    assert torch.equal(ingot.compile(torch.matmul)(b.t().contiguous(), a.t()), b.t() @ a.t())


def test_vendor_products_of_bf16_between_ours() -> None:
    """Both use the tile registers, each with shapes of its own."""
    torch.manual_seed(3)
    module = Product(256, 256).eval()
    low = torch.nn.Linear(256, 200).bfloat16()
    x, y = torch.randn(96, 256), torch.randn(50, 256).bfloat16()
    compiled = ingot.compile(module)
    with torch.no_grad():
        compiled(x)
        ours, vendors = compiled(x), low(y)
        for _ in range(10):
            assert torch.equal(low(y), vendors)
            assert torch.equal(compiled(x), ours)
