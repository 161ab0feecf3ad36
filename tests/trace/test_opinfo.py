"""PyTorch's operator database: no wrong result, and no operator that was supported is lost."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import opinfo

_SUPPORTED = set(opinfo.SUPPORTED.read_text().split()) if opinfo.SUPPORTED.exists() else set()
_ALL = [opinfo.full_name(op) for op in opinfo.operators()]
_BY_NAME = {opinfo.full_name(op): op for op in opinfo.operators()}


@pytest.mark.parametrize("name", _ALL)
def test_operator_agrees_with_eager(name: str) -> None:
    op = _BY_NAME[name]
    if opinfo.is_random(op):
        pytest.skip("two eager runs differ")
    outcome = opinfo.check(op, torch.float32, 2)
    if outcome.kind == "unsupported" and name not in _SUPPORTED:
        pytest.skip(f"falls back: {outcome.detail}")
    assert outcome.kind == "ok", f"{name}: {outcome.kind}: {outcome.detail}"
