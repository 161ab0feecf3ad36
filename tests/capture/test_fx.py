"""The FX graph that backends get: made from a log of ATen calls, it does what eager does."""

from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ingot import _fx


@dataclass(frozen=True)
class Value:
    index: int


class Log(TorchDispatchMode):
    """Logs calls as capture hands them to a backend."""

    def __init__(self, inputs):
        super().__init__()
        self.calls, self.alive, self.numbers = [], [], {}
        self.examples = {self.number(x): x.clone() for x in inputs}

    def number(self, tensor):
        self.alive.append(tensor)
        return self.numbers.setdefault(id(tensor), len(self.numbers))

    def known(self, value):
        return isinstance(value, torch.Tensor) and id(value) in self.numbers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = []
        for position, row in enumerate(func._schema.arguments):
            if not row.kwarg_only and position < len(args):
                given.append(args[position])
            else:
                given.append(kwargs.get(row.name, row.default_value))
        numbers = {torch.float64: 7, torch.float32: 6, torch.bfloat16: 15, torch.int64: 4}

        def logged(value):
            if isinstance(value, torch.dtype):
                return numbers[value]
            return Value(self.number(value)) if self.known(value) else value

        arguments = [tree_map(logged, value) for value in given]
        result = func(*args, **kwargs)
        for one in torch.utils._pytree.tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.number(one)
        several = len(func._schema.returns) > 1
        results = tree_map(logged, list(result) if several else [result])
        name = func._schema.name + ("." + func._overloadname).replace(".default", "")
        self.calls.append((name, arguments, results))
        return result


def graph_of(function, *inputs):
    log = Log(inputs)
    with log:
        outputs = function(*inputs)
    indices = [None if x is None else log.numbers[id(x)] for x in outputs]
    return _fx.graph_module(log.calls, log.examples, indices)


def views_and_writes(x, y):
    row = x[1]
    row.add_(y.sum())
    x.mul_(2)
    return row, x, None


def several_results(x, y):
    values, places = x.topk(2)
    parts = x.split(1)
    return values + y[0, 0], places, torch.cat(parts), parts[0]


def keywords_and_types(x, y):
    z = torch.add(x, y, alpha=3).to(torch.float64)
    return z, torch.full((2,), 5.0), x.sum(dim=1, keepdim=True), torch.arange(3)


CONSTANT = torch.arange(3.0)


def constants(x, y):
    return x * CONSTANT, y - CONSTANT, x


@pytest.mark.parametrize(
    "function", [views_and_writes, several_results, keywords_and_types, constants]
)
def test_the_graph_does_what_the_log_says(function):
    torch.manual_seed(0)
    inputs = torch.randn(2, 3), torch.randn(2, 3)
    gm = graph_of(function, *(x.clone() for x in inputs))
    for _ in range(2):
        mine, twins = [x.clone() for x in inputs], [x.clone() for x in inputs]
        expected, actual = function(*twins), gm(*mine)
        torch.testing.assert_close(list(actual), list(expected))
        torch.testing.assert_close(mine, twins)
        for one, other in zip(actual, expected, strict=True):
            assert any(one is x for x in mine) == any(other is x for x in twins)
        inputs = torch.randn(2, 3), torch.randn(2, 3)


def test_the_graph_can_be_printed_and_read():
    gm = graph_of(keywords_and_types, torch.randn(2, 3), torch.randn(2, 3))
    printed = str(gm.graph)
    for part in ("placeholder", "arg0", "aten.add.Tensor", "alpha: 3", "return"):
        assert part in printed
    assert "torch.float64" in gm.code
    gm.graph.lint()
    pytest.importorskip("tabulate")
    gm.graph.print_tabular()


def test_autocast_is_off_inside():
    seen = []
    run = _fx.below_autocast(lambda x: seen.append(torch.is_autocast_enabled("cpu")) or x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(torch.ones(1))
    run(torch.ones(1))
    assert seen == [False, False]
