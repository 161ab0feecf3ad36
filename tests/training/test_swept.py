"""What sweeps found: refused calls, recurrent layers, complex gradients, doubles."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import sweep
import torch

import ingot

# Where a recording computed what eager does not; each has error inputs in the database.
NAMES = [
    "aminmax",
    "amin",
    "amax",
    "complex",
    "gather",
    "index_add",
    "masked_fill",
    "native_layer_norm",
    "roll",
    "scatter",
    "nn.functional.conv3d",
    "nn.functional.gelu",
    "nn.functional.max_pool3d",
    "nn.functional.max_pool2d",
    "nn.functional.softshrink",
    "nn.functional.nll_loss",
    "nn.functional.huber_loss",
]


@pytest.mark.parametrize("name", NAMES)
def test_errors(name):
    op = next(o for o in sweep.differentiable_operators(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sweep.judge(sweep.operator_errors(op), Counter(), Counter())
    assert not found, "\n".join(found)


# Where a gradient was missing, or an error that eager's gradient raises for what the data are.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cat", torch.float32),
        ("linalg.eigh", torch.complex64),
        ("nn.functional.hardsigmoid", torch.float64),
    ],
)
def test_samples(name, dtype):
    op = next(o for o in sweep.differentiable_operators(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sweep.judge(sweep.operator_cases(op, dtype, 8), Counter(), Counter())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_layer_is_one_program(bias, bidirectional):
    torch.manual_seed(0)
    layer = torch.nn.LSTM(5, 6, num_layers=2, bias=bias, bidirectional=bidirectional)
    case = sweep.Case(layer, (torch.randn(4, 3, 5, requires_grad=True),), {})
    assert not sweep.difference(case)
    ingot.reset()
    compiled = ingot.compile(layer, fullgraph=True, options={"fallback": False})
    x = torch.randn(4, 3, 5)
    compiled(x)[0].sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    assert not ingot.stats().reasons


def compare_samples(name, dtype):
    operators = list(sweep.differentiable_operators(name))
    assert operators, name
    for op in operators:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sweep.judge(sweep.operator_cases(op, dtype, 3), Counter(), Counter())
        assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "nn.functional.tanhshrink"])
def test_complex_gradients_conjugate(name):
    compare_samples(name, torch.complex64)


@pytest.mark.parametrize("kind", ["linear", "bilinear", "trilinear", "bicubic"])
def test_doubles_are_interpolated_as_doubles(kind):
    compare_samples(f"nn.functional.interpolate.{kind}", torch.float64)
