"""Where results lie: as eager's do, for all modules and operators over tensors in all layouts."""

from __future__ import annotations

import pathlib
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F

import ingot

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import layout_sweep


@pytest.mark.parametrize(("what", "count"), [("modules", 12), ("operators", 40)])
def test_random_entries(what, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, counts = layout_sweep.judge(what, count, seed=0)
    assert counts["compiled"] > count // 3
    assert not found, "\n".join(found)


def image(depth: bool) -> torch.Tensor:
    if depth:
        return torch.randn(2, 4, 6, 6, 6).to(memory_format=torch.channels_last_3d)
    return torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)


REAL = (torch.fft.rfft2, torch.fft.rfftn)
ONE = torch.tensor([0])
WEIGHTS = [torch.randn(4, 4, k, k, k) for k in (1, 2)]


@pytest.mark.parametrize(
    ("depth", "program"),
    [
        (True, lambda x: F.avg_pool3d(x, 2)),
        (True, lambda x: F.avg_pool3d(x, 2).view(x.shape[0], -1)),
        (True, lambda x: F.max_pool3d(x, 2)),
        (True, lambda x: F.adaptive_avg_pool3d(x, 2)),
        (True, lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), "replicate")),
        (True, lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), "reflect")),
        (True, lambda x: F.conv3d(x, WEIGHTS[0])),
        (True, lambda x: F.conv3d(x, WEIGHTS[1])),
        (True, lambda x: F.conv3d(x.double(), WEIGHTS[0].double())),
        (True, lambda x: F.conv_transpose3d(x, WEIGHTS[1])),
        (True, lambda x: F.conv_transpose3d(x.double(), WEIGHTS[1].double())),
        (True, lambda x: F.channel_shuffle(x, 2)),
        (False, lambda x: F.channel_shuffle(x, 2)),
        (False, lambda x: x.index_add(1, ONE, x[:, :1])),
        (False, lambda x: x.index_copy(1, ONE, x[:, :1])),
        (False, F.logsigmoid),
        (False, lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), "replicate")),
        (False, lambda x: x.index_fill(1, ONE, 2.0)),
        (False, lambda x: x.logcumsumexp(1)),
        (False, lambda x: F.interpolate((x * 9).byte()[:, :1], scale_factor=2, mode="bicubic")),
        *(
            (False, lambda x, f=f, dims=dims: f(x[0] if f in REAL else x[0] + 0j, dim=dims))
            for f in (torch.fft.rfft2, torch.fft.rfftn, torch.fft.hfft2, torch.fft.irfft2)
            for dims in ((0, 1), (1, 0), (2, 0), (0, 2))
        ),
        (False, lambda x: torch.fft.hfft(x.bool())),
    ],
)
def test_strides_are_eagers(depth, program):
    x = image(depth)
    for grad in (False, True):
        x.requires_grad_(grad)
        ours, eager = ingot.compile(program)(x), program(x)
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dims", [(2, 3), (0, 2, 3)])
def test_gradient_of_a_norm_over_one_image(dims):
    """By the formula: PyTorch 2.13's own kernel errs where the gradient of one image has the
    channels last and the image has not (its answer is off by the size of the largest gradient)."""

    def formula(x, w):
        y = x - x.mean(dims, keepdim=True)
        y = y / (x.var(dims, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return y.flatten(2).transpose(1, 2) @ w

    def program(x, w):
        y = F.instance_norm(x) if dims == (2, 3) else F.batch_norm(x, None, None, training=True)
        return y.flatten(2).transpose(1, 2) @ w

    for n in (1, 2):
        data, w = torch.randn(n, 4, 6, 6), torch.randn(4, 3)
        grads = []
        for run in (formula, ingot.compile(program)):
            x = data.clone().requires_grad_()
            y = run(x, w)
            (y * torch.arange(float(y.numel())).cos().view_as(y)).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)
