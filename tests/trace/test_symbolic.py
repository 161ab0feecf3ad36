"""Symbolic sizes: one program serves every size it is valid for, and gives what eager gives."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ingot
from ingot import _ingot, _options


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def close(actual, expected):
    if isinstance(expected, torch.Tensor):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        assert actual.stride() == expected.stride() or expected.numel() == 0
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            close(a, e)
    else:
        assert actual == expected and type(actual) is type(expected)


def record(function, examples, symbols):
    """A program over `examples` with dims named by `symbols` (by example, by dim; None: fixed)."""
    recorder = _ingot.Recorder(_options.resolve(None, None))
    promises = [
        recorder.input(x, False, f"x{i}", [None if s is None else (s, 1, 2**63 - 1) for s in names])
        for i, (x, names) in enumerate(zip(examples, symbols, strict=True))
    ]
    with recorder:
        outputs = function(*promises)
    many = isinstance(outputs, tuple)
    program = recorder.compile(list(outputs) if many else [outputs])
    return program, (lambda *inputs: program(*inputs) if many else program(*inputs)[0])


def programs_of(compiled, calls):
    """How many programs the calls (compared with eager by the caller) needed."""
    before = ingot.stats()
    results = [compiled(*inputs) for inputs in calls]
    after = ingot.stats()
    assert after.fallbacks == before.fallbacks, after.reasons[before.fallbacks :]
    assert after.eager_calls == before.eager_calls
    return after.programs - before.programs, results


FUNCTIONS = {
    "pointwise": (lambda x, y: torch.sin(x) + x * y, ["bs", "bs"]),
    "broadcast": (lambda x, y: x[:, None, :] + y[None], ["bs", "bs"]),
    "softmax": (lambda x, y: (torch.softmax(x, -1), torch.log_softmax(y, 0)), ["bs", "bs"]),
    "layer_norm": (lambda x, y: F.layer_norm(x, (x.shape[-1],)) + y, ["bs", "bs"]),
    "mean": (lambda x, y: (x.mean(0), x.mean(), y.var(1), x.std()), ["bs", "bs"]),
    "matmul": (lambda x, y: x @ y.T, ["bs", "bs"]),
    "batched": (lambda x, y: torch.matmul(x[:, None, :], y.T[None]), ["bs", "bs"]),
    "reshape": (lambda x, y: torch.cat([x, y]).reshape(2, -1).t(), ["bs", "bs"]),
    "arange": (lambda x, y: x + torch.arange(x.shape[1]) * y.shape[0], ["bs", "bs"]),
    "mask": (lambda x, y: x.masked_fill(torch.ones_like(x).tril() == 0, 0.0) + y, ["bs", "bs"]),
    "slices": (lambda x, y: (x[1:], y[:, :-1], x[-1], y[:, 0]), ["bs", "bs"]),
    "numbers": (lambda x, y: x.sum(1) / x.shape[1] + y.shape[0], ["bs", "bs"]),
    "attention": (
        lambda x, y: (
            F.scaled_dot_product_attention(*[x[None, None] * k for k in (1.0, 0.5, 2.0)]) + y
        ),
        [("b", None), ("b", None)],
    ),
    "sizes": (lambda x, y: (x.reshape(-1) + 1, x.shape[0] * x.shape[1] + 3), ["bs", "bs"]),
    "pad": (lambda x, y: F.pad(x, (1, 2)).flip(1) + F.pad(y, (2, 1)), ["bs", "bs"]),
    "gather": (lambda x, y: torch.gather(x, 1, (y > 0).long() * (x.shape[1] - 1)), ["bs", "bs"]),
    "in_place": (lambda x, y: x.clone().add_(y)[1:].mul_(2), ["bs", "bs"]),
    "calls": (lambda x, y: torch.cumsum(x, 1) + torch.sort(y, dim=1, stable=True)[0], ["bs", "bs"]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_program_serves_all_sizes(name):
    function, symbols = FUNCTIONS[name]
    _, call = record(function, [torch.randn(6, 10) for _ in symbols], symbols)
    for b, s in ((6, 10), (3, 3), (17, 33), (5, 128), (64, 4)):
        s = 10 if symbols[0][1] is None else s
        inputs = [torch.randn(b, s) for _ in symbols]
        close(call(*inputs), function(*inputs))


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_random_programs_and_sizes(data):
    """A random chain of operators, recorded once: right at any size, or refused by a guard."""
    steps = {
        "t": lambda x: x.transpose(0, 1),
        "flat": lambda x: x.reshape(-1, 2) if x.shape[0] * x.shape[1] % 2 == 0 else x,
        "half": lambda x: x[: x.shape[0] // 2 + 1],
        "tail": lambda x: x[:, -3:],
        "double": lambda x: torch.cat([x, x * 2], 1),
        "norm": lambda x: x - x.mean(1, keepdim=True),
        "self": lambda x: x @ x.transpose(0, 1) / x.shape[1],
        "sum": lambda x: x + x.sum(0),
        "long": lambda x: x * 2 if x.shape[0] > x.shape[1] else x + 1,
        "range": lambda x: x + torch.arange(x.shape[0])[:, None],
        "copy": lambda x: x.contiguous().view(x.shape[1], x.shape[0]),
    }
    chosen = data.draw(st.lists(st.sampled_from(sorted(steps)), min_size=1, max_size=5))

    def function(x):
        for step in chosen:
            x = steps[step](x)
        return torch.tanh(x)

    size = st.integers(1, 40)
    example = torch.randn(data.draw(size), data.draw(size), dtype=torch.float64)
    program, call = record(function, [example], ["bs"])
    refused = []
    program.fallback = lambda *inputs: refused.append(inputs) or (function(*inputs),)
    close(call(example), function(example))
    assert not refused, "the example's own sizes are refused"
    for _ in range(4):
        x = torch.randn(data.draw(size), data.draw(size), dtype=torch.float64)
        close(call(x), function(x))


def test_a_guard_refuses_what_was_decided_otherwise():
    program, call = record(
        lambda x: x * 2 if x.shape[0] > 8 else x + 1, [torch.randn(10, 3)], [("b", None)]
    )
    assert any("8 < b" in line for line in program.guards)
    close(call(torch.ones(9, 3)), torch.full((9, 3), 2.0))
    with pytest.raises(TypeError, match="size"):
        call(torch.ones(8, 3))


def test_equal_symbols_must_be_equal():
    _, call = record(lambda x, y: x + y, [torch.ones(4), torch.ones(4)], [("b",), ("b",)])
    close(call(torch.ones(7), torch.ones(7)), torch.full((7,), 2.0))
    with pytest.raises(TypeError, match="size"):
        call(torch.ones(7), torch.ones(1))


def test_dynamic_compile_keeps_one_program():
    def function(x, w):
        y = x.view(x.shape[0] * x.shape[1], -1) @ w
        return F.gelu(y), x.shape[1] * 2, x * x.shape[0]

    compiled = torch.compile(function, backend="ingot", dynamic=True)
    calls = [(torch.randn(b, s, 8), torch.randn(8, 6)) for b, s in ((2, 3), (5, 9), (16, 64))]
    with torch.no_grad():
        count, results = programs_of(compiled, calls)
        for result, inputs in zip(results, calls, strict=True):
            close(result, function(*inputs))
    assert count == 1


def test_weights_are_packed_once_for_all_sizes():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    compiled = torch.compile(model.eval(), backend="ingot", dynamic=True)
    with torch.no_grad():
        for n in (3, 40, 7, 100, 3):
            x = torch.randn(n, 64)
            close(compiled(x), model(x))
        model[0].weight.mul_(2)  # seen at every size
        for n in (3, 40, 9):
            x = torch.randn(n, 64)
            close(compiled(x), model(x))


def test_automatic_dynamic_sizes():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    ).eval()
    compiled = torch.compile(model, backend="ingot")
    calls = [(torch.randn(n, 3, 16, 16),) for n in (4, 2, 3, 7, 15)]
    with torch.no_grad():
        count, results = programs_of(compiled, calls)
        for result, (x,) in zip(results, calls, strict=True):
            close(result, model(x))
    assert count == 2  # one for the first size, one for all others


class Encoder(torch.nn.Module):
    """A small BERT: embeddings, learned positions, masked attention, post-norm."""

    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.heads = heads
        self.words, self.places = torch.nn.Embedding(50, width), torch.nn.Embedding(512, width)
        self.layers = torch.nn.ModuleList()
        for _ in range(layers):
            linear = [torch.nn.Linear(width, n) for n in (3 * width, width, 4 * width)]
            self.layers.append(torch.nn.ModuleList([*linear, torch.nn.Linear(4 * width, width)]))
        self.register_buffer("ids", torch.arange(512)[None])

    def forward(self, words, mask):
        b, s = words.shape
        x = self.words(words) + self.places(self.ids[:, :s])
        keep = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e9
        for project, out, up, down in self.layers:
            q, k, v = (
                t.view(b, s, self.heads, -1).transpose(1, 2) for t in project(x).chunk(3, -1)
            )
            scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + keep
            y = torch.matmul(torch.softmax(scores, -1), v)
            y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
            x = F.layer_norm(x + out(y.transpose(1, 2).reshape(b, s, -1)), (x.shape[-1],))
            x = F.layer_norm(x + down(F.gelu(up(x))), (x.shape[-1],))
        total = (x * mask[:, :, None]).sum(1)
        return x, total / mask.sum(1, keepdim=True).clamp(min=1), x.mean(1) / s


def test_an_encoder_over_batches_and_lengths():
    model = Encoder().eval()
    compiled = torch.compile(model, backend="ingot", dynamic=True)
    calls = [
        (torch.randint(0, 50, (b, s)), (torch.rand(b, s) > 0.2).long())
        for b, s in ((2, 8), (3, 17), (16, 9), (4, 128), (2, 512))
    ]
    with torch.no_grad():
        count, results = programs_of(compiled, calls)
        for result, inputs in zip(results, calls, strict=True):
            close(result, model(*inputs))
    assert count == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [torch.positive, torch.conj_physical])
def test_operators_that_give_their_operand_back(function, dynamic):
    """With symbolic sizes composite operators reach the recorder whole."""

    def f(x):
        y = function(x)
        y.add_(1)
        return x * y.shape[0], y

    g = ingot.compile(f, dynamic=dynamic, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.randn(n)
        mine = x.clone()
        expected, (z, y) = f(x), g(mine)
        assert torch.equal(z, expected[0]) and torch.equal(mine, x) and y is mine
