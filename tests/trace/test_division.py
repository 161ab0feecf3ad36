"""No program ends the process by a division by zero: neither while it is compiled nor later.

Mistakes that eager answers with an error raise it here too; what is empty is computed.
"""

from __future__ import annotations

import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import opinfo

SMALLEST = -(2**63)

# Over x of 2x4, an image of 1x4x4x4, integers, zeros, the smallest integer, and -1.
RAISES: list[Any] = [
    lambda x, image, i, z, s, m: torch.arange(0, 5, 0),
    lambda x, image, i, z, s, m: x.unfold(0, 2, 0),
    lambda x, image, i, z, s, m: F.pixel_shuffle(image, 0),
    lambda x, image, i, z, s, m: F.pixel_shuffle(image, 3),
    lambda x, image, i, z, s, m: F.pixel_unshuffle(image, 0),
    lambda x, image, i, z, s, m: F.max_pool2d(image, 2, 0),
    lambda x, image, i, z, s, m: F.max_pool2d(image, 0),
    lambda x, image, i, z, s, m: F.max_pool2d(image, 2, padding=2),
    lambda x, image, i, z, s, m: F.max_pool2d(image, 2, dilation=0),
    lambda x, image, i, z, s, m: F.avg_pool1d(image[0], 2, 0),
    lambda x, image, i, z, s, m: F.avg_pool2d(image, 2, 0),
    lambda x, image, i, z, s, m: F.avg_pool2d(image, 0),
    lambda x, image, i, z, s, m: F.avg_pool2d(image, 2, divisor_override=0),
    lambda x, image, i, z, s, m: F.avg_pool3d(image, 2, 0),
    lambda x, image, i, z, s, m: F.lp_pool2d(image, 2, 2, 0),
    lambda x, image, i, z, s, m: F.local_response_norm(image, 0),
    lambda x, image, i, z, s, m: F.adaptive_avg_pool2d(image[:, :, :0], 2),
    lambda x, image, i, z, s, m: F.adaptive_avg_pool2d(image, -1),
    lambda x, image, i, z, s, m: F.interpolate(image, size=0),
    lambda x, image, i, z, s, m: F.interpolate(image, size=(0, 2), mode="bilinear"),
    lambda x, image, i, z, s, m: F.group_norm(image, 0),
    lambda x, image, i, z, s, m: F.group_norm(image, 3),
    lambda x, image, i, z, s, m: torch.native_group_norm(image, None, None, 1, 4, 16, 0, 1e-5),
    lambda x, image, i, z, s, m: F.conv2d(image, image, groups=0),
    lambda x, image, i, z, s, m: F.conv2d(image, image, stride=0),
    lambda x, image, i, z, s, m: x.view(0, -1),
    lambda x, image, i, z, s, m: i // 0,
    lambda x, image, i, z, s, m: i % 0,
    lambda x, image, i, z, s, m: torch.fmod(i, 0),
    lambda x, image, i, z, s, m: i // z,
    lambda x, image, i, z, s, m: i % z,
    lambda x, image, i, z, s, m: torch.fmod(i, z),
    lambda x, image, i, z, s, m: torch.div(i, z, rounding_mode="trunc"),
    lambda x, image, i, z, s, m: torch.full((3,), 7) // torch.zeros(3, dtype=torch.int64),
    lambda x, image, i, z, s, m: torch.full((3,), 7) % 0,
    lambda x, image, i, z, s, m: torch.arange(4) // torch.arange(4),
    lambda x, image, i, z, s, m: torch.pow(i, -1),
]
COMPUTES: list[Any] = [
    lambda x, image, i, z, s, m: s // m,
    lambda x, image, i, z, s, m: s % m,
    lambda x, image, i, z, s, m: torch.fmod(s, m),
    lambda x, image, i, z, s, m: s // -1,
    lambda x, image, i, z, s, m: torch.full((3,), SMALLEST) // -1,
    lambda x, image, i, z, s, m: torch.full((3,), SMALLEST) % m,
    lambda x, image, i, z, s, m: torch.full((3,), -128, dtype=torch.int8) // m.to(torch.int8),
    lambda x, image, i, z, s, m: torch.full((3,), -32768, dtype=torch.int16) % -1,
    lambda x, image, i, z, s, m: torch.lcm(z, z),
    lambda x, image, i, z, s, m: i << -1,
    lambda x, image, i, z, s, m: i << 64,
    lambda x, image, i, z, s, m: torch.full((3,), 5) >> 64,
    lambda x, image, i, z, s, m: x[:, :0].roll(1, 1),
    lambda x, image, i, z, s, m: torch.pow(2, -i.abs()),
    lambda x, image, i, z, s, m: i.index_reduce(0, torch.tensor([0, 0]), i[:2], "mean"),
    lambda x, image, i, z, s, m: F.adaptive_avg_pool2d(image, (0, 2)),
]


def _outcome(fn: Any) -> opinfo.Outcome:
    inputs = [
        torch.arange(8.0).reshape(2, 4),
        torch.arange(64.0).reshape(1, 4, 4, 4),
        torch.tensor([3, -5, 7]),
        torch.zeros(3, dtype=torch.int64),
        torch.full((3,), SMALLEST),
        torch.full((3,), -1),
    ]
    sample = SimpleNamespace(input=inputs[0], args=tuple(inputs[1:]), kwargs={})
    with torch.no_grad():
        return opinfo.check_sample("program", fn, sample)


@pytest.mark.parametrize("case", range(len(RAISES)))
def test_mistakes_raise_as_in_eager(case: int) -> None:
    assert _outcome(RAISES[case]).kind == "raises", _outcome(RAISES[case])


@pytest.mark.parametrize("case", range(len(COMPUTES)))
def test_extreme_numbers_are_computed(case: int) -> None:
    assert _outcome(COMPUTES[case]).kind == "ok", _outcome(COMPUTES[case])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("m, k, n", [(3, 0, 4), (0, 5, 4), (3, 5, 0), (1, 0, 1), (3, 1, 4)])
def test_empty_products(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    def products(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        many = torch.matmul(a.expand(2, *a.shape), b.expand(2, *b.shape))
        return [a @ b, F.linear(a, b.t()) + 1, many]

    args = (torch.ones(k, n).to(dtype),)
    sample = SimpleNamespace(input=torch.ones(m, k).to(dtype), args=args, kwargs={})
    with torch.no_grad():
        outcome = opinfo.check_sample("program", products, sample)
    assert outcome.kind == "ok", outcome
