"""Max pooling with its positions: which element of a window wins, and where gradients go."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import ingot

INF, NAN = math.inf, math.nan


def images(dtype):
    """Images whose windows hold ties, nothing but the least number, and several NaNs."""
    generator = torch.Generator().manual_seed(7)
    ties = torch.randint(-1, 2, (2, 5, 9, 11), generator=generator).to(dtype)
    if not dtype.is_floating_point:
        return [ties, torch.full_like(ties, torch.iinfo(dtype).min)]
    plain = torch.randn(2, 5, 9, 11, generator=generator, dtype=torch.float64).to(dtype)
    nans = plain.clone()
    nans[:, :, 2:5, 1:4] = NAN
    nans[:, 1, 7, 7] = NAN
    return [ties, plain, nans, torch.full_like(plain, -INF), torch.full_like(plain, INF)]


WINDOWS = {
    "resnet": {"kernel_size": 3, "stride": 2, "padding": 1},
    "apart": {"kernel_size": 2, "stride": 3},
    "uneven": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    "to the end": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "dilated": {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
    "long": {"kernel_size": (5, 4), "stride": 2, "padding": (2, 2)},
    "large": {"kernel_size": (7, 6), "stride": 2, "padding": 3},
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_positions_are_eagers(window, dtype, layout):
    arguments = WINDOWS[window]

    def pool(x):
        return F.max_pool2d(x, **arguments, return_indices=True)

    ingot.reset()
    compiled = ingot.compile(pool, fullgraph=True)
    for x in images(dtype):
        x = x.to(memory_format=layout)
        try:
            expected = pool(x)
        except RuntimeError:
            pytest.skip("PyTorch has none of this type")
        for got, want in zip(compiled(x), expected, strict=True):
            assert got.stride() == want.stride()
            assert torch.equal(got.nan_to_num(9), want.nan_to_num(9))
            assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_eagers(window, dtype):
    arguments = WINDOWS[window]

    def pool(x):
        return F.max_pool2d(x, **arguments)

    ingot.reset()
    compiled = ingot.compile(pool, fullgraph=True)
    layouts = (torch.contiguous_format, torch.channels_last)
    for x, layout in itertools.product(images(dtype), layouts):
        x = x.to(memory_format=layout).requires_grad_()
        result = pool(x)
        gradient = torch.randn_like(result)
        (want,) = torch.autograd.grad(result, x, gradient)
        (got,) = torch.autograd.grad(compiled(x), x, gradient)
        assert got.stride() == want.stride()
        # Sums of at most as many numbers as there are windows over an element, in another order.
        torch.testing.assert_close(got, want, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
        assert torch.equal(got == 0, want == 0)


@pytest.mark.parametrize("spatial", [1, 3])
def test_other_dims(spatial):
    pool = {1: F.max_pool1d, 3: F.max_pool3d}[spatial]

    def f(x):
        return pool(x, 3, 2, 1, return_indices=True)

    ingot.reset()
    compiled = ingot.compile(f, fullgraph=True)
    for fill in (None, -INF, NAN):
        x = torch.randn(2, 4, *[7] * spatial)
        if fill is not None:
            x[:, 1:] = fill
        got, want = compiled(x), f(x)
        assert torch.equal(got[1], want[1])
        assert torch.equal(got[0].nan_to_num(9), want[0].nan_to_num(9))
