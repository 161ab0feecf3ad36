"""What is read at two indices of one reader, or along a diagonal: every pair is reached."""

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
DIAGONALS: list[Any] = [
    lambda x: [(x + 1).reshape(-1), x.diagonal().sum()],
    lambda x: [(x + 1).reshape(-1), x.diagonal() * 2],
    lambda x: [x.to(torch.complex64).reshape(-1), torch.layer_norm(x.diagonal(), x.shape[:1])],
    lambda x: [y := (x + 1).reshape(-1), y * 2, x.diagonal().softmax(0), x.t().reshape(-1) - 1],
    lambda x: [x.sin(), x.diagonal().sum(), x.diagonal(1).cos()],
]


def _check(program: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        outcome = opinfo.check_sample(
            "program", program, SimpleNamespace(input=x, args=(), kwargs={})
        )
    assert outcome.kind == "ok", outcome


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("case", range(len(PROGRAMS)))
def test_pairs(case: int, size: int) -> None:
    _check(PROGRAMS[case], ((torch.arange(size) * 7 % 11 - 5) / 2).reshape(size, 1))


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("case", range(len(DIAGONALS)))
def test_diagonal_beside_the_whole(case: int, size: int) -> None:
    _check(DIAGONALS[case], ((torch.arange(size * size) * 7 % 11 - 5) / 2).reshape(size, size))


def test_diagonal_beside_the_whole_of_any_size() -> None:
    import ingot

    @ingot.compile(dynamic=True)
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 1).reshape(-1), x.diagonal().sum(), x.diagonal() * 2]

    for size in (3, 8, 40):
        x = torch.arange(float(size * size)).reshape(size, size)
        want = [x.reshape(-1) + 1, x.trace(), x.diagonal() * 2]
        for ours, eager in zip(program(x), want, strict=True):
            torch.testing.assert_close(ours, eager)
