"""Backends under own capture: a graph a segment, called at each replay in the compiler's place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot
from recording_backend import RecordingBackend


@pytest.fixture(autouse=True)
def own_capture(monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")


def targets(gm):
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def test_a_backend_gets_the_graph_once_and_runs_at_each_call():
    backend = RecordingBackend()
    compiled = ingot.compile(lambda x, y: (x @ y).relu() + 1, backend=backend)
    for call in range(3):
        x, y = torch.randn(2, 3), torch.randn(3, 4)
        torch.testing.assert_close(compiled(x, y), (x @ y).relu() + 1)
        assert (len(backend.graphs), backend.runs) == (1, call + 1)
    (gm,) = backend.graphs
    assert isinstance(gm, torch.fx.GraphModule)
    assert targets(gm) == ["aten.mm.default", "aten.relu.default", "aten.add.Tensor"]
    assert [tuple(t.shape) for t in backend.examples[0]] == [(2, 3), (3, 4)]
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    (result,) = gm(x, y)
    torch.testing.assert_close(result, (x @ y).relu() + 1)


def test_an_operator_is_the_call_that_autograd_knows():
    def f(x):  # whose kernel calls the out= form, which has no gradient
        return x.clone().mvlgamma_(2)

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend, fullgraph=True)
    x = (torch.rand(3) + 2).requires_grad_()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(gradient, torch.autograd.grad(f(x).sum(), x)[0])
    assert targets(backend.graphs[0])[-1] == "aten.mvlgamma_.default"


def test_a_branch_that_raises_is_a_call_of_the_graph():
    def f(x):
        if x.isnan().any():
            raise ValueError("not a number")
        return x * 2

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    (graph,) = backend.graphs
    assert "aten._assert_async.msg" in targets(graph)
    with pytest.raises(RuntimeError, match="without which the program raises"):
        compiled(torch.full((3,), float("nan")))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.how = how
        return y * 2, y.detach() + 1

    @staticmethod
    def backward(ctx, grad, other):
        (y,) = ctx.saved_tensors
        return grad * y * ctx.how, None


@pytest.mark.parametrize("name", [None, "eager", "aot_eager"])
def test_a_custom_function_is_one_call_of_the_graph(name):
    def f(x):
        a, b = Doubled.apply(x * 2, 7.0)
        return a.sin() + b

    backend = RecordingBackend() if name is None else name
    compiled = ingot.compile(f, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        (got,), (want,) = (torch.autograd.grad(g(x).sum(), x) for g in (compiled, f))
        torch.testing.assert_close(got, want)
    if name is None:
        (gm,) = backend.graphs
        assert targets(gm)[0] == "aten.mul.Tensor" and "Doubled_apply" in gm.code
        assert "aten.exp.default" not in targets(gm)


def test_breaks_give_several_graphs():
    def f(x):
        y = x.sin()
        if y.sum().item() > 0:
            return y * 2
        return y - 1

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), f(x))
    assert [targets(gm)[-1] for gm in backend.graphs] == [
        "aten.sum.default", "aten.mul.Tensor", "aten.sub.Tensor"]  # fmt: skip
    assert backend.runs == 8


def test_a_module_trains_through_a_backend():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    reference = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    reference.load_state_dict(model.state_dict())
    backend = RecordingBackend()
    compiled = ingot.compile(model, backend=backend)
    for _ in range(3):
        x = torch.randn(5, 3)
        for m, f in ((model, compiled), (reference, reference)):
            m.zero_grad()
            f(x).square().sum().backward()
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        for a, b in zip(model.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(a, b)
    assert backend.runs == 3


def test_effects_views_and_regions_without_gradients():
    def f(x, buffer):
        row = buffer[0]
        row.add_(1)
        with torch.no_grad():
            z = x * 3
        return x.detach(), row, z, x * z

    compiled = ingot.compile(f, backend="eager")
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        buffers = torch.zeros(2, 3), torch.zeros(2, 3)
        got, want = compiled(x, buffers[0]), f(x, buffers[1])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*buffers)
        assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
        assert got[0].data_ptr() == x.data_ptr()
        assert got[1].data_ptr() == buffers[0].data_ptr()
        (a,), (b,) = (torch.autograd.grad(o[3].sum(), x) for o in (got, want))
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_the_built_in_ones(name):
    def f(x, parts):
        parts["sum"] = x.sum()
        return torch.cat([x, x.split(1)[0]]), torch.rand(2)

    compiled = ingot.compile(f, backend=name)
    for seed in range(3):
        x, got, want = torch.randn(3), {}, {}
        torch.manual_seed(seed)
        a = compiled(x, got)
        torch.manual_seed(seed)
        b = f(x, want)
        torch.testing.assert_close((a, got), (b, want))


def test_an_error_of_a_backend_comes_out():
    def broken(gm, example_inputs):
        raise ValueError("no such luck")

    compiled = ingot.compile(lambda x: x + 1, backend=broken)
    with pytest.raises(ingot.BackendCompilerFailed, match="no such luck"):
        compiled(torch.ones(2))

    def wrong(gm, example_inputs):
        return lambda *inputs: ()

    compiled = ingot.compile(lambda x: x + 1, backend=wrong)
    with pytest.raises(ValueError, match="returned 0 values instead of 1"):
        compiled(torch.ones(2))


def test_explain_has_the_graphs():
    def f(x):
        y = x.exp()
        print(y.sum().item())
        return y * 2

    explanation = ingot.explain(f)(torch.ones(2))
    assert explanation.graph_count == 2 and len(explanation.graphs) == 2
    assert targets(explanation.graphs[0]) == ["aten.exp.default", "aten.sum.default"]
    torch.testing.assert_close(explanation.graphs[1](torch.ones(2))[0], torch.full((2,), 2.0))


def sizes_of(gm):
    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    return [name for name in names if not name.startswith("arg")]


def test_one_symbolic_graph_serves_all_sizes():
    def f(x, y, n):
        rows = x.shape[0]
        z = torch.cat([x, y]).reshape(-1)[: rows * 2 + 1]
        return (z + n).view(-1, 1), torch.zeros(rows // 2 + n), rows * n

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    for rows, more, n in ((3, 4, 5), (5, 6, 7), (7, 3, 2), (8, 8, 9), (3, 4, 5), (20, 9, 30)):
        x, y = torch.randn(rows, 4), torch.randn(more, 4)
        got, want = compiled(x, y, n), f(x, y, n)
        torch.testing.assert_close(got[:2], want[:2])
        assert got[2] == want[2]
    assert len(backend.graphs) == 2
    static, symbolic = backend.graphs
    assert sizes_of(static) == [] and len(sizes_of(symbolic)) == 3
    symbolic.graph.lint()
    assert "floordiv" in symbolic.code


def test_a_symbolic_graph_is_printed_as_a_table(capsys):
    pytest.importorskip("tabulate")

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def f(x, w, n):
        return Doubled.apply(x * w).view(-1)[: x.shape[0] // 2], x.new_ones(n - 1)

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    w = torch.randn(1, requires_grad=True)
    for rows, n in ((4, 5), (6, 7)):
        compiled(torch.randn(rows, 3), w, n)
    backend.graphs[-1].graph.print_tabular()
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["opcode", "name", "target", "args", "kwargs"] and set(line) <= set("- ")
    kinds = [row.split()[0] for row in rows]
    assert kinds.count("placeholder") == len(sizes_of(backend.graphs[-1])) + 2
    assert kinds[-1] == "output" and set(kinds[:-1]) == {"placeholder", "call_function"}
    for part in ("floordiv", "sub", "Doubled_apply", "aten.view.default", "aten.new_ones.default"):
        assert any(part in row for row in rows), part


def test_dynamic_and_its_marks():
    def f(x):
        return x.flatten() * x.shape[1]

    for dynamic, marks, graphs in ((True, (), 1), (None, (0, 1), 1), (None, (), 2), (False, (), 4)):
        backend = RecordingBackend()
        compiled = ingot.compile(f, backend=backend, dynamic=dynamic)
        for shape in ((3, 4), (5, 6), (7, 8), (9, 2)):
            x = torch.randn(shape)
            for dim in marks:
                ingot.mark_dynamic(x, dim)
            torch.testing.assert_close(compiled(x), f(x))
        assert len(backend.graphs) == graphs, (dynamic, marks)


def test_examples_of_a_symbolic_graph_have_its_sizes():
    seen = []

    def backend(gm, examples):
        seen.append(examples)
        return gm.forward

    compiled = ingot.compile(lambda x: x.t() + 1, backend=backend, dynamic=True)
    compiled(torch.randn(3, 4))
    rows, columns, tensor = seen[0]
    assert isinstance(rows, torch.SymInt) and isinstance(columns, torch.SymInt)
    assert tuple(tensor.shape) == (rows, columns) and tensor.stride() == (columns, 1)
    assert tensor.dtype == torch.float32


def test_what_a_backend_decides_by_sizes_is_asked_at_each_call():
    graphs = []

    def backend(gm, examples):
        large = bool(examples[0] > 4)  # of the example
        graphs.append(large)

        def run(size, x):
            assert (size > 4) == large
            return gm(size, x)

        return run

    compiled = ingot.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)
    for n in (3, 9, 4, 7, 3, 12):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x * n)
    assert graphs == [False, True]


def test_a_size_that_a_backend_needs_is_a_guard():
    graphs = []

    def backend(gm, examples):
        number = int(examples[0]) if isinstance(examples[0], torch.SymInt) else None
        graphs.append(number)

        def run(*given):
            assert number is None or given[0] == number
            return gm(*given)

        return run

    compiled = ingot.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)
    for n in (3, 9, 4, 3, 9):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x * n)
    assert graphs == [3, 9, 4]

    marked = torch.randn(3)
    ingot.mark_dynamic(marked, 0)
    with pytest.raises(ingot.ConstraintViolationError, match="the backend"):
        ingot.compile(lambda x: x * x.shape[0], backend=backend)(marked)


def test_a_backend_that_fails_on_symbolic_sizes_gets_numbers():
    graphs = []

    def backend(gm, examples):
        if any(isinstance(one, torch.SymInt) for one in examples):
            raise NotImplementedError("only numbers")
        graphs.append([tuple(one.shape) for one in examples])
        return gm.forward

    compiled = ingot.compile(lambda x: x * x.shape[0], backend=backend)
    for n in (3, 9, 4, 9):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x * n)
    assert graphs == [[(3,)], [(9,)], [(4,)], [(9,)]]  # the second: whether it takes numbers


def floats_of(gm):
    """What reads a float: the graph takes it as a tensor, as TorchDynamo's do."""
    return [n for n in gm.graph.nodes if n.op == "call_method" and n.target == "item"]


def test_floats_that_are_computed_from_sizes_stay_symbolic():
    def f(x):
        return x * (x.shape[0] / 2) + (1 if x.shape[0] / 2 > 3 else 0)

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend, dynamic=True)
    for n in (3, 9, 4, 3, 9, 4):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("name", [None, "eager", "aot_eager"])
def test_floats_that_change_are_inputs(name):
    def f(x, i, rate, state):
        state["decay"] *= 0.5
        y = torch.where(x > 0, x, rate) + i * rate - state["decay"]
        y = y + (x > rate) + torch.remainder(x, rate) + (rate - x) + torch.where(x > 1, rate, i)
        return torch.add(y.half(), x, alpha=rate), (x.double() * rate).sum(), rate * 2

    backend = RecordingBackend() if name is None else name
    compiled = ingot.compile(f, backend=backend)
    states = {"decay": 1.0}, {"decay": 1.0}
    for rate in (0.1, 0.3, -0.7, 1e4, 0.1, 3.0, -0.0):
        x, i = torch.randn(4), torch.arange(4)
        expected, got = f(x, i, rate, states[0]), compiled(x, i, rate, states[1])
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert states[0] == states[1]
    if name is None:
        first, second = backend.graphs
        assert not floats_of(first) and len(floats_of(second)) == 2
        fakes = [one for one in backend.examples[1] if one.dim() == 0]
        assert len(fakes) == 2 and all(one.dtype == torch.float64 for one in fakes)
        assert all(isinstance(one.item(), torch.SymFloat) for one in fakes)


def test_gradients_with_floats_that_change():
    def f(x, rate):
        return (x * rate).sin() / rate

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    for rate in (0.5, 0.25, 2.0, 3.0):
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        f(x, rate).sum().backward()
        compiled(y, rate).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(backend.graphs) == 2


@pytest.mark.parametrize("name", [None, "eager", "aot_eager"])
def test_gradients_at_sizes_that_change(name):
    def f(x, w):
        y = (x @ w).tanh()
        return y.sum(0) / x.shape[0], y[1:] * x.shape[0]

    backend = RecordingBackend() if name is None else name
    compiled = ingot.compile(f, backend=backend)
    w = torch.randn(4, 2, requires_grad=True)
    for n in (3, 5, 4, 9, 5):
        x = torch.randn(n, 4, requires_grad=True)
        gradients = []
        for function in (compiled, f):
            loss = sum(one.square().sum() for one in function(x, w))
            gradients.append(torch.autograd.grad(loss, (x, w)))
        for got, want in zip(*gradients, strict=True):
            torch.testing.assert_close(got, want)
    if name is None:
        assert len(backend.graphs) == 2


def test_what_a_backend_decides_by_floats_is_asked_at_each_call():
    graphs = []

    def backend(gm, examples):
        number = examples[0].item() if examples[0].dim() == 0 else None
        large = None if number is None else bool(number > 1)
        graphs.append(large)

        def run(*given):
            assert large is None or (given[0].item() > 1) == large
            return gm(*given)

        return run

    compiled = ingot.compile(lambda x, rate: x * rate, backend=backend)
    for rate in (0.5, 0.25, 2.0, 0.75, 3.0, float("inf"), 4.0, float("nan")):
        x = torch.ones(3)
        torch.testing.assert_close(compiled(x, rate), x * rate, equal_nan=True)
    assert graphs == [None, False, True, None, None]


def test_a_float_that_a_backend_needs_is_a_guard():
    graphs = []

    def backend(gm, examples):
        number = float(examples[0].item()) if examples[0].dim() == 0 else None
        graphs.append(number)

        def run(*given):
            assert number is None or given[0].item() == number
            return gm(*given)

        return run

    compiled = ingot.compile(lambda x, rate: x * rate, backend=backend)
    for rate in (0.5, 0.25, 2.0, 0.25, 2.0, 0.5):
        x = torch.ones(3)
        torch.testing.assert_close(compiled(x, rate), x * rate)
    assert graphs == [None, 0.25, None]  # a number from then on


def test_a_custom_function_is_given_symbolic_sizes():
    class Repeated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, times, shape):
            ctx.times = times
            if not isinstance(shape, torch.Size):
                raise TypeError("its shape has become a tuple")
            return x.expand(times, *shape).clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.sum(0) * ctx.times, None, None

    def f(x, w):
        return Repeated.apply(x * w, x.shape[0] + 1, x.shape).sum(1)

    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    for n in (3, 5, 4, 7):
        x, w = torch.randn(n), torch.randn(1, requires_grad=True)
        got, want = compiled(x, w), f(x, w)
        torch.testing.assert_close(got, want)
        a, b = (torch.autograd.grad(y.sum(), w)[0] for y in (got, want))
        torch.testing.assert_close(a, b)
    assert len(backend.graphs) == 2
