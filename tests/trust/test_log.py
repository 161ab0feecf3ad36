"""Not silent: what is said at which level, with the user's line, and never twice."""

import logging
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch

import ingot


@pytest.fixture(autouse=True)
def own_capture(monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")
    ingot.reset()


@pytest.fixture
def lines(caplog):
    """Of the level that is asked for: (logger, level, line)."""

    def at(level):
        return [
            (r.name, r.levelname, r.getMessage())
            for r in caplog.records
            if r.name.split(".")[0] == "ingot" and r.levelno >= level
        ]

    caplog.set_level(logging.DEBUG, logger="ingot")
    return at


def line_of(function, text):
    """file:line of the function's line that has this text."""
    code = function.__code__
    with open(code.co_filename) as file:
        source = file.readlines()
    number = next(n for n, line in enumerate(source, 1) if n > code.co_firstlineno and text in line)
    return f"{code.co_filename}:{number}"


def gives_a_generator(x):
    generator = (x + k for k in range(3))
    next(generator)
    return generator


def test_a_call_that_runs_eagerly_says_so_once(lines):
    compiled = ingot.compile(gives_a_generator)
    for n in (2, 3, 4):
        list(compiled(torch.ones(n)))
    ((logger, level, line),) = lines(logging.WARNING)
    assert (logger, level) == ("ingot", "WARNING")
    assert line.startswith("ingot: gives_a_generator (")
    assert f"{__file__}:{gives_a_generator.__code__.co_firstlineno}" in line
    assert "whole calls run eagerly" in line and "generator" in line and "hint: " in line
    assert "\n" not in line
    list(ingot.compile(gives_a_generator)(torch.ones(2)))  # another object, the same function
    assert len(lines(logging.WARNING)) == 1


class Plain(torch.Tensor):
    pass


def test_the_reason_is_of_a_module(lines):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x * 2

    ingot.compile(Net())(torch.ones(2).as_subclass(Plain))
    ((_, _, line),) = lines(logging.WARNING)
    assert "test_the_reason_is_of_a_module.<locals>.Net (" in line and "subclass" in line


def branches(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y


def loops(x):
    for _ in range(3):
        x = x * x.sum().item()
    return x


def test_a_break_is_said_at_info_alone(lines):
    ingot.compile(branches)(torch.ones(2))
    assert lines(logging.WARNING) == []
    found = [one for one in lines(logging.INFO) if one[0] == "ingot.graph_breaks"]
    ((_, level, line),) = found
    assert level == "INFO" and "graph break: a tensor decides a branch" in line
    assert f"at {line_of(branches, 'y.sum()')} in branches" in line and "torch.where" in line


def test_a_break_in_a_loop_is_said_once(lines):
    compiled = ingot.compile(loops)
    for n in (2, 3):
        compiled(torch.ones(n))
    ((_, _, line),) = lines(logging.WARNING)
    where = line_of(loops, "item()")
    assert f"a graph break in the loop at {where}" in line
    texts = [one[2] for one in lines(logging.INFO)]
    assert len(texts) == len(lines(logging.INFO)) > 1


def calls_a_library(x):
    return x * len(re.compile(f"a{x.shape[0]}b?[c-e]+{len(os.environ)}").pattern)


def outer(x):
    return calls_a_library(x) + 1


def test_the_line_is_the_users(lines):
    re.purge()
    ingot.compile(outer)(torch.ones(7))
    text = next(one[2] for one in lines(logging.INFO) if one[0] == "ingot.graph_breaks")
    here, above = line_of(calls_a_library, "re.compile"), line_of(outer, "calls_a_library")
    assert f"at {here} in calls_a_library < {above} in outer (inside " in text
    assert re.search(r"\(inside \S*re/\S+:\d+ in ", text)
    with pytest.raises(ingot.Unsupported) as caught:
        re.purge()
        ingot.compile(outer, fullgraph=True)(torch.ones(7))
    names = [frame.name for frame in caught.value.user_stack]
    assert names[:2] == ["outer", "calls_a_library"]
    assert "calls_a_library(x) + 1" in str(caught.value)


def test_recompiles_say_which_guard_failed(lines):
    compiled = ingot.compile(lambda x, flag: x * len(flag), name="counted")
    for flag in ("a", "bb", "bb", "ccc"):
        compiled(torch.ones(2), flag)
    found = [one for one in lines(logging.INFO) if one[0] == "ingot.recompiles"]
    assert [level for _, level, _ in found] == ["INFO", "INFO"]
    assert all("ingot: counted (" in line and "flag" in line for _, _, line in found)
    guards = [one[2] for one in lines(logging.DEBUG) if one[0] == "ingot.guards"]
    assert any("recording 1 does not fit" in line for line in guards)
    assert any("flag" in line and "guards:" in line for line in guards)


def test_the_limit_is_said_once_with_the_place(lines):
    def scaled(x, n):
        return x * float(n)

    compiled = ingot.compile(scaled, recompile_limit=2)
    for n in ("1.5", "2.5", "3.5", "4.5"):
        compiled(torch.ones(2), n)
    ((_, _, line),) = lines(logging.WARNING)
    assert "scaled" in line and f"({__file__}:{scaled.__code__.co_firstlineno})" in line
    assert "more than 2 recordings" in line and "n:" in line and "hint: " in line


def test_what_compiles_says_nothing(lines):
    def program(x, w):
        return torch.nn.functional.gelu(x @ w).sum()

    compiled = ingot.compile(program)
    w = torch.ones(3, 3, requires_grad=True)
    for n in (2, 3, 4):
        compiled(torch.ones(n, 3), w).backward()
    assert lines(logging.WARNING) == []
    assert [one for one in lines(logging.INFO) if one[0] == "ingot.graph_breaks"] == []


def test_a_programs_exception_is_no_news(lines):
    def program(x):
        raise ValueError(1)

    for _ in range(2):
        with pytest.raises(ValueError):
            ingot.compile(program)(torch.ones(2))
    with ingot.set_stance("force_eager"):
        ingot.compile(gives_a_generator)(torch.ones(2))
    assert lines(logging.WARNING) == []


SCRIPT = """
    import logging, sys
    import torch, ingot
    {setup}
    def step(x):
        for _ in range(2):
            x = x * x.sum().item()
        return x
    f = ingot.compile(step)
    f(torch.ones(2)), f(torch.ones(3))
"""


@pytest.mark.parametrize(
    ("setup", "lines"),
    [
        ("", 1),
        ("logging.getLogger('ingot').setLevel(logging.ERROR)", 0),
        ("logging.basicConfig(level=logging.WARNING)", 1),
        ("logging.getLogger('ingot').addHandler(logging.NullHandler())", 0),
    ],
)
def test_the_configuration_of_logging_is_the_programs(setup, lines):
    script = textwrap.dedent(SCRIPT.format(setup=setup))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env=os.environ | {"INGOT_CAPTURE": "own"},
    )  # fmt: skip
    assert done.stdout == ""
    assert done.stderr.count("ingot: step") == lines
    assert len(done.stderr.splitlines()) == lines


# What is counted and explained.


def test_kernels_and_externs_are_counted():
    ingot.reset()
    ingot.compile(lambda x: (x * 2).sum() + 1)(torch.randn(7, 9))
    found = ingot.stats()
    assert found.kernels > 0 and found.externs == 0
    ingot.compile(lambda x: torch.linalg.inv(x) + 1)(torch.eye(3))
    assert ingot.stats().externs > 0 and ingot.stats().kernels > found.kernels


def test_explain_lists_the_parts_as_they_ran():
    def program(x):
        y = x.sin()
        print(end="")
        y = y.cos()
        print(end="")
        return y.exp()

    found = ingot.explain(program)(torch.ones(2))
    assert found.ops_per_graph == [["aten::sin"], ["aten::cos"], ["aten::exp"]]
    assert [one.user_stack[-1].lineno for one in found.break_reasons] == [
        program.__code__.co_firstlineno + 2,
        program.__code__.co_firstlineno + 4,
    ]


def test_the_users_frames_are_explained():
    found = ingot.explain(outer)(torch.ones(11)) if re.purge() is None else None
    names = [frame.name for frame in found.break_reasons[0].user_stack]
    assert names[:2] == ["outer", "calls_a_library"]
