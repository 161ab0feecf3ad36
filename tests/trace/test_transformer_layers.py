"""The fused operators of nn.MultiheadAttention and nn.TransformerEncoderLayer are taken apart."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot


def _error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float((result.double() - reference).abs().max() / reference.abs().max())


def _check(module: nn.Module, *inputs: torch.Tensor, calls: int = 0) -> None:
    """As close to fp64 as eager, of eager's strides, and with so many operators left to PyTorch."""
    module = module.eval()
    precise = copy.deepcopy(module).double()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        expected = module(*inputs)
        reference = precise(*(x.double() for x in inputs))
        result = ingot.compile(module, options={"debug": folder})(*inputs)
        (traced,) = Path(folder).glob("*/00_traced.ir")
        assert traced.read_text().count("extern_call") == calls
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    least = 4 * torch.finfo(expected.dtype).eps
    assert _error(result, reference) <= max(2 * _error(expected, reference), least)


class Attend(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, dtype=dtype)
        for p in self.attention.parameters():
            nn.init.normal_(p, std=0.3)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.attention(q, k, v, need_weights=False)[0]


class Weights(Attend):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.attention(q, k, v)[1]


def _values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_self_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = _values(3, 7, 32, dtype=dtype)
    _check(Attend(dtype), x, x, x)


def test_attention_to_another_sequence() -> None:
    torch.manual_seed(0)
    other = _values(3, 5, 32, seed=1)
    _check(Attend(), _values(3, 7, 32), other, other)
    _check(Attend(), _values(3, 5, 32), other, _values(3, 5, 32, seed=2))


def test_rows_that_do_not_lie_side_by_side() -> None:
    torch.manual_seed(0)
    x = _values(7, 3, 32).transpose(0, 1)
    _check(Attend(), x, x, x)


def test_weights_of_attention_stay_a_call() -> None:
    torch.manual_seed(0)
    x = _values(3, 7, 32)
    _check(Weights(), x, x, x, calls=1)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_encoder_layer(activation: str, norm_first: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, activation=activation, norm_first=norm_first, batch_first=True, dtype=dtype
    )
    _check(layer, _values(3, 7, 32, dtype=dtype))


def test_encoder_of_changing_length() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    compiled = ingot.compile(encoder, dynamic=True)
    with torch.no_grad():
        for batch, length in [(2, 5), (3, 7), (1, 1), (4, 9), (2, 16)]:
            x = _values(batch, length, 32)
            torch.testing.assert_close(compiled(x), encoder(x), rtol=1e-5, atol=1e-5)


def test_mask_keeps_its_meaning() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x, padding = _values(2, 6, 32), torch.arange(6).expand(2, 6) > 3
    compiled = ingot.compile(layer)
    with torch.no_grad():
        result = compiled(x, src_key_padding_mask=padding)
        expected = layer(x, src_key_padding_mask=padding)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
