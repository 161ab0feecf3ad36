"""One computed value read at two indices of the reader: every pair of its elements is reached."""

from __future__ import annotations

import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import opinfo


def _set(x: torch.Tensor) -> torch.Tensor:
    x[3] = 1
    return x == x[:, 0]


PROGRAMS: list[Any] = [
    lambda x: [y := x[:, 0] * 2, y[:, None] - y[None, :]],
    lambda x: [y := x * 2, y - y.view(-1)],
    lambda x: [y := x[:, 0] * 2, (y[:, None] - y[None, :]).abs().sum(1)],
    lambda x: [y := x[:, 0] * 2, y[:, None, None] + y[None, :, None] * y[None, None, :]],
    lambda x: [y := x[:, 0] * 2, y.view(-1, 2)[:, None] - y.view(-1, 2)[None]],
    lambda x: [y := x[:, 0].softmax(0), y[:, None] * y[None, :]],
    _set,
]


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("case", range(len(PROGRAMS)))
def test_pairs(case: int, size: int) -> None:
    x = ((torch.arange(size) * 7 % 11 - 5) / 2).reshape(size, 1)
    with torch.no_grad():
        outcome = opinfo.check_sample(
            "program", PROGRAMS[case], SimpleNamespace(input=x, args=(), kwargs={})
        )
    assert outcome.kind == "ok", outcome
