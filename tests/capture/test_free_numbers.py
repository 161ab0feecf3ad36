"""Numbers that cost no program: tuples that something holds, expanded arguments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ingot import _own_door
from ingot._settings import Settings


def own(function, **settings):
    return _own_door.compile(function, Settings(**settings))


def recordings(compiled, most):
    counters = compiled.counters()
    assert counters["eager_calls"] == 0, counters
    assert counters["recordings"] <= most, (counters, compiled.last_failure)


# ---- tuples ----


class Holder(torch.nn.Module):
    """What is changed between calls is in `put`."""

    def __init__(self):
        super().__init__()
        self.sizes = (3, 4)

    def put(self, sizes):
        self.sizes = sizes

    def forward(self, x):
        h, w = self.sizes
        padded = F.pad(x, (h, w))
        return padded[..., : h + 1] * (h * w) + sum(self.sizes), x.new_ones(self.sizes)


class InList(Holder):
    def __init__(self):
        super().__init__()
        self.all = [(3, 4), 2.5]

    def put(self, sizes):
        self.all[0] = sizes

    def forward(self, x):
        return x * self.all[0][0] + self.all[0][-1] * self.all[1]


class InSlot:
    __slots__ = ("sizes",)


class Elsewhere(Holder):
    """In a slot and in a cell; floats among the numbers."""

    def __init__(self):
        super().__init__()
        self.slot, cell = InSlot(), (2, 0.5)
        self.slot.sizes = (3, 4)

        def put(sizes):
            nonlocal cell
            cell = (sizes[0], sizes[1] + 0.5)

        self.put_cell, self.read_cell = put, lambda: cell

    def put(self, sizes):
        self.slot.sizes = sizes
        self.put_cell(sizes)

    def forward(self, x):
        return x * self.read_cell()[1] + self.slot.sizes[0] * self.read_cell()[0]


CHANGES = [(3, 4), (5, 6), (7, 8), (9, 9), (3, 4), (6, 2), (11, 30)]


@pytest.mark.parametrize("kind", [Holder, InList, Elsewhere])
def test_tuples_that_a_module_holds_are_inputs(kind):
    module = kind()
    compiled = own(module)
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        for sizes in CHANGES:
            module.put((*sizes,))
            torch.testing.assert_close(compiled(x), module(x))
    recordings(compiled, 3)


def test_equal_tuples_in_turn_cost_no_program():
    module = Holder()
    compiled = own(module)
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        sizes = [3, 4]
        for _ in range(6):
            module.sizes = (*sizes,)
            torch.testing.assert_close(compiled(x), module(x))
    recordings(compiled, 2)


def test_a_tuple_that_does_not_change_is_constant():
    module = Holder()
    compiled = own(module)
    with torch.no_grad():
        for n in (2, 5, 3, 7):  # recorded again for its sizes
            x = torch.randn(n, 3, 4, 4)
            torch.testing.assert_close(compiled(x), module(x))
        before = module.sizes
        compiled(x)
    assert module.sizes is before
    recordings(compiled, 2)


class Constants(torch.nn.Module):
    """Its code has the tuple (3, 4) among its constants, and CPython makes equal ones one."""

    def first(self):
        self.sizes = (3, 4)

    def second(self):
        self.sizes = (4, 3)

    def forward(self, x):
        y = x.reshape((3, 4)) * self.sizes[0]
        return y + (3, 4)[1] if self.sizes == (3, 4) else y - self.sizes[1]


def test_constants_of_the_code_are_not_the_tuples_of_a_module():
    module = Constants()
    compiled = own(module)
    x = torch.randn(12)
    with torch.no_grad():
        for change in (module.second, module.first, module.second, module.first):
            change()
            torch.testing.assert_close(compiled(x), module(x))
        for sizes in CHANGES:
            module.sizes = sizes
            torch.testing.assert_close(compiled(x), module(x))


def test_tuples_of_other_lengths_and_kinds():
    class Any(torch.nn.Module):
        def forward(self, x):
            for item in self.items:
                x = x + 1 if item is None else x * len(item) if isinstance(item, str) else x + item
            return x

    module = Any()
    module.items = (3, 4)
    compiled = own(module)
    x = torch.randn(3)
    with torch.no_grad():
        others = ((5, 6), (5, 6, 7), (2.5, 6), (None, 6), ("ab", 6), (), (True, 2), (8, 9))
        for items in ((3, 4), *others):
            module.items = items
            torch.testing.assert_close(compiled(x), module(x))


def test_a_constant_of_the_code_that_comes_as_an_argument():
    def f(x, sizes):
        return x.reshape((3, 4)) * sizes[0] + sizes[1]

    def constant():
        return (3, 4)

    compiled = own(f)
    x = torch.randn(12)
    with torch.no_grad():
        for sizes in ((4, 3), constant(), (5, 6), constant(), (7, 8)):
            torch.testing.assert_close(compiled(x, sizes), f(x, sizes))


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
