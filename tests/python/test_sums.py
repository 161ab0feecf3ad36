"""Long sums whose results cancel: as close to the exact ones as eager's cascade of partial sums."""

import pytest
import torch

import ingot

CASES = {
    "rows": (lambda x: x.sum(1), (32, 36000)),
    "rows of one level before": (lambda x: x.sum(1), (32, 32000)),
    "short rows": (lambda x: x.sum(1), (128, 4096)),
    "columns": (lambda x: x.sum(0), (3000, 64)),
    "few columns": (lambda x: x.sum(0), (400, 512)),
    "outer and inner": (lambda x: x.sum((0, 2)), (32, 64, 100)),
    "mean": (lambda x: x.mean(1), (16, 100000)),
    "var": (lambda x: x.var(1), (32, 36000)),
    "norm": (lambda x: x.norm(dim=1), (32, 36000)),
    "products": (lambda x: (x * x.flip(0)).sum(1), (32, 36000)),
}


@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_eagers(name):
    function, sizes = CASES[name]
    compiled = ingot.compile(function, dynamic=False)
    generator = torch.Generator().manual_seed(0)
    ours = eager = 0.0
    for _ in range(6):
        x = torch.randn(sizes, generator=generator)
        exact = function(x.double())
        ours += (compiled(x).double() - exact).square().sum().item()
        eager += (function(x).double() - exact).square().sum().item()
    assert ours**0.5 <= 2 * eager**0.5
