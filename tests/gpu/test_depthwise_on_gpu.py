"""Depthwise convolutions of 16 bits on a GPU, generated in both directions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# images, channels, height, width, kernel, stride, dilation
SHAPES = [
    (8, 96, 56, 56, 3, 1, 1),
    (8, 96, 56, 56, 3, 2, 1),
    (64, 960, 7, 7, 3, 1, 1),
    (64, 32, 28, 28, 3, 2, 1),
    (3, 36, 17, 23, 3, 1, 1),  # no piece of eight channels, no block of columns
    (2, 20, 15, 15, 3, 2, 1),
    (16, 240, 28, 28, 5, 1, 1),
    (16, 240, 28, 28, 5, 2, 1),
    (4, 64, 20, 24, 3, 1, 2),
    (4, 64, 14, 14, 7, 1, 1),
    (64, 192, 12, 12, 7, 1, 1),
    (1, 8, 3, 1, 3, 1, 1),
]


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm()).item()


def kernels_of(call) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [e.key for e in profile.key_averages()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_directions_against_double_precision(shape, dtype, monkeypatch) -> None:
    n, c, h, w, kernel, stride, dilation = shape
    torch.manual_seed(0)
    padding = dilation * (kernel // 2)

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = functional.conv2d(x, weight, None, stride, padding, dilation, c)
        return torch.tanh(y)

    x = torch.randn(n, c, h, w, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(c, 1, kernel, kernel, device="cuda", dtype=dtype) / kernel
    x.requires_grad_()
    weight.requires_grad_()

    def run(function, x, weight, grad):
        y = function(x, weight)
        return (y, *torch.autograd.grad(y, (x, weight), grad.to(y.dtype)))

    grad = torch.randn_like(convolved(x, weight))
    exact = run(convolved, x.detach().double().requires_grad_(),
                weight.detach().double().requires_grad_(), grad)  # fmt: skip
    # Neither side in TF32, which the library's gradients of weights of 32 bits would take.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    eager = run(convolved, x, weight, grad)
    compiled = ingot.compile(convolved, options={"fallback": False})
    names = kernels_of(lambda: run(compiled, x, weight, grad))
    for value, plain, right in zip(run(compiled, x, weight, grad), eager, exact, strict=True):
        assert value.dtype == plain.dtype and value.shape == plain.shape
        assert error(value, right) <= 2 * error(plain, right) + 1e-6, (shape, dtype)
    again = run(compiled, x, weight, grad)
    for value, other in zip(again, run(compiled, x, weight, grad), strict=True):
        assert torch.equal(value, other)  # no order of sums changes from run to run
    if dtype != torch.float32 and not (kernel > 3 and stride == 2):
        assert not [k for k in names if "cudnn" in k or ("conv" in k.lower() and "ingot" not in k
                    and "convert" not in k.lower())], names  # fmt: skip
