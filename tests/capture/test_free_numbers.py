"""Numbers that cost no program: tuples that something holds, expanded arguments, inputs that need
gradients."""

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


# ---- inputs that need gradients ----


LAYER = torch.nn.Linear(8, 5)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def gradient_inside(x):
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g * x.shape[0]


def in_place(x):
    y = x.clone()
    y[1:].mul_(2)
    return y.add_(x)


def after_a_break(x):
    y = LAYER(x).tanh()
    print(end="")
    return (y / y.shape[0]).softmax(-1)  # times 64, eager's own error is past the tolerance


FORMS = {
    "pointwise": (lambda x: x.sin() * x.shape[0], 2),
    "layer": (lambda x: LAYER(x).relu().softmax(-1), 2),
    "views": (lambda x: (x[1:] * 2, x[0], x.t(), x), 3),
    "products": (lambda x: x @ x.t() * 0.1, 2),
    "norm": (lambda x: F.layer_norm(x, (8,)).sum(0) + x.mean(), 2),
    "in place": (in_place, 3),
    "break": (after_a_break, 4),
    "partly": (lambda x: x.detach() * x[:, :3].sum() + F.pad(x, (1, 1))[:, 1:9], 3),
    "gradient": (gradient_inside, 4),
    "custom": (lambda x: Square.apply(x.sin()) + x, 3),
    # It is given the tensor itself: sizes are fixed.
    "custom, of the input": (lambda x: Square.apply(x) + x, 12),
}


def gradients_of(call, x, history):
    leaf = x.clone().requires_grad_()
    results = call(leaf * 1.5 if history else leaf)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((r * (k + 1)).square().sum() for k, r in enumerate(results))
    (grad,) = torch.autograd.grad(loss, leaf)
    return [r.detach() for r in results], grad, [r.requires_grad for r in results]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_sizes_of_inputs_that_need_gradients_are_free(name, history):
    f, most = FORMS[name]
    compiled = own(f)
    for n in (4, 7, 5, 12, 3, 9, 2, 64):
        x = torch.randn(n, 8)
        for _ in range(2):
            got, want = (gradients_of(call, x, history) for call in (compiled, f))
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    recordings(compiled, most)


def test_a_backward_into_an_input_of_many_sizes():
    def f(x, w):
        loss = (x @ w).sin().sum()
        loss.backward()
        return loss.detach() * x.shape[0]

    compiled = own(f)
    for n in (4, 7, 5, 4, 9):
        base = torch.randn(n, 8)
        results = []
        for call in (compiled, f):
            torch.manual_seed(0)
            x, w = base.clone().requires_grad_(), torch.randn(8, 3, requires_grad=True)
            results.append((call(x, w), x.grad, w.grad))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_double_backward_at_many_sizes():
    def f(x):
        return (LAYER(x).sin() * x.shape[0]).sum()

    compiled = own(f)
    for n in (4, 7, 5, 12):
        base, results = torch.randn(n, 8), []
        for call in (compiled, f):
            x = base.clone().requires_grad_()
            (first,) = torch.autograd.grad(call(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            results.append((first, second))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    recordings(compiled, 2)


def test_inputs_with_and_without_gradients_in_turn():
    compiled = own(lambda x, y: (x * y).sum(0))
    for k, n in enumerate((4, 7, 5, 12, 3, 9, 6, 8)):
        results = []
        x, y = torch.randn(n, 3), torch.randn(n, 3)
        for call in (compiled, lambda x, y: (x * y).sum(0)):
            a, b = x.clone().requires_grad_(k % 2 == 0), y.clone().requires_grad_(k % 4 < 2)
            out = call(a, b)
            if out.requires_grad:
                out.square().sum().backward()
            results.append((out.detach(), a.grad, b.grad))
        torch.testing.assert_close(*results)
