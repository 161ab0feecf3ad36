"""Random tensor programs with fixed seeds, and small ones of classes that differed from eager."""

from __future__ import annotations

import pathlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import opinfo
import tensor_programs

T = torch.Tensor


def _strided(shape: tuple, strides: tuple, dtype: torch.dtype) -> T:
    values = (torch.arange(64) * 7 % 11 - 5) / 2
    return values.to(dtype).as_strided(shape, strides)


def _outcome(program: Callable, *inputs: T) -> opinfo.Outcome:
    sample: Any = SimpleNamespace(input=inputs[0], args=inputs[1:], kwargs={})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opinfo.check_sample("program", program, sample)


# An operand of another type than the result's is converted before strides are looked at.
STRIDES: list[Any] = [
    (lambda x: x.clamp(-2, 3), _strided((4, 1), (1, 4), torch.bool)),
    (lambda x: x % 3, _strided((1, 5, 2), (1, 1, 1), torch.bool)),
    (
        lambda x, y: x == y,
        _strided((4, 1), (0, 1), torch.bool),
        _strided((4, 1), (1, 4), torch.float32),
    ),
    (
        lambda x, y: x * y,
        _strided((3, 5, 2), (1, 3, 15), torch.int64),
        _strided((3, 5, 2), (0, 2, 1), torch.int32),
    ),
    (
        lambda x, y: torch.logical_xor(x, y),
        _strided((3, 5, 2), (1, 3, 15), torch.int64),
        _strided((3, 5, 2), (0, 2, 1), torch.int32),
    ),
    (
        lambda x, y: torch.where(x > 0, x, y),
        _strided((3, 5, 2), (1, 3, 15), torch.int64),
        _strided((3, 5, 2), (0, 2, 1), torch.int32),
    ),
    (lambda x: torch.sigmoid(x), _strided((2, 1, 6), (0, 1, 1), torch.int32)),
    (lambda x: x.abs(), _strided((1, 6), (1, 1), torch.complex64)),
    (lambda x: x.angle(), _strided((4, 1), (1, 4), torch.complex64)),
]


@pytest.mark.parametrize("case", range(len(STRIDES)))
def test_strides_after_promotion(case: int) -> None:
    program, *inputs = STRIDES[case]
    outcome = _outcome(program, *inputs)
    assert outcome.kind == "ok", outcome


# Eager refuses to write over what it still has to read, or gives what the order of elements gives.
REFUSED: list[Any] = [
    lambda x: x[1:].add_(x[:-1]),
    lambda x: x[1:].copy_(x[:-1]),
    lambda x: torch.add(x[:-1], 1, out=x[1:]),
    lambda x: torch.sin(x[:-1], out=x[1:]),
    lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    lambda x: torch.cat([x[:6], x[6:]], out=x),
    lambda x: x.expand(2, 12).add_(1),
]
UNDEFINED: list[Any] = [
    lambda x: x[::2].add_(x[2]),
    lambda x: x.view(3, 4).t().mul_(x.view(4, 3)),
    lambda x: torch.mm(x[:4].view(2, 2), x[4:8].view(2, 2), out=x[2:6].view(2, 2)),
    lambda x: torch.sum(x.view(2, 6), 1, out=x[:2]),
]
DEFINED: list[Any] = [
    lambda x: x.add_(x),
    lambda x: x.mul_(x.view(3, 4).view(12)),
    lambda x: x[::2].add_(x[1::2]),
    lambda x: x.view(3, 4)[:, :2].mul_(x.view(3, 4)[:, 2:]),
    lambda x: x.view(3, 4)[::2].copy_(x.view(3, 4)[1]),
    lambda x: x[:6].add_(x[6:]),
    lambda x: x.add_(x.sum()),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_writes_that_eager_refuses(case: int) -> None:
    outcome = _outcome(REFUSED[case], torch.arange(12.0))
    assert outcome.kind == "raises", outcome


@pytest.mark.parametrize("case", range(len(UNDEFINED)))
def test_writes_that_depend_on_order_are_left_to_eager(case: int) -> None:
    outcome = _outcome(UNDEFINED[case], torch.arange(12.0))
    assert outcome.kind in ("unsupported", "raises"), outcome


@pytest.mark.parametrize("case", range(len(DEFINED)))
def test_writes_beside_what_is_read_are_compiled(case: int) -> None:
    outcome = _outcome(DEFINED[case], torch.arange(12.0))
    assert outcome.kind == "ok", outcome


@pytest.mark.parametrize("columns", [3, 6, 7, 100, 768])
def test_layer_norm_of_equal_elements_is_its_bias(columns: int) -> None:
    """Nothing may be left of a constant row: 1 / sqrt(eps) would multiply it."""
    rows = torch.tensor([[0.1], [0.7615942], [-3.3], [1e4]]).expand(4, columns).clone()
    outcome = _outcome(lambda x: torch.layer_norm(x, x.shape[-1:]), rows)
    assert outcome.kind == "ok", outcome


@pytest.mark.parametrize("rows", [3, 5, 7, 100, 768])
@pytest.mark.parametrize("dim", [0, 1])
def test_variance_of_equal_elements_is_zero(rows: int, dim: int) -> None:
    """The mean of equal elements is rounded; what is left of them must not be squared."""
    columns = torch.tensor([0.1, 0.7615942, -3.3, 1e4]).expand(rows, 4).clone()
    x = columns if dim == 0 else columns.t().contiguous()
    outcome = _outcome(lambda x: [x.var(dim, correction=0), x.std(dim)], x)
    assert outcome.kind == "ok", outcome


@pytest.mark.parametrize("shape", [(64, 96), (514,), (3, 4097)])
def test_variance_is_as_exact_as_eagers(shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape) * 7 % 11 / 2
    outcome = _outcome(lambda x: [x.var(-1), *torch.std_mean(x, 0)], x)
    assert outcome.kind == "ok", outcome


def test_empty_inputs_share_no_memory() -> None:
    x, y = torch.zeros(0, 6).t().contiguous().t(), torch.zeros(0, 6)
    outcome = _outcome(lambda x, y: x.add_(1), x, y)
    assert outcome.kind == "ok", outcome


def test_random_programs() -> None:
    found: Counter[str] = Counter()
    for seed in range(200):
        inputs, steps, returned = tensor_programs.random_program(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = tensor_programs.check_program(inputs, steps, returned)
        assert outcome.kind in ("ok", "unsupported"), f"seed {seed}: {outcome}"
        found[outcome.kind] += 1
    assert found["ok"] > 4 * found["unsupported"], found
