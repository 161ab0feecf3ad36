"""Long sums are as good as eager's, which adds up parts of parts, however the loops lie.

Equal terms are the hardest: all their roundings have one direction. A network meets them before a
global pooling, where each plane's gradients are one number.
"""

from __future__ import annotations

import pytest
import torch

import ingot

EPS = torch.finfo(torch.float32).eps


def as_good(function, *inputs: torch.Tensor) -> None:
    exact = function(*(x.double() for x in inputs))
    compiled = ingot.compile(function, fullgraph=True, options={"fallback": False})
    mine, theirs = ((f(*inputs).double() - exact).abs() for f in (compiled, function))
    scale = exact.abs().max()
    assert (mine.max() / scale).item() <= 2 * (theirs.max() / scale).item() + EPS


@pytest.mark.parametrize("rows", [100, 700, 5000, 50000])
@pytest.mark.parametrize("columns", [3, 16, 70])
@pytest.mark.parametrize("equal", [True, False])
def test_columns(rows: int, columns: int, equal: bool) -> None:
    torch.manual_seed(rows + columns)
    x = torch.rand(1, columns).expand(rows, columns) if equal else torch.rand(rows, columns)
    as_good(lambda x: (x * 1.5).sum(0), x.contiguous())


@pytest.mark.parametrize("terms", [500, 60000, 1 << 20])
@pytest.mark.parametrize("equal", [True, False])
def test_rows(terms: int, equal: bool) -> None:
    torch.manual_seed(terms)
    x = torch.full((3, terms), 0.1) if equal else torch.rand(3, terms)
    as_good(lambda x: (x * 1.5).sum(1), x)


@pytest.mark.parametrize("images", [2, 3])
def test_spread_planes(images: int) -> None:
    # The images' loop is unrolled within the planes'.
    torch.manual_seed(images)
    x = torch.rand(images, 6)
    as_good(lambda x: (x[:, :, None] / 3).expand(-1, -1, 2000).sum((0, 2)), x)


@pytest.mark.parametrize("norm", [torch.nn.GroupNorm(1, 6), torch.nn.BatchNorm3d(6)])
def test_gradients_before_a_pooling(norm: torch.nn.Module) -> None:
    torch.manual_seed(0)
    pooled = torch.randn(3, 6, 1, 1, 1)
    compiled = ingot.compile(lambda x: norm(x).mean((2, 3, 4), keepdim=True), fullgraph=True)
    compiled(torch.randn(3, 6, 16, 14, 15)).backward(pooled)
    planes = pooled.double()[:, :, 0, 0, 0]
    error = (norm.bias.grad.double() - planes.sum(0)).abs() / planes.abs().sum(0)
    assert error.max().item() <= 4 * EPS


def test_complex_columns() -> None:
    x = torch.rand(1, 5, dtype=torch.complex64).expand(20000, 5).contiguous()
    exact = x.to(torch.complex128).sum(0)
    got = ingot.compile(lambda x: x.sum(0), fullgraph=True)(x)
    assert ((got - exact).abs() / exact.abs()).max().item() <= 8 * EPS
