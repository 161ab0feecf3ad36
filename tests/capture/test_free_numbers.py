"""Numbers that cost no program: those of expanded arguments."""

from __future__ import annotations

import pytest
import torch

from ingot import _own_door
from ingot._settings import Settings


def own(function, **settings):
    return _own_door.compile(function, Settings(**settings))


def recordings(compiled, most):
    counters = compiled.counters()
    assert counters["eager_calls"] == 0, counters
    assert counters["recordings"] <= most, (counters, compiled.last_failure)


# ---- f(*something) ----

SIZES = [(n, 2 + n % 5) for n in (3, 5, 4, 9, 17, 2, 64, 31)]


def product(*numbers):
    total = 1
    for n in numbers:
        total = total * n
    return total


@pytest.mark.parametrize(
    "f",
    [
        lambda x: 1 + x.reshape(*(n for n in reversed(x.shape))),
        lambda x: x.new_zeros(*[n + 1 for n in x.shape]),
        lambda x: product(*(x * n for n in x.shape)),
        lambda x: x + product(*(k for k in {"a": 2, "b": x.shape[0]}.values())),
    ],
)
def test_expanded_generators_fix_no_sizes(f):
    compiled = own(f)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), f(x))
    recordings(compiled, 4)


def test_expanded_lists_from_outside_are_guarded():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.items = [2, 3]

        def forward(self, x):
            return x * product(*self.items)

    module = Model()
    compiled = own(module)
    x = torch.ones(2)
    with torch.no_grad():
        for k in (2, 5, 3, 7):
            module.items.append(k)
            torch.testing.assert_close(compiled(x), module(x))
            module.items[0] = k
            torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("kind", [iter, lambda items: map(int, items), lambda s: (n for n in s)])
def test_expanded_iterators_from_outside_are_not_kept(kind):
    def f(x, items):
        return x * product(*items) + 1

    compiled = own(f)
    x = torch.ones(2)
    with torch.no_grad():
        for items in ([2, 3], [2, 3], [4, 5], [7], []):
            torch.testing.assert_close(compiled(x, kind(items)), f(x, kind(items)))


def test_what_cannot_be_expanded_raises_as_ever():
    def f(x, items):
        return x * product(*items)

    compiled = own(f)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"argument after \* must be an iterable, not int"):
            compiled(torch.ones(2), 3)
