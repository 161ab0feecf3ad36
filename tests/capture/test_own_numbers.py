"""Floats and integers that change under Ingot's own capture: how many programs they cost."""

from __future__ import annotations

import collections
import functools
import math

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


@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: x * 2 if tuple(s) == (3, 4) else x + 1,
        lambda x, s: x * sum(s),
        lambda x, s: x * max(s) - min(s),
        lambda x, s: x * s[0] + s[1],
        lambda x, s: x * (s[0] + 1.5 * s[-1]),
    ],
)
@pytest.mark.parametrize("kind", [tuple, list])
def test_items_that_change_are_inputs(f, kind):
    x = torch.ones(3)
    calls = [(x, kind(s)) for s in ((5, 6), (7, 8), (3, 4), (9, 10), (3, 4), (11, 17))]
    compare(f, calls, 3)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: x * len(str(s)),
        lambda x, s: x * {5: 1, 7: 2, 30: 3, 9: 4, 3: 5}[s[0]],
        lambda x, s: x * ({(3, 4): 8}.get(tuple(s), 1)),
        lambda x, s: x * 2 if 3 in s else x + 1,
        lambda x, s: x * s.index(s[1]) + s.count(4),
        lambda x, s: x * (hash(tuple(s)) % 7),
        lambda x, s: x * sorted(s)[1],
        lambda x, s: x * len(set(s)) * len(frozenset(s + s)),
    ],
)
@pytest.mark.parametrize("kind", [tuple, list])
def test_items_that_are_looked_at_are_guarded(f, kind):
    """An operation that reads a container for the first time looks at what it guards by that."""
    x = torch.ones(3)
    calls = [(x, kind(s)) for s in ((5, 6), (7, 8), (30, 4), (9, 100), (3, 4), (3, 3))]
    compare(f, calls, 6)


def test_tuples_keep_their_items():
    sizes = (1000, 7)
    items = [id(item) for item in sizes]
    compare(lambda x, s: x * s[0] + s[1], [(torch.ones(2), s) for s in ((5, 6), (8, 9), sizes)], 2)
    assert [id(item) for item in sizes] == items


def test_items_of_mappings_that_change_are_inputs():
    class Own(dict):
        pass

    def f(x, d):
        return x * d["a"] + d.get("b")

    x = torch.ones(3)
    for kind in (dict, collections.OrderedDict, collections.Counter, Own):
        compare(f, [(x, kind(a=n, b=n + 3)) for n in (5, 6, 9, 11, 40)], 2)


SIZES = [(n, 2 + n % 5) for n in (3, 5, 4, 9, 17, 2, 64, 31)]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + any(n > 1000 for n in x.shape),
        lambda x: x + all(d.requires_grad for d in (x, x.shape and x)),
        lambda x: x * sum(n for n in x.shape),
        lambda x: x * sum((n > 1 for n in x.shape), x.shape[0]),
        lambda x: x * math.prod(x.shape),
        lambda x: x * max(n * 2 for n in x.shape) - min(x.shape),
        lambda x: 1 + x.reshape([n for n in reversed(x.shape)]),  # noqa: C416
        lambda x: 1 + x.reshape(tuple(n for n in x.shape)),
        lambda x: x.new_zeros(list(n + 1 for n in x.shape)),  # noqa: C400
        lambda x: x + any(map(lambda n: n > 1000, x.shape)),  # noqa: C417
        lambda x: x + len(list(filter(lambda n: n > 1000, x.shape))),
        lambda x: x * next(n for n in x.shape if n > 1),
        lambda x: sum(x * n for n in x.shape),
        lambda x: x + any(False for _ in (x,)) + any(t.dim() > 3 for t in (x, x * 2)),
    ],
)
def test_generators_fix_no_sizes(f):
    compare(f, [(torch.randn(s),) for s in SIZES], 4)


def test_generators_that_yield_to_generators_fix_no_sizes():
    def inner(x):
        received = yield x.shape[0]
        yield received * 2

    def outer(x):
        numbers = inner(x)
        yield next(numbers)
        yield numbers.send(x.shape[1])
        yield from (n + 1 for n in x.shape)

    def f(x):
        for n in outer(x):
            x = x + n
        a, b, *rest = outer(x)
        return x * a + b + sum(rest)

    compare(f, [(torch.randn(s),) for s in SIZES], 8)


def test_what_a_generator_yields_to_c_code_is_guarded():
    def f(x):
        return x * len(",".join(str(n) for n in x.shape)) + len({n for n in x.shape})  # noqa: C416

    def g(x):
        return x * len(set(n for n in x.shape)) + dict((n, 1) for n in x.shape).get(5, 0)  # noqa: C401, C402

    calls = [(torch.randn(s),) for s in ((3, 4), (5, 5), (10, 4), (3, 5), (3, 3), (5, 100))]
    compare(f, calls, 6)
    compare(g, calls, 6)


@pytest.mark.parametrize("kind", ["attention", "encoder layer", "encoder"])
def test_the_fast_paths_of_attention_fix_no_sizes(kind):
    torch.manual_seed(0)
    if kind == "attention":
        model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        model.forward = functools.partial(model.forward, need_weights=False)
        call = lambda x: model(x, x, x)[0]  # noqa: E731
    else:
        model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        if kind == "encoder":
            model = torch.nn.TransformerEncoder(model, 2, enable_nested_tensor=False)
        call = model
    model.eval()
    compare(lambda x: call(x), [(torch.randn(*s, 8),) for s in SIZES], 4)


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
            room = 2 * (eager - exact).abs().max() + 2e-6 * exact.abs().max() + 5e-7
            assert (got - exact).abs().max() <= room
    counters = compiled.counters()
    assert counters["recordings"] <= recordings, (counters, compiled.last_failure)
    assert counters["training"] > 0
    return compiled


def test_a_backward_serves_all_batches():
    gradients_at_sizes(layers(), [(n, 6) for n in (3, 5, 4, 9, 17, 2, 64, 31)], 2)


def test_a_backward_serves_all_lengths():
    gradients_at_sizes(layers(), [(2 + n % 3, n, 6) for n in (3, 5, 4, 9, 17, 2, 8)], 4)


class Attention(torch.nn.Module):
    def __init__(self, causal=False, mask=False):
        super().__init__()
        self.causal, self.mask = causal, mask
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.full((n, n), -2.0, dtype=x.dtype).triu(1) if self.mask else None
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).reshape(b, n, 8))


@pytest.mark.parametrize(
    "build",
    [
        Attention,
        functools.partial(Attention, causal=True),
        functools.partial(Attention, mask=True),
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    ],
)
def test_attention_trains_at_all_sizes(build):
    torch.manual_seed(0)
    gradients_at_sizes(build(), [(2 + n % 3, n, 8) for n in (3, 5, 4, 9, 17, 2, 8)], 4)


def convolutions(kind):
    nn = torch.nn
    if kind == "plain":
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    if kind == "strided":
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1),
        )  # fmt: skip
    if kind == "pooled":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip
    return nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.Tanh())


@pytest.mark.parametrize("kind", ["plain", "strided", "pooled", "transposed"])
@pytest.mark.parametrize("images", ["batch", "sides"])
def test_convolutions_train_at_all_sizes(kind, images):
    torch.manual_seed(0)
    sizes = [(n, 3, 12, 10) for n in (3, 5, 4, 9, 7)]
    if images == "sides":
        sizes = [(3, 3, n, n + 4) for n in (12, 14, 20, 9, 11, 16, 33)]
    gradients_at_sizes(convolutions(kind), sizes, 3 if images == "batch" else 5)


def test_embeddings_train_at_all_sizes():
    torch.manual_seed(0)
    table, head = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 3)

    def f(ids):
        return head(table(ids).cumsum(1)).logsumexp(-1)

    compiled = own(f)
    for b, n in ((2, 3), (3, 5), (4, 7), (2, 9), (6, 4)):
        ids = torch.randint(0, 11, (b, n))
        results = []
        for call in (compiled, f):
            table.zero_grad()
            head.zero_grad()
            call(ids).sum().backward()
            results.append([p.grad.clone() for p in (*table.parameters(), *head.parameters())])
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert compiled.counters()["recordings"] <= 3, compiled.last_failure


class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.count, ctx.shape = x.shape[0], x.shape
        ctx.save_for_backward(x)
        return x.sum(0) * (scale / ctx.count)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.expand(ctx.shape) / ctx.count * x.sign() * 3, None


def test_sizes_in_custom_functions_stay_symbolic():
    weight = torch.nn.Parameter(torch.tensor(1.5))

    def f(x):
        return Mean.apply(x * weight, x.shape[0] + 1).sin()

    compiled = own(f)
    for size in ((3, 4), (5, 4), (6, 7), (9, 2), (12, 5), (40, 3)):
        results = []
        x = torch.randn(size)
        for call in (compiled, f):
            (first,) = torch.autograd.grad(call(x).sum(), weight, create_graph=True)
            (second,) = torch.autograd.grad(first.square(), weight)
            results.append((first, second))
            results[-1] += torch.autograd.grad(call(x).sum(), weight)
        torch.testing.assert_close(*results)
    counters = compiled.counters()
    assert counters["recordings"] <= 3 and counters["breaks"] == 0, compiled.last_failure


def test_sizes_of_inputs_that_a_backward_names_stay_symbolic():
    weight = torch.nn.Parameter(torch.randn(3))

    def step(x, both):
        loss = (x * weight).sin().sum()
        loss.backward(inputs=[x, weight] if both else [x])
        return loss.detach()

    for both in (False, True):
        compiled = own(step)
        for n in (3, 4, 5, 6, 6, 9):
            x = torch.randn(n, 3)
            results = []
            for call in (compiled, step):
                weight.grad, leaf = None, x.clone().requires_grad_()
                results.append([call(leaf, both), leaf.grad])
                assert (weight.grad is not None) == both
                results[-1] += [weight.grad] if both else []
            torch.testing.assert_close(*results)
        counters = compiled.counters()
        assert counters["recordings"] <= 2 and counters["breaks"] == 0, compiled.last_failure


def test_abstract_classes_fix_no_sizes_and_numbers():
    from collections.abc import Mapping, Sequence

    def f(x, n):
        things = [x, n]
        if isinstance(things, Mapping) or not isinstance(things, Sequence):
            raise TypeError
        return things[0] + things[1]

    compiled = own(f)
    for n in (3, 4, 5, 6, 9):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert compiled.counters()["recordings"] <= 2, compiled.last_failure


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
