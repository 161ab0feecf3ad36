"""Own capture where the compiler fails: eager's result, one line, a program that reproduces it."""

import logging
import runpy
import tempfile

import pytest
import torch

import ingot

OWN = {"capture": "own", "target": "no-such-cpu"}  # a compiler that cannot serve anything


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Such a processor is refused when it is named; here the compiler is to meet it."""
    monkeypatch.setattr("ingot._checks.target", lambda *_: None)


def scaled(x, y):
    kept = torch.nn.functional.dropout(x, 0.5)
    x.add_(1)
    return (kept * x + y).sum(1), x


def inputs():
    torch.manual_seed(3)
    return torch.randn(4, 5), torch.randn(5)


def reproducers(folder):
    return sorted(folder.rglob("graph_*.py"))


def run(path):
    torch.manual_seed(0)
    return runpy.run_path(str(path))["Graph"]()


def test_eager_runs_and_a_program_reproduces_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiled = ingot.compile(scaled, options=OWN)
    before = ingot.stats()
    for _ in range(2):
        results = []
        for function in (compiled, scaled):
            x, y = inputs()
            results.append((*function(x, y), x, torch.rand(2)))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    after = ingot.stats()
    assert any("no-such-cpu" in line for line in after.reasons[len(before.reasons) :])
    lines = [r for r in caplog.records if "no-such-cpu" in r.message]
    assert [r.levelno for r in lines] == [logging.WARNING]
    (path,) = reproducers(tmp_path)
    assert str(path) in lines[0].message
    module, expected = run(path), scaled(*inputs())
    x, y = inputs()
    torch.testing.assert_close(module(x, y)[0], expected[0])
    torch.testing.assert_close(x, expected[1])


def test_gradients_flow_where_the_compiler_fails():
    x = torch.randn(3, requires_grad=True)
    ingot.compile(lambda x: (x * x).sin(), options=OWN)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * (x.detach() ** 2).cos())


def test_without_fallback_it_is_raised_and_the_effects_before_it_stay():
    seen = []

    def program(x):
        seen.append(x + 1)
        return x * 2

    compiled = ingot.compile(program, options={**OWN, "fallback": False})
    with pytest.raises(RuntimeError, match="no-such-cpu"):
        compiled(torch.ones(2))
    torch.testing.assert_close(seen[0], torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="no-such-cpu"):
        compiled(torch.ones(2))


def test_every_graph_is_written_for_debugging(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", str(tmp_path))
    x, y = inputs()
    ingot.compile(lambda x, y: (x @ y).cos(), options={"capture": "own"})(x, y)
    (path,) = reproducers(tmp_path)
    torch.testing.assert_close(run(path)(x, y)[0], (x @ y).cos())


def test_what_cannot_be_written_costs_nothing(monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", "/proc/no/such/place")
    compiled = ingot.compile(scaled, options=OWN)
    torch.testing.assert_close(compiled(*inputs()), scaled(*inputs()), rtol=0, atol=0)
