"""Memory-bound programs of drawn shapes, axes, orders in memory and types against double precision.

The writer is the benchmark's (ingot/bench/shapes.py). Small programs are of every kind; larger ones
have rows and columns that are cut into pieces, and tiles.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import ingot
from ingot.bench.shapes import Program, Writer, wrong

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


def check(program: Program) -> None:
    with torch.no_grad():
        eager = program.function(*program.inputs)
        result = ingot.compile(program.function, options={"fallback": False})(*program.inputs)
        assert wrong(program, eager, result) == "", program.name


@pytest.mark.parametrize("seed", range(80))
def test_small(seed: int) -> None:
    check(Writer(seed, 20_000, "cuda").write())


@pytest.mark.parametrize("seed", range(100, 160))
def test_large(seed: int) -> None:
    check(Writer(seed, 3_000_000, "cuda").write())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mish(dtype: torch.dtype) -> None:
    """Everywhere along the line, with what has no tanh of its own left."""
    x = torch.cat([torch.linspace(-120, 120, 200_001), torch.tensor([torch.inf, -torch.inf])])
    x = torch.cat([x, torch.tensor([torch.nan, 0.0, -0.0, 1e-30, -1e-30])]).to("cuda", dtype)
    compiled = ingot.compile(functional.mish, options={"fallback": False})(x)
    eager, exact = functional.mish(x), functional.mish(x.double())
    assert torch.equal(compiled.isnan(), eager.isnan())
    far = (compiled.double() - exact).abs() / exact.abs().clamp_min(1e-30)
    limit = 2 * (eager.double() - exact).abs() / exact.abs().clamp_min(1e-30)
    rounding = torch.finfo(dtype).eps
    keep = exact.isfinite() & (exact.abs() > torch.finfo(dtype).tiny)
    assert (far <= limit + 4 * rounding)[keep].all()


@pytest.mark.parametrize("times", [2, 3])
def test_repeated_images(times: int) -> None:
    """Nearest neighbours at whole scales are elements repeated."""
    for x in (
        torch.randn(3, 5, 7, 9, device="cuda"),
        torch.randn(2, 8, 6, 4, device="cuda").contiguous(memory_format=torch.channels_last),
    ):
        for mode in ("nearest", "nearest-exact"):

            def function(x: torch.Tensor, mode: str = mode) -> torch.Tensor:
                return functional.interpolate(x, scale_factor=times, mode=mode)

            result = ingot.compile(function, options={"fallback": False})(x)
            assert torch.equal(result, function(x))
            assert result.stride() == function(x).stride()


@pytest.mark.parametrize("channels", [3, 24])
@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_of_images_as_given(channels: int, spatial: int, transposed: bool) -> None:
    """Whatever order images and results have in memory inside, results lie as eager's."""
    kind = ("ConvTranspose" if transposed else "Conv") + f"{spatial}d"
    module = torch.nn.Sequential(
        getattr(torch.nn, kind)(channels, 32, 3), torch.nn.ReLU(),
        getattr(torch.nn, f"InstanceNorm{spatial}d")(32),
    ).cuda()  # fmt: skip
    x = torch.randn(2, channels, *[14] * spatial, device="cuda")
    with torch.no_grad():
        eager = module(x)
        exact = module.double()(x.double())
        result = ingot.compile(module.float(), options={"fallback": False})(x)
    assert result.stride() == eager.stride()
    far = (eager.double() - exact).norm() / exact.norm()
    assert (result.double() - exact).norm() / exact.norm() <= 3 * far + 1e-3
