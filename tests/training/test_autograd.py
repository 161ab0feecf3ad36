"""Everything autograd promises, on compiled functions: who gets a gradient and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from judge import assert_as_good, compile_all, double, gradients

import ingot


@pytest.fixture(autouse=True, params=["dynamo", "own"])
def capture(request, monkeypatch):
    """Everything here holds whoever captures."""
    monkeypatch.setenv("INGOT_CAPTURE", request.param)
    return request.param


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=True)


def test_programs_are_counted_and_nothing_falls_back():
    before = ingot.stats()
    x = leaf(5, 7)
    compile_all(lambda x: (x.sin() * x).sum())(x).backward()
    after = ingot.stats()
    assert (after.training - before.training, after.fallbacks - before.fallbacks) == (1, 0)


def test_several_results_and_unused_ones():
    def f(x, y):
        return x.sin() @ y, (x * 3).tanh(), y.exp()

    compiled = compile_all(f)
    x, y = leaf(4, 6), leaf(6, 5)
    for used in ([0], [1], [2], [0, 2], [0, 1, 2]):
        got, want = [], []
        for function, into in ((compiled, got), (f, want)):
            x.grad = y.grad = None
            results = function(x, y)
            sum(results[k].square().sum() for k in used).backward()
            into += [x.grad, y.grad]
        for g, w in zip(got, want, strict=True):
            assert (g is None) == (w is None)
            if w is not None:
                torch.testing.assert_close(g, w)


def test_only_some_inputs_need_a_gradient():
    def f(x, w, b):
        return F.linear(x, w, b).relu().sum()

    for needs in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)):
        args = [torch.randn(s).requires_grad_(bool(n)) for s, n in
                zip(((3, 5), (4, 5), (4,)), needs, strict=True)]  # fmt: skip
        results = []
        for function in (f, compile_all(f)):
            for a in args:
                a.grad = None
            function(*args).backward()
            results.append([a.grad for a in args])
        for want, got in zip(*results, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(got, want)


def test_autograd_grad_of_a_part():
    f = compile_all(lambda x, y: (x * y).sin().sum())
    x, y = leaf(4), leaf(4)
    (gx,) = torch.autograd.grad(f(x, y), [x])
    torch.testing.assert_close(gx, (x * y).cos() * y)
    assert x.grad is None and y.grad is None


def test_retain_graph_and_the_second_backward_without():
    x = leaf(6)
    out = compile_all(lambda x: (x.exp() * x).sum())(x)
    out.backward(retain_graph=True)
    first = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_gradients_accumulate():
    f = compile_all(lambda x: (x * x).sum())
    x = leaf(6)
    f(x).backward()
    f(x).backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


def test_an_input_changed_before_the_backward_is_noticed():
    f = compile_all(lambda x, w: (x * w).sin().sum())
    x, w = torch.randn(5), leaf(5)
    out = f(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_a_result_changed_before_the_backward_is_noticed():
    def f(x, w):
        product = x @ w
        return product, product.sin()

    product, out = compile_all(f)(leaf(3, 4), leaf(4, 5))
    with torch.no_grad():
        product.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_input_that_eager_does_not_save_may_change():
    f = compile_all(lambda x, w: (x + w).sin().sum())
    x, w = torch.randn(5), leaf(5)
    want = (x + w).cos().detach()
    out = f(x, w)
    x.zero_()
    out.backward()
    torch.testing.assert_close(w.grad, want)


def test_double_backward():
    def f(x, w):
        return (torch.tanh(x @ w) ** 3).sum()

    compiled = compile_all(f)
    results = []
    for function in (f, compiled):
        torch.manual_seed(0)
        x, w = leaf(3, 4), leaf(4, 5)
        gx, gw = torch.autograd.grad(function(x, w), [x, w], create_graph=True)
        (gx.square().sum() + gw.sin().sum()).backward()
        results.append([gx.detach(), gw.detach(), x.grad, w.grad])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_hooks_run_when_they_would():
    calls = []
    x, w = leaf(4), leaf(4)
    x.register_hook(lambda g: calls.append("x") or g * 2)
    w.register_post_accumulate_grad_hook(lambda p: calls.append("w"))
    out = compile_all(lambda x, w: x * w)(x, w)
    out.register_hook(lambda g: calls.append("out") or g * 3)
    out.sum().backward()
    assert sorted(calls) == ["out", "w", "x"] and calls[0] == "out"
    torch.testing.assert_close(x.grad, 6 * w.detach())
    torch.testing.assert_close(w.grad, 3 * x.detach())


def test_an_exception_in_a_hook_leaves_gradients_as_they_were():
    x = leaf(4)
    out = compile_all(lambda x: x * 2)(x)

    def fail(_):
        raise ValueError("no")

    out.register_hook(fail)
    with pytest.raises(ValueError, match="no"):
        out.sum().backward()
    assert x.grad is None


def deep() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(4)]
    return torch.nn.Sequential(*layers)


def layers_with_gradients(model: torch.nn.Module) -> list[bool]:
    return [all(p.grad is not None for p in layer.parameters()) for layer in model]


@pytest.mark.parametrize("at", range(4))
def test_an_exception_in_a_parameters_hook_leaves_the_gradients_behind_it(at):
    left = []
    for function in (lambda m: m, compile_all):
        model = deep()

        def fail(_):
            raise ValueError("no")

        for p in model[at].parameters():
            p.register_hook(fail)
        loss = function(model)(torch.randn(3, 6)).square().sum()
        with pytest.raises(ValueError, match="no"):
            loss.backward()
        left.append(layers_with_gradients(model))
    assert left[0] == left[1] == [k > at for k in range(4)]


def test_hooks_see_each_layers_gradients_when_they_are_made():
    # As data parallelism wants them: it sends the last layers' while the first are computed.
    seen = []
    for function in (lambda m: m, compile_all):
        model = deep()
        seen.append([])
        for layer in model:
            layer[0].bias.register_post_accumulate_grad_hook(
                lambda _, model=model, into=seen[-1]: into.append(
                    [layer[0].bias.grad is not None for layer in model]
                )
            )
        x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        compiled = function(model)
        for _ in range(2):
            for p in model.parameters():
                p.grad = None
            compiled(x).square().sum().backward()
        seen[-1].append([p.grad for p in model.parameters()])
    torch.testing.assert_close(seen[1].pop(), seen[0].pop())
    assert seen[0] == seen[1] and seen[0][0] == [False, False, False, True]


def test_watched_gradients_are_those_of_any_other_backward():
    calls = []
    model = deep()
    compiled = compile_all(model)
    x = leaf(3, 6)
    leaves = [x, *model.parameters()]
    want = torch.autograd.grad(model(x).square().sum(), leaves)
    watched = model[1][0].weight
    watched.register_hook(lambda g: calls.append(1) or g * 2)
    loss = compiled(x).square().sum()
    for keep in (True, True, False):
        got = torch.autograd.grad(loss, leaves, retain_graph=keep)
        for g, w, p in zip(got, want, leaves, strict=True):
            torch.testing.assert_close(g, 2 * w if p is watched else w)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    (part,) = torch.autograd.grad(compiled(x).square().sum(), [model[2][0].weight])
    place = next(i for i, p in enumerate(leaves) if p is model[2][0].weight)
    torch.testing.assert_close(part, want[place])
    (first,) = torch.autograd.grad(compiled(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.sum(), x)[0])
    assert len(calls) >= 3


def test_results_without_gradients():
    def f(x):
        return x.sin(), x.detach() * 2, x.argmax(), x.view(-1), x

    x = leaf(3, 4)
    for got, want in zip(compile_all(f)(x), f(x), strict=True):
        assert got.requires_grad == want.requires_grad
        torch.testing.assert_close(got, want)
    view, same = compile_all(f)(x)[3:]
    assert same is x and view._base is x
    view.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3, 4))


def test_views_of_gradients_have_eagers_strides():
    for f in (lambda x: x.sum(), lambda x: x.t().sum(0)[1:], lambda x: x.expand(2, 3, 4) * 2):
        grads = []
        for function in (f, compile_all(f)):
            x = torch.ones(3, 4, requires_grad=True)
            out = function(x)
            (g,) = torch.autograd.grad(out, [x], torch.ones_like(out))
            grads.append(g)
        assert grads[0].stride() == grads[1].stride()
        torch.testing.assert_close(grads[0], grads[1])


def test_no_grad_inside_and_detach():
    def f(x):
        with torch.no_grad():
            scale = x.norm()
        return (x / scale + (x.detach() * x)).sum()

    grads = []
    for function in (f, compile_all(f)):
        torch.manual_seed(0)
        x = leaf(5)
        function(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_in_place_operators_of_the_function():
    def f(x):
        y = x * 2
        y[1:].mul_(x[:-1])
        y.relu_()
        return (y + 1).sum()

    grads = []
    for function in (f, compile_all(f)):
        torch.manual_seed(0)
        x = leaf(6)
        function(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("layout", ["dense", "expanded", "transposed"])
def test_gradients_handed_in_with_other_strides(layout):
    given = {"dense": torch.randn(3, 4), "expanded": torch.randn(1, 1).expand(3, 4),
             "transposed": torch.randn(4, 3).t()}[layout]  # fmt: skip
    x = leaf(3, 4)
    compile_all(lambda x: x.sin() * 2)(x).backward(given)
    torch.testing.assert_close(x.grad, 2 * x.detach().cos() * given)


def test_batch_norm_updates_its_statistics_once():
    eager = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    import copy

    other = copy.deepcopy(eager)
    compiled = compile_all(other)
    for _ in range(3):
        x = torch.randn(2, 3, 6, 6)
        eager(x).square().mean().backward()
        compiled(x).square().mean().backward()
    for (name, want), got in zip(
        eager.state_dict().items(), other.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(got, want, msg=name)


def test_dropout_draws_eagers_numbers():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.4), torch.nn.Linear(32, 2)
    )
    x = torch.randn(16, 8)
    leaves = list(model.parameters())
    want = gradients(lambda: model(x).square().sum(), leaves)[1]
    compiled = compile_all(model)
    got = gradients(lambda: compiled(x).square().sum(), leaves)[1]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_a_frozen_backbone_stays_without_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    model[0].requires_grad_(False)
    compiled = compile_all(model)
    compiled(torch.randn(3, 6)).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    model[0].requires_grad_(True)
    compiled(torch.randn(3, 6)).sum().backward()
    assert model[0].weight.grad is not None


def test_saved_tensor_hooks_see_what_is_saved():
    x = leaf(8)
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = ingot.compile(lambda x: x.exp().sin().sum())(x)  # fullgraph is an error there
    out.backward()
    assert packed
    torch.testing.assert_close(x.grad, x.detach().exp().cos() * x.detach().exp())


@pytest.mark.filterwarnings("ignore:Anomaly")
def test_anomaly_detection_runs_eagerly():
    x = leaf(3)
    with torch.autograd.detect_anomaly(check_nan=False):
        out = ingot.compile(lambda x: x.sqrt().sum())(x)
        assert "CompiledBackward" not in out.grad_fn.name()
        out.backward()


def test_infinities_and_nan_flow():
    x = torch.tensor([0.0, -1.0, float("inf"), float("nan"), 2.0], requires_grad=True)
    results = []
    for function in (lambda x: (x.sqrt() * x).sum(), compile_all(lambda x: (x.sqrt() * x).sum())):
        x.grad = None
        function(x).backward()
        results.append(x.grad)
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_memory_budget_keeps_gradients(budget):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(4)]
    )
    x = torch.randn(8, 16)
    leaves = list(model.parameters())
    want = gradients(lambda: model(x).square().sum(), leaves)[1]
    wide = double(model)
    exact = gradients(lambda: wide(x.double()).square().sum(), list(wide.parameters()))[1]
    compiled = ingot.compile(model, options={"memory_budget": budget, "fallback": False})
    got = gradients(lambda: compiled(x).square().sum(), leaves)[1]
    assert_as_good(got, want, exact)


def test_ten_steps_of_adam_stay_as_close_to_float64():
    import copy

    torch.manual_seed(0)
    start = torch.nn.Sequential(torch.nn.Linear(10, 24), torch.nn.LayerNorm(24), torch.nn.SiLU(),
                                torch.nn.Linear(24, 5))  # fmt: skip
    x, y = torch.randn(32, 10), torch.randint(0, 5, (32,))
    ends = {}
    for name in ("eager", "compiled", "exact"):
        model = double(start) if name == "exact" else copy.deepcopy(start)
        function = compile_all(model) if name == "compiled" else model
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        data = x.double() if name == "exact" else x
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(function(data), y).backward()
            optimizer.step()
        ends[name] = [p.detach() for p in model.parameters()]
    for got, want, exact in zip(ends["compiled"], ends["eager"], ends["exact"], strict=True):
        error = (want.double() - exact).norm()
        assert (got.double() - exact).norm() <= 2 * error + 1e-6 * exact.norm()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("points", [1, 6, 9])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
def test_convolutions_of_one_tap(channels_last, points, stride):
    # Some processors have them as matrix products that write into planned memory; where they step,
    # some points of the image are not read and have a gradient of zero.
    torch.manual_seed(0)
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = torch.nn.Sequential(
        torch.nn.Conv2d(24, 96, 3, padding=1), torch.nn.GELU(), torch.nn.Conv2d(96, 48, 1, stride),
        torch.nn.Tanh(),
    ).to(memory_format=order)  # fmt: skip
    x = torch.randn(4, 24, points, points).to(memory_format=order).requires_grad_()

    def run(model, function, x):
        inputs = [x, *model.parameters()]
        return torch.autograd.grad(function(x).square().sum(), inputs)

    wide = double(model)
    assert_as_good(run(model, compile_all(model), x), run(model, model, x),
                   run(wide, wide, double(x)))  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("images", "channels", "height", "width", "padding"),
    [(4, 64, 28, 28, 1), (2, 32, 41, 37, 1), (3, 64, 23, 30, 0), (4, 256, 7, 7, 1)],
)
def test_weights_of_three_by_three_taps(
    channels_last, images, channels, height, width, padding, request
):
    if "amx_bf16" in Path("/proc/cpuinfo").read_text() and channels == 256 and not channels_last:
        # Known to fall short: 2.8 times eager's error in the mean.
        request.applymarker(pytest.mark.xfail(reason="split products of matrix units"))
    # Found with fewer products than there are taps where that is faster.
    torch.manual_seed(0)
    order = torch.channels_last if channels_last else torch.contiguous_format
    model = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 64, 3, padding=padding), torch.nn.ReLU(),
        torch.nn.Conv2d(64, channels, 3, padding=padding), torch.nn.Tanh(),
    ).to(memory_format=order)  # fmt: skip
    x = torch.randn(images, channels, height, width).to(memory_format=order).requires_grad_()

    def run(model, function, x):
        inputs = [x, *model.parameters()]
        return torch.autograd.grad(function(x).square().sum(), inputs)

    wide = double(model)
    got, want = run(model, compile_all(model), x), run(model, model, x)
    exact = run(wide, wide, double(x))
    assert_as_good(got, want, exact)
    for ours, theirs, right in zip(got, want, exact, strict=True):
        assert (ours - right).abs().mean() <= 2 * (theirs - right).abs().mean() + 1e-7
        assert ours.stride() == theirs.stride()


class Block(torch.nn.Module):
    """Modules with several parameters, and one parameter that is used twice."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6, bias=False)
        self.conv, self.batch = torch.nn.Conv1d(2, 2, 3, padding=1), torch.nn.BatchNorm1d(2)
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, x):
        y = self.batch(self.conv(self.norm(x)))
        y = torch.relu(self.first(y) * self.scale) + x
        return self.second(self.first(y)) * self.scale + y


@pytest.mark.parametrize("kind", ["accumulated", "tensor", "some"])
def test_hooks_run_in_the_order_of_eager(kind):
    orders, left = [], []
    for function in (lambda m: m, compile_all):
        torch.manual_seed(0)
        model = torch.nn.Sequential(Block(), torch.nn.Linear(6, 6), torch.nn.Tanh(), Block())
        order = []
        for k, (name, p) in enumerate(model.named_parameters()):
            note = lambda _, name=name, order=order: order.append(name)  # noqa: E731
            if kind == "tensor":
                p.register_hook(note)
            elif kind == "accumulated" or k % 3 == 0:
                p.register_post_accumulate_grad_hook(note)
        x = torch.randn(4, 2, 6)
        compiled = function(model)
        for _ in range(2):
            compiled(x).square().sum().backward()
        orders.append(order)
        # Which gradients are there when a hook raises.
        model.zero_grad()

        def fail(_):
            raise ValueError("no")

        model[0].first.weight.register_hook(fail)
        with pytest.raises(ValueError, match="no"):
            compiled(x).square().sum().backward()
        left.append([name for name, p in model.named_parameters() if p.grad is not None])
    assert orders[0] == orders[1] and len(orders[0]) > 10
    assert left[0] == left[1] and 0 < len(left[0]) < 20


@pytest.mark.parametrize("bag", [False, True])
def test_embeddings_with_sparse_gradients(bag):
    tables = {}
    for compile_it in (False, True):
        torch.manual_seed(0)
        table = (torch.nn.EmbeddingBag if bag else torch.nn.Embedding)(30, 4, sparse=True)
        rest = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)

        def f(x, table=table, rest=rest):
            return rest(table(x * 2)).sum()

        compiled = ingot.compile(f) if compile_it else f
        for _ in range(3):
            optimizer.zero_grad()
            compiled(torch.randint(0, 15, (5, 3))).backward()
            assert table.weight.grad.layout == torch.sparse_coo
            optimizer.step()
        tables[compile_it] = table.weight.detach(), rest[0].weight.grad
    torch.testing.assert_close(tables[True], tables[False])


@pytest.mark.parametrize("mode", ["nearest", "linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("last", [False, True])
def test_upsampling_of_other_sizes(mode, last, capture):
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)
    last_format = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims)

    def f(x):
        return F.interpolate(x * 2, scale_factor=2, mode=mode).sin()

    compiled = compile_all(f)
    before = ingot.stats()
    for batch, width in ((2, 4), (3, 4), (4, 4), (5, 6), (3, 7)):
        x = torch.randn(batch, 3, *[width] * dims)
        if last and last_format:
            x = x.contiguous(memory_format=last_format)
        x.requires_grad_()
        got, want = compiled(x), f(x)
        weights = torch.randn_like(got)
        (g,), (w,) = (torch.autograd.grad(y, x, weights) for y in (got, want))
        assert g.stride() == w.stride()
        torch.testing.assert_close((got, g), (want, w))
    assert ingot.stats().reasons == before.reasons
