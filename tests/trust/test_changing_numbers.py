"""Sizes and numbers that change at each call: never wrong, never a crash, and few programs.

A table of programs by how many recordings they may take for calls whose sizes are all different;
then random programs over sizes.
"""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot import _own_door
from ingot._settings import Settings

SIZES = [(8, 56), (5, 23), (8, 35), (4, 31), (6, 49), (8, 52), (3, 49), (7, 19), (5, 5), (2, 40)]


def own(function, **settings):
    return _own_door.compile(function, Settings(**settings))


def compare(function, calls, recordings, eager=0):
    compiled = own(function)
    with torch.no_grad():
        for arguments in calls:
            torch.manual_seed(0)
            expected = function(*arguments)
            torch.manual_seed(0)
            got = compiled(*arguments)
            torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
            if isinstance(expected, torch.Tensor):
                assert got.stride() == expected.stride()
    counters = compiled.counters()
    assert counters["recordings"] <= recordings, (counters, compiled.last_failure)
    assert counters["eager_calls"] <= eager, counters
    return compiled


def tokens(b, n):
    generator = torch.Generator().manual_seed(b * 100 + n)
    return (torch.randint(0, 100, (b, n), generator=generator),)


# What a size is used for, in places where C++ or C code of PyTorch reads it.
PROGRAMS = {
    "last token": lambda i: (i * 2)[torch.arange(i.shape[0]), i.shape[1] - 1],
    "last row": lambda i: (i * 2)[i.shape[0] - 1, torch.arange(i.shape[1])],
    "last column": lambda i: (i * 2)[:, i.shape[1] - 1],
    "last of a list": lambda i: (i * 2)[i.shape[0] - 1],
    "with a new dim": lambda i: (i * 2)[:, None, i.shape[1] - 1],
    "the middle": lambda i: (i * 2)[..., i.shape[1] // 2],
    "arange from one": lambda i: i + torch.arange(1, i.shape[1] + 1),
    "arange from a size": lambda i: i + torch.arange(i.shape[0], i.shape[0] + i.shape[1]),
    "arange in steps": lambda i: torch.arange(0, i.shape[1], 2) * 2,
    "arange downwards": lambda i: torch.arange(i.shape[1] - 1, -1, -1) + i,
    "arange of floats": lambda i: torch.arange(0.0, i.shape[1]) / 2,
    "linspace": lambda i: i + torch.linspace(0, 1, i.shape[1]),
    "remainder": lambda i: i % i.shape[1],
    "remainder of a sum": lambda i: (i - 3) % (i.shape[1] + i.shape[0]),
    "clamp": lambda i: i.clamp(max=i.shape[1]),
    "clamp on both sides": lambda i: i.clamp(0, i.shape[1] - 1),
    "clamp of floats": lambda i: i.float().clamp(min=0, max=i.shape[1]),
    "comparison": lambda i: i < i.shape[1],
    "masked_fill": lambda i: i.masked_fill(i > 50, i.shape[1]),
    "full": lambda i: torch.full((i.shape[0], 2), i.shape[1]) + 1,
    "fill": lambda i: (i * 1).fill_(i.shape[1]),
    "alpha": lambda i: torch.add(i, i, alpha=i.shape[1]),
    "rsub": lambda i: i.shape[1] - i,
    "bits": lambda i: i & i.shape[1],
    "a difference below zero": lambda i: i * (i.shape[0] - i.shape[1]),
    "half": lambda i: i[:, : int(i.shape[1] * 0.5)] * 2,
    "seven tenths": lambda i: i[:, : int(i.shape[1] * 0.7)] * 2,
    "ceil": lambda i: i[:, : math.ceil(i.shape[1] / 3)] * 2,
    "floor": lambda i: i[:, : math.floor(i.shape[1] / 3)] * 2,
    "round": lambda i: i[:, : round(i.shape[1] * 0.3)] * 2,
    "divmod": lambda i: i * divmod(i.shape[1], 7)[0] + divmod(i.shape[1], 7)[1],
    "bits of a size": lambda i: i * (i.shape[1] >> 1) + (i.shape[1] & 7) + (i.shape[0] << 2),
    "square": lambda i: i * i.shape[1] ** 2,
    "tensor": lambda i: i * torch.tensor(i.shape[1]),
    "tensor of a list": lambda i: i * torch.tensor([i.shape[1], i.shape[0]]).sum(),
    "tensor of a type": lambda i: i * torch.tensor(i.shape[1], dtype=torch.float32),
    "log": lambda i: i * math.log(i.shape[1]),
    "log of a base": lambda i: i * math.log2(i.shape[1]) * math.log(i.shape[1], 512),
    "cos": lambda i: i * math.cos(math.pi * i.shape[1] / 100),
    "exp": lambda i: i * math.exp(-i.shape[1] / 10),
    "rand": lambda i: i + torch.rand(i.shape),
    "randn": lambda i: i + torch.randn(i.shape[0], i.shape[1]),
    "randint": lambda i: i + torch.randint(0, 10, i.shape),
    "randperm": lambda i: i[:, torch.randperm(i.shape[1])].sum(1),
    "one_hot": lambda i: F.one_hot(i, 100).float() * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_all_sizes(name):
    compare(PROGRAMS[name], [tokens(*size) for size in SIZES], 3)


# A program for each number that a loop counts to: torch.compile unrolls them, too.
LOOPS = {
    "loop over quotients": lambda i: sum(
        i[:, k * 8 : k * 8 + 8].sum(1) for k in range(i.shape[1] // 8)
    ),
    "list of a size": lambda i: i * len([0] * i.shape[1]),
    "text": lambda i: (i * 2, f"{i.shape[1]} columns")[0],
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_needs_its_number_is_right(name):
    compare(LOOPS[name], [tokens(*size) for size in SIZES], 20, eager=len(SIZES))


@torch.library.custom_op("trust::times", mutates_args=())
def times(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


@times.register_fake
def _(x, n):
    return torch.empty_like(x)


def test_an_operator_with_an_int_gets_the_number():
    compare(lambda x: times(x * 2, x.shape[0]) + 1, [(torch.ones(n, 3),) for n in (4, 5, 6, 7)], 4)


def test_a_class_beyond_the_last_raises_as_in_eager():
    compiled = own(lambda t: F.one_hot(t, 4) * 2)
    good, bad = torch.tensor([0, 3, 1]), torch.tensor([0, 4, 1])
    for labels in (good, good, bad, good, -bad):
        try:
            expected = F.one_hot(labels, 4) * 2
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error).split(".")[0][:20]):
                compiled(labels)
        else:
            torch.testing.assert_close(compiled(labels), expected)


# ---- what takes recordings, and what does not ----


def test_grad_modes_and_sizes_of_one_take_no_places():
    compiled = own(lambda x: x.relu() * x.shape[0], recompile_limit=3)
    for n in (5, 7, 1, 9, 0, 4, 1, 12):
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                x = torch.randn(n, 3)
                torch.testing.assert_close(compiled(x), x.relu() * n)
    counters = compiled.counters()
    assert counters["eager_calls"] == 0, (counters, compiled.last_failure)


def test_what_is_cached_serves_past_the_limit():
    compiled = own(lambda x, name: x + len(name), recompile_limit=3)
    names = ["a", "bb", "ccc", "dddd", "eeeee"]
    for name in names * 2:
        torch.testing.assert_close(compiled(torch.ones(2), name), torch.ones(2) + len(name))
    before = compiled.counters()["eager_calls"]
    for name in names[:3]:
        compiled(torch.ones(2), name)
    assert compiled.counters()["eager_calls"] == before


def test_sizes_that_differed_once_are_two_symbols():
    compiled = own(lambda x: x.sum(0) + x.sum(1).mean())
    for n, m in ((4, 4), (6, 6), (5, 8), (9, 9), (3, 7), (7, 7)):
        x = torch.randn(n, m)
        torch.testing.assert_close(compiled(x), x.sum(0) + x.sum(1).mean())
    assert compiled.counters()["recordings"] <= 4, compiled.last_failure


def test_floats_of_a_schedule():
    def rate(x, step, base):
        return x * (base * 0.5 * (1 + math.cos(math.pi * step / 100))) + math.tanh(base) // 0.1

    calls = [(torch.ones(3), k, 0.1 * k) for k in range(3, 12)]
    compare(rate, calls, 3)


# ---- state that is replaced ----


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.state = (torch.zeros(2, 8), torch.zeros(2, 8))
        self.history = []
        self.parts = [torch.ones(8)]

    def forward(self, x):
        h, c = self.state
        c = c * 0.5 + x
        h = torch.tanh(self.linear(h) + c)
        self.state = (h, c)
        self.parts = [p * 1.5 for p in self.parts]
        self.history.append(h.detach())
        self.history = self.history[-3:]
        return torch.stack(self.history).mean(0) * self.parts[0]


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.keys = None

    def forward(self, x):
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        return self.linear(self.keys).sum(0)


@pytest.mark.parametrize("kind", [Cell, Growing])
def test_replaced_state_replays(kind):
    torch.manual_seed(0)
    module = kind()
    expected, compiled = copy.deepcopy(module), ingot.compile(module, options={"capture": "own"})
    before = ingot.stats()
    with torch.no_grad():
        for _ in range(14):
            x = torch.randn(2, 8)
            torch.testing.assert_close(compiled(x), expected(x))
    after = ingot.stats()
    assert after.eager_calls == before.eager_calls, after
    assert after.recordings - before.recordings <= 6, after


def test_functional_call_with_tensors_replays():
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    weights = {k: v.detach().clone() for k, v in module.named_parameters()}
    x = torch.randn(3, 8)
    compiled = own(lambda w, x: torch.func.functional_call(module, w, (x,)))
    for k in range(6):
        given = {name: w * (1 + k) for name, w in weights.items()}
        expected = torch.func.functional_call(module, given, (x,))
        torch.testing.assert_close(compiled(given, x), expected)
    assert compiled.counters()["recordings"] <= 2, compiled.last_failure


# ---- random programs ----


def numbers(writer, depth=0):
    """Text of an integer above zero, of sizes and small numbers."""
    n = writer.choice(["x.shape[0]", "x.shape[1]", "len(x)", "x.numel()", "3"])
    if depth == 2 or writer.random() < 0.3:
        return n
    a, b = numbers(writer, depth + 1), numbers(writer, depth + 1)
    return writer.choice(
        [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {b})",
            f"({a} // 3)",
            f"({a} % 7)",
            f"min({a}, {b})",
            f"max({a}, {b})",
            f"abs({a} - {b})",
            f"int({a} * 0.3)",
            f"math.ceil({a} / 4)",
            f"round({a} / 3)",
            f"({a} >> 1)",
            f"({a} & 7)",
            f"divmod({a}, 5)[{writer.randrange(2)}]",
            f"int(math.sqrt(abs({a})))",
            f"(-{a})",
        ]
    )


def uses(writer):
    n = numbers(writer)
    small = f"(abs({n}) % 5 + 1)"
    return writer.choice(
        [
            f"x * {n}",
            f"x % ({small})",
            f"x.clamp(max={n})",
            f"x - torch.tensor({n})",
            f"x[{small} % x.shape[0]]",
            f"x[torch.arange(x.shape[0]), {small} % x.shape[1]]",
            f"x[:{small}]",
            f"torch.arange({small}, {small} + 4)",
            f"torch.full((2,), {n})",
            f"x * math.log({small} + 1)",
            f"x.masked_fill(x > 0, {n})",
            f"torch.cat([x, x])[: {n}]",
            f"x.float() / {small}",
            f"x + {n} / 3",
            f"({n}, x)",
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_over_sizes(seed):
    writer = random.Random(seed)
    scope = {"torch": torch, "math": math}
    parts = ", ".join(uses(writer) for _ in range(3))
    exec(f"def program(x):\n    return [{parts}]", scope)
    program = scope["program"]
    compiled = own(program)
    with torch.no_grad():
        for n, m in ((4, 6), (5, 9), (7, 3), (1, 4), (6, 6), (12, 2), (3, 11)):
            x = torch.arange(n * m).view(n, m) - 5
            try:
                expected = program(x)
            except Exception as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            got = compiled(x)
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(
                    a, b, rtol=1e-5, atol=1e-5, msg=lambda m: f"{parts}: {m}"
                )
