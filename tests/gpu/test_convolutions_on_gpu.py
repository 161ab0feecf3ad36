"""Convolutions with what follows them in one kernel of the library: norms, residuals, ReLU."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


class Residual(nn.Module):
    """A residual network's block; with a step the short way is a convolution too."""

    def __init__(self, inner: int, outer: int, step: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, step, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(3))
        self.short = None if inner == outer else nn.Conv2d(inner, outer, 1, step, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y))
        return (y + (x if self.short is None else self.norms[2](self.short(x)))).relu()


def network() -> nn.Module:
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Residual(16, 16), Residual(16, 32, 2), nn.Conv2d(32, 24, 3), nn.ReLU(),
    ).cuda()  # fmt: skip
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0.2)
            nn.init.uniform_(m.running_var, 0.5, 2)
            nn.init.normal_(m.weight, 1, 0.2)
            nn.init.normal_(m.bias, 0, 0.3)
    return net.eval()


def narrow(f: Callable, dtype: torch.dtype) -> Callable:
    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", dtype):
            return f(x)

    return call


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_against_double_precision(dtype: torch.dtype, mode: str, tmp_path: pathlib.Path) -> None:
    net = network()
    x = torch.randn(8, 3, 64, 64, device="cuda")
    options = {"debug": str(tmp_path)} | ({"cudagraphs": True} if mode != "default" else {})
    made = narrow(ingot.compile(net, options=options), dtype)
    for scale in (1.0, 1.5):  # the second time the folded weights are those of before no more
        with torch.no_grad():
            net[0].weight.mul_(scale)
            net[1].running_mean.add_(scale - 1)
            exact = copy.deepcopy(net).double()(x.double())
        eager = narrow(net, dtype)(x)
        for _ in range(4):
            y = made(x)
        assert y.dtype == eager.dtype and y.stride() == eager.stride()
        error, usual = ((t.double() - exact).norm() for t in (y, eager))
        assert error <= 2 * usual
    (plan,) = tmp_path.glob("*/*_plan.txt")
    assert plan.read_text().count("conv_relu(") == 6, plan.read_text()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays(bad: float) -> None:
    net = network()[3:]
    x = torch.randn(2, 16, 64, 64, device="cuda")
    x[0, 1, 10, 20] = bad
    y, eager = (narrow(f, torch.bfloat16)(x) for f in (ingot.compile(net), net))
    assert torch.equal(y.isnan(), eager.isnan()) and torch.equal(y.isinf(), eager.isinf())
    assert eager.isnan().any()


def test_eagers_rounding_is_kept_where_it_is_asked_for(tmp_path: pathlib.Path) -> None:
    options = {"debug": str(tmp_path), "emulate_precision_casts_on_gpus": True}
    x = torch.randn(2, 3, 64, 64, device="cuda")
    narrow(ingot.compile(network(), options=options), torch.bfloat16)(x)
    (plan,) = tmp_path.glob("*/*_plan.txt")
    assert "conv_relu(" not in plan.read_text()


def test_without_the_library() -> None:
    net = network()
    x = torch.randn(2, 3, 64, 64, device="cuda")
    made = narrow(ingot.compile(net), torch.bfloat16)
    y = made(x)
    with torch.backends.cudnn.flags(enabled=False):
        torch.testing.assert_close(made(x), y, rtol=3e-2, atol=3e-2)
