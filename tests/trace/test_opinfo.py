"""PyTorch's operator database: no wrong result, and no operator that was compiled is lost.

float32 runs two samples of each operator; of the other types each operator runs two, chosen by its
name so that every type gets its share. INGOT_OPINFO=all runs all types, which takes minutes.
"""

from __future__ import annotations

import os
import pathlib
import sys
import zlib

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import opinfo

_COMPILED = opinfo.supported()
_BY_NAME = {opinfo.full_name(op): op for op in opinfo.operators()}


def _dtypes(name: str) -> list[str]:
    op = _BY_NAME[name]
    others = [d for d in opinfo.DTYPES[1:] if getattr(torch, d) in op.supported_dtypes("cpu")]
    if os.environ.get("INGOT_OPINFO") != "all":
        first = zlib.crc32(name.encode())
        others = [others[(first + k) % len(others)] for k in range(min(2, len(others)))]
    return ["float32", *others]


@pytest.mark.parametrize("name", list(_BY_NAME))
def test_operator_agrees_with_eager(name: str) -> None:
    op = _BY_NAME[name]
    if opinfo.is_random(op):
        pytest.skip("two eager runs differ")
    fell_back = []
    for dtype in _dtypes(name):
        outcome = opinfo.check(op, getattr(torch, dtype), 2 if dtype == "float32" else 1)
        known = dtype in _COMPILED.get(name, ())
        if outcome.kind == "unsupported" and not known:
            fell_back.append(f"{dtype}: {outcome.detail}")
            continue
        good = ("ok", "raises", "none", "wrong" if opinfo.differs(name, dtype) else "")
        assert outcome.kind in good, f"{name}, {dtype}: {outcome.kind}: {outcome.detail}"
    if fell_back:
        pytest.skip("falls back: " + "; ".join(fell_back))


def test_known_differences_are_still_there() -> None:
    for pattern, (dtypes, _) in opinfo.DIFFERS.items():
        op = next(opinfo.operators(pattern))
        kinds = {opinfo.check(op, getattr(torch, d), 2).kind for d in dtypes}
        assert "wrong" in kinds, f"{pattern} agrees with eager now: take it off the list"
