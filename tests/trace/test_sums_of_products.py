"""Sums of products are as exact as eager's, whatever the number of rows: libraries keep a chain of
sums in each lane where rows are few, and so chains must be short there."""

from __future__ import annotations

import pytest
import torch

import ingot


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 15, 16, 40, 64])
@pytest.mark.parametrize("depth", [256, 512, 3000])
def test_errors_of_linear_stay_within_twice_eagers(rows: int, depth: int) -> None:
    torch.manual_seed(rows)
    inputs, weight = torch.randn(rows, depth), torch.randn(1000, depth)
    exact = inputs.double() @ weight.double().T

    def error(result: torch.Tensor) -> float:
        return float((result.double() - exact).square().mean().sqrt())

    linear = torch.nn.Linear(depth, 1000, bias=False)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    compiled = ingot.compile(linear, dynamic=False)
    for _ in range(2):  # the second call may use packed weights
        result = compiled(inputs)
    assert error(result) <= 2 * error(linear(inputs))
