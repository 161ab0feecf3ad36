"""Gradients under own capture: each segment is one node of eager's autograd graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot


@pytest.fixture(autouse=True)
def own_capture(monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def counted(f, *args):
    """What one call of `f` adds to (graphs, training programs, breaks, eager or failed)."""
    a = ingot.stats()
    result = f(*args)
    b = ingot.stats()
    return result, (b.graphs - a.graphs, b.training - a.training, b.breaks - a.breaks)


def test_one_program_with_a_backward_serves_all_calls():
    def f(x, w):
        return (x @ w).relu().sum()

    compiled = ingot.compile(f)
    for call in range(4):
        x, w = torch.randn(3, 4), leaf(4, 5)
        out, added = counted(compiled, x, w)
        assert added == ((1, 1, 0) if call == 0 else (0, 0, 0))
        (got,) = torch.autograd.grad(out, w)
        (want,) = torch.autograd.grad(f(x, w), w)
        torch.testing.assert_close(got, want)


def test_without_gradients_the_plain_program_runs():
    compiled = ingot.compile(lambda x, w: (x @ w).relu())
    with torch.no_grad():
        out, added = counted(compiled, torch.randn(3, 4), leaf(4, 5))
    assert added == (1, 0, 0) and not out.requires_grad
    out, added = counted(compiled, torch.randn(3, 4), leaf(4, 5))
    assert added == (1, 1, 0) and out.requires_grad


@pytest.mark.parametrize("calls", [1, 3])
def test_gradients_flow_through_breaks_and_straight_past_them(calls):
    def f(x, y):
        z = (x * y).sin()
        z = z * 2 if z.sum().item() > -100 else z
        return z * x + y.exp()  # x enters both segments, z the second one

    compiled = ingot.compile(f)
    for _ in range(calls):
        x, y = leaf(4), leaf(4)
        got = torch.autograd.grad(compiled(x, y).sum(), [x, y])
        want = torch.autograd.grad(f(x, y).sum(), [x, y])
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("calls", [1, 3])
def test_inputs_may_have_a_history_of_their_own(calls):
    def f(a, b):
        return (a * b).sum() + a.cos().sum()

    compiled = ingot.compile(f)
    for _ in range(calls):
        x = leaf(5)
        results = []
        for function in (compiled, f):
            a = x.exp()
            results.append(torch.autograd.grad(function(a, x), x))
            assert a.grad_fn is not None and not a.is_leaf
        torch.testing.assert_close(*results)


def test_leaf_and_not_leaf_are_told_apart():
    compiled = ingot.compile(lambda x: (x * 2, x.is_leaf))
    for x in (leaf(2), leaf(2) * 2, leaf(2), leaf(2) * 2):
        out, flag = compiled(x)
        assert flag == x.is_leaf and out.requires_grad


def test_hooks_of_leaves_run_in_the_backward_alone():
    seen = []
    x = leaf(3)
    x.register_hook(lambda g: seen.append(1) or g * 10)
    compiled = ingot.compile(lambda x: (x * x).sum())
    out = compiled(x)
    assert seen == []
    out.backward()
    assert seen == [1]
    torch.testing.assert_close(x.grad, 20 * x.detach())
    assert x._backward_hooks is not None


def test_double_backward_of_a_later_call_is_of_its_own_inputs():
    compiled = ingot.compile(lambda x, w: ((x**3) * w).sum())
    for _ in range(3):
        x, w = leaf(4), leaf(4)
        (g,) = torch.autograd.grad(compiled(x, w), x, create_graph=True)
        h = torch.autograd.grad(g.sum(), [x, w])
        torch.testing.assert_close(h, (6 * x * w, 3 * x**2))


@pytest.mark.parametrize("calls", [1, 2])
def test_a_result_changed_before_the_backward_is_noticed(calls):
    def f(x, w):
        product = x @ w
        return product, product.sin()

    compiled = ingot.compile(f)
    for _ in range(calls):
        product, out = compiled(leaf(3, 4), leaf(4, 5))
    with torch.no_grad():
        product.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_results_may_be_changed_with_gradients():
    compiled = ingot.compile(lambda x: (x * 2, (x * 3)[1:]))
    for _ in range(2):
        x, y = leaf(4), leaf(3)
        a, b = compiled(x)
        a.mul_(5)
        b.add_(y)
        (a.sum() + (b * b).sum()).backward()
        want = 10 + torch.cat([torch.zeros(1), 6 * (3 * x[1:].detach() + y.detach())])
        torch.testing.assert_close(x.grad, want)
        torch.testing.assert_close(y.grad, 2 * (3 * x[1:].detach() + y.detach()))


def test_the_graph_of_the_recorded_call_is_freed():
    compiled = ingot.compile(lambda x: (x.exp() * 2, x.sin()))
    x = leaf(4)
    out = compiled(x)
    out[0].sum().backward()
    watched = [weakref.ref(t) for t in (x, *out)]
    del x, out
    gc.collect()
    assert [w() for w in watched] == [None] * 3


def test_an_outside_buffer_that_gets_a_history_is_eagers():
    def f(buffer, x):
        y = x * 2
        buffer[0].copy_(y)
        return y + 1

    compiled = ingot.compile(f)
    for _ in range(3):
        x, results = leaf(3), []
        for function in (compiled, f):
            buffer = torch.zeros(2, 3)
            out = function(buffer, x)
            assert buffer.requires_grad and buffer.grad_fn is not None
            results.append(torch.autograd.grad((buffer * out).sum(), x))
        torch.testing.assert_close(*results)


def test_statistics_change_once_and_parameters_train():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
                             nn.Linear(48, 2))  # fmt: skip

    def train(m, f):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            optimizer.zero_grad()
            f(torch.randn(4, 2, 6, 6, generator=generator)).square().mean().backward()
            optimizer.step()
        return m.state_dict()

    eager, own = model(), model()
    compiled = ingot.compile(own)
    a, b = train(eager, eager), train(own, compiled)
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, msg=name)


def test_parameters_are_changed_under_no_grad():
    def f(w, g):
        with torch.no_grad():
            w.add_(g, alpha=-0.5)

    compiled = ingot.compile(f)
    w = leaf(3)
    want = w.detach().clone()
    for _ in range(3):
        g = torch.randn(3)
        version = w._version
        compiled(w, g)
        want -= 0.5 * g
        assert w._version > version and w.is_leaf and w.requires_grad
    torch.testing.assert_close(w.detach(), want)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


def test_custom_functions_keep_their_backward():
    compiled = ingot.compile(lambda x: Double.apply(x * 3).sin())
    for _ in range(3):
        x = leaf(3)
        (g,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(g, (x * 6).cos() * 21)


def test_saved_tensor_hooks_and_anomaly_detection_are_eagers():
    compiled = ingot.compile(lambda x: x.exp() * 2)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = compiled(leaf(3))
    assert len(packed) == 1 and not ingot._ingot.is_recording()
    out.sum().backward()
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly(check_nan=False):
        compiled(leaf(3)).sum().backward()
    before = ingot.stats().replays
    compiled(leaf(3))
    compiled(leaf(3))
    assert ingot.stats().replays > before


def test_detached_results_and_views_of_inputs():
    def f(x, y):
        d = x.detach()
        v = y[1:]
        return d, v, (d * y).sum(), v * 2

    compiled = ingot.compile(f)
    for _ in range(3):
        x, y = leaf(3), leaf(3)
        got, want = compiled(x, y), f(x, y)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
            assert g.requires_grad == w.requires_grad
        assert got[0].data_ptr() == x.data_ptr() and got[1].data_ptr() == want[1].data_ptr()
        g1 = torch.autograd.grad(got[1].sum() + got[2] + got[3].sum(), y)
        g2 = torch.autograd.grad(want[1].sum() + want[2] + want[3].sum(), y)
        torch.testing.assert_close(g1, g2)


def test_results_that_share_memory_or_are_views_alone():
    def shared(x):
        y = x * 2
        return y, y[0], y.view(-1)

    def views(x):
        return x.view(-1), x.detach()

    for f in (shared, views):
        compiled = ingot.compile(f)
        for call in range(3):
            x = leaf(2, 3)
            a, b = compiled(x), f(x)
            grads = []
            for out in (a, b):
                assert out[-1].requires_grad == b[-1].requires_grad
                # While recording, a result that others look into becomes a view itself.
                assert call == 0 or out[0]._is_view() == b[0]._is_view()
                total = sum(((i + 2) * o * o).sum() for i, o in enumerate(out))
                grads.append(torch.autograd.grad(total, x)[0])
            torch.testing.assert_close(*grads)
        before = ingot.stats().replays
        compiled(leaf(2, 3))
        assert ingot.stats().replays == before + 1


def test_training_off_runs_eagerly():
    compiled = ingot.compile(lambda x: x * 2, options={"training": False})
    for _ in range(2):
        out, added = counted(compiled, leaf(3))
        assert out.requires_grad and added[1] == 0


def test_autocast_in_training():
    layer = nn.Linear(8, 8)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(layer(x)).float().sum()

    compiled = ingot.compile(f)
    for _ in range(2):
        x = torch.randn(4, 8)
        got = torch.autograd.grad(compiled(x), list(layer.parameters()))
        want = torch.autograd.grad(f(x), list(layer.parameters()))
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            torch.testing.assert_close(g, w, rtol=0.05, atol=0.05)


def test_an_operators_python_gradient_finds_another_operator():
    # It is looked up while the backward is recorded, when the forward's recording is closed.
    @torch.library.custom_op("ingot_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("ingot_tests::doubled_gradient", mutates_args=())
    def doubled_gradient(g: torch.Tensor) -> torch.Tensor:
        return g * 2

    doubled.register_fake(torch.empty_like)
    doubled_gradient.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, g: torch.ops.ingot_tests.doubled_gradient(g))
    for name in ("doubled", "doubled_gradient"):  # as in a process that has not called them
        vars(torch.ops.ingot_tests).pop(name, None)
    compiled = ingot.compile(lambda x: torch.ops.ingot_tests.doubled(x.sin()).exp().sum())
    for _ in range(3):
        x = leaf(3, 4)
        compiled(x).backward()
        want = x.detach().clone().requires_grad_()
        (want.sin() * 2).exp().sum().backward()
        torch.testing.assert_close(x.grad, want.grad)
