"""What own capture does when a function has been recorded too often."""

import logging

import pytest
import torch

import ingot


@pytest.fixture(autouse=True)
def own_capture(monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")


def test_past_the_limit_calls_are_eager_and_one_line_says_what_changed(caplog):
    compiled = ingot.compile(lambda x, n: x * float(n), recompile_limit=2, name="scaled")
    with caplog.at_level(logging.WARNING, logger="ingot"):
        for n in ("2.5", "3.5", "4.5", "5.5", "6.5"):  # a number would become symbolic
            torch.testing.assert_close(compiled(torch.ones(3), n), torch.full((3,), float(n)))
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith(f"ingot: scaled ({__file__}:")
    assert "): more than 2 recordings; the last guard" in lines[0]
    assert "n" in lines[0].split("failed: ")[1]


def test_past_the_limit_is_an_error_under_fullgraph():
    compiled = ingot.compile(lambda x, n: x * n, recompile_limit=2, fullgraph=True)
    for n in (True, 2.5):
        compiled(torch.ones(3), n)
    with pytest.raises(ingot.FailOnRecompileLimitHit, match="last guard"):
        compiled(torch.ones(3), 7)
    compiled(torch.ones(3), 2.5)
