"""Products of bf16: rounded once, bias and all, as eager's are; by whatever units there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ingot

SHAPES = [
    (7, 64, 64),
    (33, 34, 40),
    (100, 96, 33),
    (31, 32, 1000),
    (200, 258, 130),
    (197, 1100, 96),
]
FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, y: x @ y,
    "columns": lambda x, y: x @ y.t().contiguous().t(),
    "turned": lambda x, y: x.t().contiguous().t() @ y,
    "batched": lambda x, y: torch.bmm(torch.stack([x, -x]), torch.stack([y, 2 * y])),
    "computed": lambda x, y: torch.nn.functional.gelu(x) @ y,
}


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).square().mean().sqrt())


def _check(
    function: Callable[..., torch.Tensor],
    exact: torch.Tensor,
    *args: torch.Tensor,
    within: float = 1.1,
) -> None:
    compiled = ingot.compile(function, dynamic=False)
    with torch.no_grad():
        expected = function(*args)
        for _ in range(3):  # later calls may use packed weights
            result = compiled(*args)
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    assert _error(result, exact) <= within * _error(expected, exact)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_products(form: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(3)
    m, k, n = shape
    x, y = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    _check(FORMS[form], FORMS[form](x.double(), y.double()), x, y)


@pytest.mark.parametrize("shape", SHAPES)
def test_linear_rounds_once(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(3)
    m, k, n = shape
    linear = torch.nn.Linear(k, n).bfloat16().requires_grad_(False)
    x = torch.randn(m, k).bfloat16()
    exact = x.double() @ linear.weight.double().t() + linear.bias.double()
    _check(linear, exact, x)


@pytest.mark.parametrize("channels", [3, 32, 48])
def test_convolutions(channels: int) -> None:
    torch.manual_seed(3)
    conv = torch.nn.Conv2d(channels, 96, 3, padding=1, stride=2).bfloat16().requires_grad_(False)
    x = torch.randn(2, channels, 29, 29).bfloat16()
    exact = torch.nn.functional.conv2d(
        x.double(), conv.weight.double(), conv.bias.double(), stride=2, padding=1
    )
    # Three channels are the vendor's, whose result is rounded before the bias is added.
    _check(conv, exact, x, within=2 if channels == 3 else 1.1)


def test_infinities_and_no_numbers_pass_through() -> None:
    x, y = torch.ones(40, 64).bfloat16(), torch.ones(64, 64).bfloat16()
    x[3, 5], x[20, 1], y[7, 9] = float("inf"), float("nan"), -float("inf")
    compiled = ingot.compile(torch.mm, dynamic=False)
    torch.testing.assert_close(compiled(x, y), x @ y, equal_nan=True, rtol=0, atol=0)


def test_sizes_may_change() -> None:
    compiled = ingot.compile(torch.mm, dynamic=True)
    torch.manual_seed(3)
    for m, k, n in SHAPES:
        x, y = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
        exact = x.double() @ y.double()
        assert _error(compiled(x, y), exact) <= 1.1 * _error(x @ y, exact)
