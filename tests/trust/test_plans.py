"""A plan that compiles can run, a program that fails leaves nothing behind, and a backward computes
what is asked of it: neither more gradients nor checks than eager's."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import ingot


def gradients(function, *make, calls=3, pick=lambda y: y):
    """Of `function` at each set of inputs that `make` gives for a call's number."""
    found = []
    for call in range(calls):
        torch.manual_seed(call)
        inputs = [m(call) for m in make]
        y = pick(function(*inputs))
        y.sum().backward()
        found.append([y.detach()] + [t.grad for t in inputs])
    return found


def check_gradients(function, *make, calls=3, pick=lambda y: y, **options):
    expected = gradients(function, *make, calls=calls, pick=pick)
    found = gradients(ingot.compile(function, **options), *make, calls=calls, pick=pick)
    for a, b in zip(expected, found, strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert x.stride() == y.stride()
                torch.testing.assert_close(x, y, equal_nan=True)


# ---- in-place writes through views, sizes that change ----


def leaf(*sizes):
    """A leaf whose sizes marked by None change from call to call."""
    return lambda call: torch.randn(
        *[s if s is not None else 6 + 2 * call for s in sizes], requires_grad=True
    )


def columns(x):
    y = x * 1
    y[:, :2] = 0
    return y


def even_and_odd(x):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    y = torch.empty_like(x)
    y[..., 0::2] = a * 0.5 - b
    y[..., 1::2] = a + b * 0.5
    return y


def last_columns(x):
    y = x.clone()
    y[:, -2:].mul_(3)
    y[1:-1].t()[::2].add_(1)
    return y


def diagonal(x):
    y = x * 2
    y.diagonal().fill_(1)
    y[:, 1:].diagonal(1).mul_(4)
    return y


def merged(x):
    y = x * 1
    y.view(-1)[::3].mul_(5)
    return y


def strided(x):
    y = x * 1
    y.as_strided((x.shape[0], 2), (x.shape[1], 1), 1).mul_(3)
    return y


def overlapping_windows(x):
    y = x * 1
    y.as_strided((x.shape[0] * x.shape[1] // 4, 3), (4, 1)).mul_(3)
    return y


def undecided(x):
    """Which of two strides is longer no order of the sizes tells."""
    y = x * 1
    y.as_strided((2, 2), (x.shape[0] * 3, x.shape[1] * 2)).mul_(3)
    return y


def circular(x):
    return F.pad(x[None], (2, 1), mode="circular")


@pytest.mark.parametrize(
    "function",
    [
        columns,
        even_and_odd,
        last_columns,
        diagonal,
        merged,
        strided,
        overlapping_windows,
        undecided,
        circular,
    ],
)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_writes_through_views_of_changing_sizes(function, dynamic):
    check_gradients(function, leaf(None, None), calls=4, dynamic=dynamic)
    assert not ingot.stats().reasons


# ---- results that no loss uses ----

INFINITE_AT_ZERO = {
    "sqrt": lambda x: (x * 0).sqrt(),
    "norm": lambda x: (x * 0).norm(),
    "std": lambda x: (x * 0).std(),
    "log": lambda x: (x * 0).log(),
    "pow": lambda x: (x * 0) ** 0.5,
    "acos": lambda x: (x * 0 + 1).acos(),
    "reciprocal": lambda x: 1 / (x * 0),
    "matmul": lambda x: (x * 0).sqrt()[None] @ x[:, None],
    "cdist": lambda x: torch.cdist(x[None] * 0, x[None] * 0),
    "atan2": lambda x: torch.atan2(x * 0, x * 0),
    "sum of both": lambda x: (x * 0).sqrt() + x * 0,
    "cumprod": lambda x: (x * 0).sqrt().cumsum(0),
    "normalize": lambda x: (x * 0) / (x * 0).norm(),
}


@pytest.mark.parametrize("name", INFINITE_AT_ZERO)
@pytest.mark.parametrize("dynamic", [None, True])
def test_unused_results_make_no_nan(name, dynamic):
    bad = INFINITE_AT_ZERO[name]

    def both(x):
        h = x.sin()
        return h * 2, bad(h)

    for used in (0, 1):
        check_gradients(both, leaf(None), pick=operator.itemgetter(used), dynamic=dynamic)
    assert not ingot.stats().reasons


def test_every_set_of_results_has_its_gradients():
    def many(x, w):
        h = torch.tanh(x @ w)
        return h, (h * 0).sqrt(), h.sum(0), w * 3, (w * 0).log()

    fast = ingot.compile(many)
    for used in range(1, 32):
        for leaves in ((0, 1), (0,), (1,)):
            found = []
            for run in (many, fast):
                torch.manual_seed(0)
                ins = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
                outs = [y for k, y in enumerate(run(*ins)) if used >> k & 1]
                wanted = [ins[k] for k in leaves]
                found.append(
                    torch.autograd.grad([y.sum() for y in outs], wanted, allow_unused=True)
                )
            for a, b in zip(*found, strict=True):
                assert (a is None) == (b is None), (used, leaves)
                if a is not None:
                    torch.testing.assert_close(a, b, equal_nan=True)


def adaptive_step(x):
    """As solvers of differential equations choose their next step."""
    size = (x * 0).pow(2).mean().sqrt()
    y = x * 2
    if size > 1:
        return x + 1
    return y * size.detach() + x


def test_results_that_live_on_behind_a_break_make_no_nan():
    check_gradients(adaptive_step, leaf(3))


def test_a_backward_twice_with_other_results():
    def both(x):
        return x.sin(), (x * 0).sqrt()

    fast = ingot.compile(both)
    x = torch.ones(3, requires_grad=True)
    a, b = fast(x)
    a.sum().backward(retain_graph=True)
    first = x.grad.clone()
    assert torch.isfinite(first).all()
    (a.sum() + b.sum()).backward()
    assert torch.isnan(x.grad).all()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


def test_hooks_see_partial_gradients():
    def both(x, w):
        return x * w, (w * 0).sqrt()

    seen = {}
    for name, run in (("eager", both), ("ingot", ingot.compile(both))):
        x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        got = seen[name] = []
        x.register_hook(lambda g, got=got: got.append(("x", g.tolist())))
        w.register_post_accumulate_grad_hook(lambda t, got=got: got.append(("w", t.grad.tolist())))
        run(x, w)[0].sum().backward()
        got.append((x.grad.tolist(), w.grad.tolist()))
    assert seen["eager"] == seen["ingot"]


# ---- what a backward checks ----


def written_later(x, scale):
    part = x[..., ::2]
    soft = part.log_softmax(-1)
    keep = (scale * -1.5) != 0.25
    loss = part.unbind(2)[0][keep].sum()
    soft.fill_(3)
    return loss


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_no_wanted_gradient_needs_may_change(dynamic):
    fast = ingot.compile(written_later, dynamic=dynamic)
    for rows, count in ((4, 5), (4, 1), (3, 3), (4, 1)):
        found = []
        for run in (written_later, fast):
            torch.manual_seed(0)
            x = torch.randn(rows, count, rows, requires_grad=True)
            scale = torch.randn((), requires_grad=True)
            found.append(torch.autograd.grad(run(x, scale), x)[0])
        assert torch.equal(*found)


def test_what_a_wanted_gradient_needs_may_not_change():
    def f(x, w):
        return x * w, w.sin()

    fast = ingot.compile(f)
    for run in (f, fast):
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        a, b = run(x, w)
        with torch.no_grad():
            x.mul_(2)
        (got,) = torch.autograd.grad(b.sum(), w, retain_graph=True)
        torch.testing.assert_close(got, w.detach().cos())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(a.sum(), w)


# ---- views that are results ----


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.select(0, 0),
        lambda x: x[:, 1:],
        lambda x: x.t()[0],
        lambda x: x.unbind(1)[1],
        lambda x: x[None].transpose(1, 2),
        lambda x: x.diagonal(),
    ],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_of_a_leaf_that_overlaps_itself_is_eagers_view(view, dynamic):
    def f(y, x):
        return y.median(), view(x)

    fast = ingot.compile(f, dynamic=dynamic)
    for size in (2, 2, 4):
        found, names = [], []
        for run in (f, fast):
            torch.manual_seed(0)
            x = torch.randn(1, size).expand(size, size).requires_grad_()
            y = run(torch.randn(3, 3), x)[1]
            torch.manual_seed(1)
            found += torch.autograd.grad(y, x, torch.randn(y.shape))
            names.append(y.grad_fn.name())
        assert torch.equal(*found)
        assert names[0] == names[1]


# ---- failures while a program runs ----


@torch.library.custom_op("trust::wide", mutates_args=())
def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2


@wide.register_fake
def _(x):
    return torch.empty_like(x)  # a mistake: the operator's result is of another type


@torch.library.custom_op("trust::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@same.register_fake
def _(x):
    return torch.empty_like(x)


same.register_autograd(lambda ctx, grad: torch.ops.trust.wide(grad).float())


def test_normal_of_two_types_draws_once():
    def f(a, b):
        return torch.normal(a, b), torch.rand(1)

    states = []
    for run in (f, ingot.compile(f)):
        torch.manual_seed(0)
        made = [run(torch.zeros(3, dtype=torch.float16), torch.ones(3)) for _ in range(3)]
        states.append([*made[0], *made[1], *made[2], torch.rand(1)])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_a_failing_program_puts_back_what_it_has_written():
    def f(x, noise):
        x.add_(1)
        noise.uniform_()
        return torch.ops.trust.wide(x * noise) + torch.rand(2)

    found = []
    for run in (f, ingot.compile(f)):
        torch.manual_seed(0)
        x, noise = torch.zeros(2), torch.zeros(2)
        results = [run(x, noise) for _ in range(3)]
        found.append([x, noise, *results, torch.rand(1)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert any("of another size or type" in reason for reason in ingot.stats().reasons)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_failing_backward_is_eagers(dynamic):
    def f(x):
        return torch.ops.trust.same(x.sin()) * torch.rand(x.shape[0]).sum()

    check_gradients(f, leaf(None), calls=4, dynamic=dynamic)


def test_an_operator_in_python_that_raises_is_caught_inside():
    @torch.library.custom_op("trust::picky", mutates_args=())
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 10:
            raise ValueError("too much")
        return x.clone()

    @picky.register_fake
    def _(x):
        return torch.empty_like(x)

    def f(x):
        x.add_(1)
        try:
            return torch.ops.trust.picky(x)
        except ValueError:
            return x * -1

    fast = ingot.compile(f)
    for start in (0.0, 0.0, 100.0, 0.0):
        found = []
        for run in (f, fast):
            x = torch.full((2,), start)
            found.append((run(x).tolist(), x.tolist()))
        assert found[0] == found[1]


OUT_OF_MEMORY = """
import resource
import torch, ingot
torch.set_num_threads(1)
def f(x, count):
    count.add_(1)
    noise = torch.rand(4)
    big = torch.cumsum(x.expand(1 << 24, 4), 0)   # 256 MiB, of a library
    return big[-1] + noise
fast = ingot.compile(f, dynamic=False)
def room():
    with open("/proc/self/statm") as s:
        return int(s.read().split()[0]) * resource.getpagesize()
x, count = torch.ones(4), torch.zeros(1)
fast(x, count)
torch.manual_seed(0)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (room() + (64 << 20), unlimited[1]))
try:
    fast(x, count)
    print("no error")
except RuntimeError:
    print("raised", count.item())
resource.setrlimit(resource.RLIMIT_AS, unlimited)
drawn = torch.rand(4)
torch.manual_seed(0)
torch.rand(4)
print(torch.equal(drawn, torch.rand(4)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses as Linux does")
def test_without_memory_eager_goes_on_from_the_beginning():
    """Eager, which then lacks memory too, has added once and drawn once when it raises."""
    run = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True)
    assert run.stdout.split() == ["raised", "2.0", "True"], run.stderr + run.stdout


# ---- views across breaks ----


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("written", ["base", "view", "other"])
def test_views_that_live_on_behind_a_break_are_views_of_one_another(written, needs):
    def f(x, w):
        y = x.sin()
        v, u = y[:, 1:], y.unfold(0, 2, 2)
        torch._dynamo.graph_break()
        {"base": y, "view": v, "other": u}[written].mul_(w)
        return y, v, u

    fast = ingot.compile(f)
    for _ in range(3):
        found = []
        for run in (f, fast):
            torch.manual_seed(0)
            x = torch.randn(6, 5, requires_grad=needs)
            w = torch.tensor(0.5, requires_grad=True)
            results = run(x, w)
            assert all(t.requires_grad for t in results)
            found.append([torch.autograd.grad(t.sum(), w, retain_graph=True)[0] for t in results])
        torch.testing.assert_close(*found)
