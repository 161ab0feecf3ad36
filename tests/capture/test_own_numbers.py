"""Floats and integers that change under Ingot's own capture: how many programs they cost."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot import _own_door
from ingot._settings import Settings

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="numbers lie on the processor: with a GPU floats are fixed"
)


def own(function, **settings):
    return _own_door.compile(function, Settings(**settings))


def compare(function, calls, recordings, **settings):
    """The compiled function gives what eager does; it is recorded at most so many times."""
    compiled = own(function, **settings)
    with torch.no_grad():
        for arguments in calls:
            got, expected = compiled(*arguments), function(*arguments)
            assert type(got) is type(expected)
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    counters = compiled.counters()
    assert counters["eager_calls"] == 0, counters
    assert counters["recordings"] <= recordings, (counters, compiled.last_failure)
    return compiled


RATES = [0.5, 0.25, 3.5, 1e-3, 7.0, 0.125, 2.0]


def test_a_float_is_an_input_once_it_changed():
    x = torch.randn(5)
    compare(lambda x, a: x * a, [(x, a) for a in RATES], 2)


def test_arithmetic_on_floats_is_followed():
    def f(x, a, b):
        c = (a - 2 * b) / (1 + a * b) + a**2 - b
        return x * c, torch.addcmul(x, x, x, value=-c), x.double() + 1 / a, x.double() * c, c

    x = torch.randn(9)
    compare(f, [(x, a, 1.5 - a / 7) for a in RATES], 2)


def test_a_decision_is_a_relation():
    def f(x, a):
        return x * a if a > 1 else x + a

    x = torch.randn(3)
    compare(f, [(x, a) for a in RATES], 3)


def test_a_float_that_is_needed_keeps_a_program_for_each_value():
    x = torch.randn(3)
    compare(lambda x, a: (x * a, len(f"{a}")), [(x, a) for a in RATES[:4]], 4)


def test_a_counter_is_an_input():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.rate = 0, 0.5

        def forward(self, x):
            self.step += 1
            self.rate *= 0.75
            return x * self.rate + self.step

    left, right = Model(), Model()
    compiled = own(left.forward)
    x = torch.randn(4)
    with torch.no_grad():
        for _ in range(12):
            torch.testing.assert_close(compiled(x), right(x))
            assert (left.step, left.rate) == (right.step, right.rate)
    assert compiled.counters()["recordings"] <= 4, compiled.last_failure
    assert compiled.counters()["eager_calls"] == 0


def test_an_equality_is_a_relation():
    def f(x, n):
        return x * n if n == 5 else x + n

    x = torch.randn(3)
    compare(f, [(x, n) for n in (6, 5, 7, 8, 9, 11, 5, 12, 13)], 3)


def test_sizes_that_are_compared_stay_symbolic():
    def f(x):
        return x * 2 if x.shape[0] == 5 else x + 1

    compare(f, [(torch.randn(n, 3),) for n in (6, 5, 7, 8, 9, 11, 5, 12, 13)], 3)


def test_a_float_as_left_operand_is_not_changed():
    def f(x, a):
        b = a
        b += x
        b *= x.sum()
        return b, a

    compare(f, [(torch.randn(()), a) for a in RATES], 2)


def test_a_number_that_is_needed_is_guarded():
    def f(x, n):
        for _ in range(n):
            x = x + 1
        return x

    x = torch.randn(3)
    compare(f, [(x, n) for n in (2, 3, 4, 5, 4, 3)], 4)


def test_division_of_integers_is_followed():
    x = torch.randn(3)
    compare(lambda x, n: x * (n / 3) + 0.9**n, [(x, n) for n in range(2, 12)], 2)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}
SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
}


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_costs_no_program(name, schedule, foreach):
    kind, options = OPTIMIZERS[name]

    def run(dtype, compile):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(s).to(dtype)) for s in ((7, 5), (9,), ())]
        optimizer = kind(params, foreach=foreach, **options)
        scheduler = SCHEDULES[schedule](optimizer)
        step = compile(optimizer.step)
        counts = []
        for k in range(8):
            torch.manual_seed(k)
            for p in params:
                p.grad = torch.randn(p.shape).to(dtype)
            step()
            scheduler.step()
            for group in optimizer.param_groups:  # as some schedules do
                group["weight_decay"] = group["weight_decay"] * 0.9
            counts.append(ingot.stats().programs)
        return [p.detach() for p in params], counts

    got, counts = run(torch.float32, lambda f: ingot.compile(f, options={"fallback": False}))
    eager, _ = run(torch.float32, lambda f: f)
    exact, _ = run(torch.float64, lambda f: f)
    for g, e, x in zip(got, eager, exact, strict=True):
        error, allowed = (g - x).abs().max(), 2 * (e - x).abs().max() + 1e-6
        assert error <= allowed, (error, allowed)
    assert len(set(counts[2:])) == 1, counts


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )


def gradients_at_sizes(model, sizes, recordings):
    """Outputs and gradients at all these sizes, within twice eager's error against float64."""
    import copy

    wide = copy.deepcopy(model).double()
    compiled = own(model.forward)
    for size in sizes:
        torch.manual_seed(sum(size))
        x = torch.randn(size)
        results = []
        for call, net, value in ((compiled, model, x), (model, model, x), (wide, wide, x.double())):
            net.zero_grad()
            out = call(value)
            (out.square().sum() / out.numel()).backward()
            results.append([out.detach(), *[p.grad.clone() for p in net.parameters()]])
        for got, eager, exact in zip(*results, strict=True):
            assert got.shape == eager.shape and got.stride() == eager.stride()
            room = 2 * (eager - exact).abs().max() + 8e-7 * exact.abs().max()
            assert (got - exact).abs().max() <= room
    counters = compiled.counters()
    assert counters["recordings"] <= recordings, (counters, compiled.last_failure)
    assert counters["training"] > 0
    return compiled


def test_a_backward_serves_all_batches():
    gradients_at_sizes(layers(), [(n, 6) for n in (3, 5, 4, 9, 17, 2, 64, 31)], 2)


def test_a_backward_serves_all_lengths():
    gradients_at_sizes(layers(), [(2 + n % 3, n, 6) for n in (3, 5, 4, 9, 17, 2, 8)], 4)


def test_a_marked_size_that_is_fixed_is_an_error():
    def f(x):
        return x + sum(range(x.shape[0]))

    x = torch.randn(5, 3)
    ingot.mark_dynamic(x, 0)
    with pytest.raises(ingot.ConstraintViolationError, match=r"x\.size\(0\).*in .*f"):
        ingot.compile(f)(x)
    y = torch.randn(5, 3)
    ingot.maybe_mark_dynamic(y, 0)
    torch.testing.assert_close(ingot.compile(f)(y), f(y))


def test_a_marked_range_is_honoured():
    compiled = own(lambda x: x + x.shape[0])
    with torch.no_grad():
        for n in (5, 6, 7, 8, 9):
            x = torch.randn(n, 3)
            ingot.mark_dynamic(x, 0, min=4, max=8)
            torch.testing.assert_close(compiled(x), x + n)
    assert compiled.counters()["recordings"] == 2  # 4 to 8, and 9 alone
