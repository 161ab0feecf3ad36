"""PyTorch's operator database on a GPU: each operator as eager has it there, forward and backward.

Floats may be twice as far from a float64 run as eager's are; what falls back is skipped.
"""

from __future__ import annotations

import pathlib
import sys
import zlib
from collections import Counter

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "trace"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "training"))
import opinfo
import sweep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")

_BY_NAME = {opinfo.full_name(op): op for op in opinfo.operators()}
_DIFFERENTIABLE = {opinfo.full_name(op): op for op in sweep.differentiable_operators()}


def _dtypes(name: str) -> list[str]:
    """float32 and two of the other types, chosen by the name."""
    op = _BY_NAME[name]
    others = [d for d in opinfo.DTYPES[1:] if getattr(torch, d) in op.supported_dtypes("cuda")]
    first = zlib.crc32(name.encode())
    return ["float32", *(others[(first + k) % len(others)] for k in range(min(2, len(others))))]


@pytest.mark.parametrize("name", list(_BY_NAME))
def test_results(name: str) -> None:
    op = _BY_NAME[name]
    if opinfo.is_random(op, "cuda"):
        pytest.skip("two eager runs differ")
    fell_back = []
    for dtype in _dtypes(name):
        outcome = opinfo.check(op, getattr(torch, dtype), 2, "cuda")
        if outcome.kind == "unsupported":
            fell_back.append(f"{dtype}: {outcome.detail}")
            continue
        good = ("ok", "raises", "none", "wrong" if opinfo.differs(name, dtype, "cuda") else "")
        assert outcome.kind in good, f"{name}, {dtype}: {outcome.kind}: {outcome.detail}"
    if fell_back:
        pytest.skip("falls back: " + "; ".join(fell_back))


@pytest.mark.parametrize("name", list(_DIFFERENTIABLE))
def test_gradients(name: str) -> None:
    op = _DIFFERENTIABLE[name]
    if torch.float32 not in op.supported_backward_dtypes("cuda"):
        pytest.skip("no gradients in float32")
    random = opinfo.is_random(op, "cuda")
    cases = sweep.operator_cases(op, torch.float32, 3, "cuda")
    assert sweep.judge(cases, Counter(), Counter(), random) == []
