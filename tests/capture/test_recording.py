"""Recording and replay at the border of C++: what is guarded, what is made again, what breaks."""

import collections
import dataclasses
import functools
import gc
import threading
import types
import typing
import weakref

import numpy as np
import pytest
import torch

import ingot
from ingot import _ingot, _own_door


def captured(function, **options):
    _own_door.mark_known()  # as every way in does, whichever test comes first
    return _ingot.capture(function, options)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def check(function, *calls):
    """Each call twice: equal to eager's, and the second time without recording anew."""
    f = captured(function)
    for arguments in calls:
        expected = function(*arguments)
        for _ in range(2):
            torch.testing.assert_close(f(*arguments), expected, rtol=0, atol=0)
    return f.counters()


def test_a_function_is_recorded_once():
    counters = check(lambda x: x + 1, (torch.ones(3),), (torch.zeros(3),))
    assert counters["recordings"] == 1 and counters["replays"] == 3
    assert counters["eager_calls"] == 0 and counters["graphs"] == 1


def test_numbers_that_no_data_decides_break_nothing():
    def program(x):
        n = torch.div(x.size(0), 2, rounding_mode="trunc")
        step = -(np.log(1000.0) / int(n))
        return x.view(n, -1) * (torch.full((), 3) * step).item() if n > 1 else x

    assert check(program, (torch.ones(4),), (torch.ones(6),))["breaks"] == 0


def test_a_break_within_a_context_is_one_break():
    @torch.no_grad()
    def inner(x):
        print(end="")
        return x + 1

    f = captured(lambda x, g: g(inner(x) * 2))
    for scale in (2.0, 2.0, 3.0):
        made = types.SimpleNamespace(scale=scale)
        bound = types.MethodType(lambda self, x: x * self.scale, made)
        torch.testing.assert_close(f(torch.ones(3), bound), torch.full((3,), 4 * scale))
    partial = captured(lambda x, g: g(x))
    for by in (2.0, 2.0):
        partial(torch.ones(3), functools.partial(lambda x, by: x * by, by=by))
    assert f.counters()["eager_calls"] == 0 and partial.counters()["breaks"] == 0


def test_what_is_computed_once_breaks_nothing():
    """The lock of a cached property, and an operator's lookup by name at its first use."""

    class Holder:
        @functools.cached_property
        def factor(self):
            return torch.ops.aten.mul

    torch.ops.aten.__dict__.pop("mul", None)
    torch.ops.aten.neg.default.__dict__.pop("_handle", None)
    holder = Holder()

    def program(x):
        assert torch.ops.aten.neg.default._handle is not None
        return holder.factor.Tensor(x, torch.ops.aten.neg.default(x))

    f = captured(program)
    x = torch.arange(3.0)
    for _ in range(3):
        assert torch.equal(f(x), x * -x)
    counters = f.counters()
    assert counters["breaks"] == 0 and counters["eager_calls"] == 0
    # Once more, because the property is an attribute from the second call on.
    assert counters["recordings"] == 2
    with pytest.raises(AttributeError, match="not_there"):
        captured(lambda x: torch.ops.aten.not_there(x))(x)


def test_recording_and_compiling_are_timed():
    f = captured(lambda x: x.sin() + 1)
    f(torch.ones(3))
    first = f.counters()
    assert first["record_seconds"] > 0 and first["compile_seconds"] > 0
    f(torch.ones(3))
    again = f.counters()
    assert again["record_seconds"] == first["record_seconds"]


@pytest.mark.parametrize(
    "other",
    [torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(6)[::2], torch.ones(3, 1)],
)
def test_metadata_are_guarded(other):
    f = captured(lambda x: x * 2)
    f(torch.ones(3))
    assert torch.equal(f(other), other * 2)
    assert f.counters()["recordings"] == 2
    assert f.last_failure.startswith("x: ")


def test_numbers_and_strings_are_guarded():
    def function(x, n, how="up"):
        return x + n if how == "up" else x - n

    counters = check(function, (torch.ones(2), 1), (torch.ones(2), 2), (torch.ones(2), 1, "down"))
    assert counters["recordings"] == 3


SCALE = 2.0


def test_globals_are_guarded():
    global SCALE
    f = captured(lambda x: x * SCALE)
    x = torch.ones(2)
    assert f(x)[0] == 2
    SCALE = 3.0
    try:
        assert f(x)[0] == 3
    finally:
        SCALE = 2.0
    assert f(x)[0] == 2
    assert f.counters()["recordings"] == 2


def test_closures_and_defaults_are_guarded():
    n = 1

    def function(x, k=2):
        return x * k + n

    f = captured(function)
    x = torch.ones(2)
    assert f(x)[0] == 3
    n = 5
    assert f(x)[0] == 7
    function.__defaults__ = (3,)
    assert f(x)[0] == 8


def test_attributes_of_modules_are_guarded():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.scale = 2.0

        def forward(self, x):
            return self.inner(x) * self.scale

    model = Model()
    f = captured(model.__call__)
    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(f(x), model(x))
    assert f.counters()["recordings"] == 1
    model.scale = 3.0
    torch.testing.assert_close(f(x), model(x))
    model.inner.weight.mul_(2)
    torch.testing.assert_close(f(x), model(x))
    model.inner.weight = torch.nn.Parameter(torch.randn(3, 3))
    torch.testing.assert_close(f(x), model(x))
    assert f.counters()["recordings"] == 2
    model.inner.register_forward_hook(lambda module, inputs, output: output + 1)
    torch.testing.assert_close(f(x), model(x))
    model.__class__.forward = lambda self, x: x
    assert f(x) is x


def test_containers_are_walked():
    Pair = collections.namedtuple("Pair", "a b")

    @dataclasses.dataclass
    class Box:
        content: torch.Tensor

    def function(items, table, pair):
        total = sum(items[1:], items[0])
        for key, value in sorted(table.items()):
            total = total + value * len(key)
        return {"total": total, "pair": Pair(pair.b, [pair.a, total]), "box": Box(total)}

    f = captured(function)
    for k in (1.0, 2.0):
        ones = torch.full((2,), k)
        result = f([ones, ones], {"a": ones, "bc": ones}, Pair(ones, ones))
        assert torch.equal(result["total"], ones * 5)
        assert type(result["pair"]) is Pair and result["pair"].a is result["pair"].b[0]
        assert result["pair"].b[1] is result["total"] and result["box"].content is result["total"]
    assert f.counters()["recordings"] == 1
    ones = torch.ones(2)
    assert torch.equal(f([ones], {"a": ones}, Pair(ones, ones))["total"], ones * 2)


def test_effects_on_outside_objects():
    class State:
        def __init__(self):
            self.log, self.table, self.last = [], {}, None

    def function(x, state):
        y = x * 2
        state.log.append(y)
        state.table["y"] = y
        state.last = [y]
        return y

    f = captured(function)
    for k in range(3):
        state = State()
        y = f(torch.full((2,), float(k)), state)
        assert state.log == [y] and state.table == {"y": y} and state.last[0] is y
        assert y[0] == 2 * k
    assert f.counters()["recordings"] == 1


def test_inputs_are_changed_in_place():
    def function(x, y):
        x.add_(1)
        x[0] = 7
        return x, y.view(-1)

    f = captured(function)
    for _ in range(3):
        x, y = torch.zeros(2), torch.ones(2, 2)
        a, b = f(x, y)
        assert a is x and x.tolist() == [7, 1]
        assert b.data_ptr() == y.data_ptr()


def test_a_break_is_a_step():
    seen = []

    def function(x):
        y = x + 1
        seen.append(y.sum().item())
        return y * 2

    f = captured(function)
    for k in range(4):
        x = torch.full((2,), float(k))
        assert torch.equal(f(x), (x + 1) * 2)
    assert seen == [2.0, 4.0, 6.0, 8.0]
    assert f.counters()["breaks"] >= 1


def test_data_decide_branches():
    def function(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    f = captured(function)
    for k in (1.0, -1.0, 2.0, -2.0, 3.0):
        x = torch.full((3,), k)
        assert torch.equal(f(x), function(x))
    assert f.counters()["recordings"] <= 4


def test_fullgraph_says_where():
    def function(x):
        return x * x.sum().item()

    with pytest.raises(RuntimeError, match=r"test_recording\.py"):
        captured(function, fullgraph=True)(torch.ones(2))


def test_exceptions_are_eagers():
    def function(x, n):
        if n > 1:
            raise ValueError(f"n is {n}")
        return torch.cat([x, x.view(3, 5)])

    f = captured(function)
    for n in (1, 2, 1):
        with pytest.raises((RuntimeError, ValueError)) as eager:
            function(torch.ones(2), n)
        with pytest.raises(type(eager.value)) as compiled:
            f(torch.ones(2), n)
        assert str(compiled.value) == str(eager.value)


def test_gradients_run_eagerly():
    layer = torch.nn.Linear(2, 2)
    f = captured(layer.__call__)
    x = torch.ones(1, 2)
    with torch.enable_grad():
        f(x).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(f(x), layer(x))


def test_modes_are_guarded_and_left():
    def function(x):
        torch._C._set_grad_enabled(True)
        return x + 1

    f = captured(function)
    for _ in range(3):
        with torch.no_grad():
            f(torch.ones(2))
            assert torch.is_grad_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            f(torch.ones(2))


def test_many_threads():
    f = captured(lambda x: (x * 2).sum())
    wrong = []

    def work(k):
        with torch.no_grad():
            for _ in range(20):
                if f(torch.full((4,), float(k))) != 8 * k:
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_recordings_are_freed():
    class Marker:
        pass

    gone = []
    for _ in range(3):
        model = torch.nn.Linear(2, 2)
        model.marker = Marker()
        weakref.finalize(model.marker, gone.append, 1)
        f = captured(model.__call__)
        f(torch.ones(1, 2))
        f(torch.ones(1, 2))
        del model, f
    gc.collect()
    assert len(gone) == 3


def test_explain_names_what_a_recording_came_to_nothing_for():
    def f(x):
        return list(map([1, 2, 3].__getitem__, [x.long().sum() * 0])), x + 1

    explained = ingot.explain(f)(torch.ones(2))
    (only,) = explained.break_reasons
    assert "C code that needs the data" in only.reason and only.user_stack[0].lineno > 0
    g = captured(f)
    for _ in range(3):
        assert g(torch.ones(2))[0] == [1]
    counters = g.counters()
    assert counters["recordings"] == 3 and counters["breaks"] == 1 and counters["replays"] == 1


def test_a_branch_that_raises_is_no_break():
    torch.distributions.Distribution.set_default_validate_args(True)  # TorchDynamo turns it off

    def f(x):
        drawn = torch.distributions.Normal(x, 1.0).sample()
        if not (drawn == drawn).all():
            raise AssertionError("not a number")
        if drawn.isinf().any() or (drawn > 1e9).any():
            raise ValueError(f"beyond {drawn.max()}")
        return drawn * 2

    g = captured(f)
    for _ in range(3):
        torch.manual_seed(1)
        got = g(torch.ones(3))
        torch.manual_seed(1)
        torch.testing.assert_close(got, f(torch.ones(3)), rtol=0, atol=0)
    counters = g.counters()
    assert (counters["graphs"], counters["breaks"], counters["replays"]) == (1, 0, 2)
    for wrong in (float("nan"), float("inf"), 1e10):
        seen = []
        for function in (g, f):
            torch.manual_seed(2)
            with pytest.raises(ValueError, match=r"Expected parameter loc|beyond") as raised:
                function(torch.full((3,), wrong))
            seen.append((str(raised.value), torch.get_rng_state().tolist()))
        assert seen[0] == seen[1]
    assert g.counters()["breaks"] == 0 and g.counters()["eager_calls"] == 3


def test_a_seed_is_a_break():
    def f(x):
        y = x + 1
        torch.manual_seed(3)
        return y + torch.rand(2)

    g = captured(f)
    for _ in range(3):
        torch.testing.assert_close(g(torch.ones(2)), f(torch.ones(2)), rtol=0, atol=0)
    counters = g.counters()
    assert counters["breaks"] == 1 and counters["eager_calls"] == 0
    assert counters["graphs"] == 2 and counters["replays"] == 2


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        reversed,
        enumerate,
        lambda xs: zip(xs, xs, strict=False),
        lambda xs: {str(i): x for i, x in enumerate(xs)}.items(),
        lambda xs: enumerate({str(i): x for i, x in enumerate(xs)}.values()),
    ],
)
def test_a_loop_with_a_break_has_one_break_a_turn(make):
    def f(x, xs):
        for one in make(xs):
            x = x + 1
            if x.sum().item() > 100:
                return x, one
        return x, None

    xs = [torch.ones(2) for _ in range(5)]
    explained = ingot.explain(f)(torch.ones(2), xs)
    assert {one.reason for one in explained.break_reasons} == {
        explained.break_reasons[0].reason
    } and "item" in explained.break_reasons[0].reason
    g = captured(f)
    for _ in range(3):
        torch.testing.assert_close(g(torch.ones(2), xs)[0], torch.full((2,), 6.0))
    assert g.counters()["eager_calls"] == 0


def test_annotations_are_no_breaks():
    """They are made anew at each call and looked up in a cache, as torch.autograd.backward does."""

    def f(x):
        (y,) = typing.cast(typing.Union[tuple[torch.Tensor], tuple[int | None]], (x,))  # noqa: UP007
        return y.sin()

    assert check(f, (torch.ones(2),), (torch.ones(3),))["breaks"] == 0


def test_caches_of_annotations_that_change():
    """A class that comes from outside is looked up as it is at each call."""

    @functools.lru_cache
    def scale(kind):
        return 2 if kind == list[int] else 3

    def f(x, of):
        return x * scale(list[of])

    f_ = captured(f)
    for of in (int, str, int, float):
        assert torch.equal(f_(torch.ones(2), of), f(torch.ones(2), of))
