"""Random numbers on processors: eager's, bit by bit, with the generator left as eager leaves it."""

from __future__ import annotations

import math
import threading

import pytest
import torch
import torch.nn.functional as F
from judge import compile_all, gradients
from torch.utils.checkpoint import checkpoint

import ingot

BLOCK = 624  # words of the generator's state


def skip(words: int) -> None:
    """Draws that many words, so that what follows begins anywhere in a block, or within a pair."""
    torch.empty(words, dtype=torch.int32).random_()


def same(function, *args, compiled=None, seed: int = 0, words: int = 0) -> torch.Tensor:
    """Eager's result, after seeing that the compiled function gives it and leaves its state."""
    outcomes = []
    for f in (function, compiled or compile_all(function)):
        torch.manual_seed(seed)
        skip(words)
        results = f(*[a.clone() for a in args])
        outcomes.append((results, torch.get_rng_state()))
    (want, state), (got, left) = outcomes
    wants, gots = (x if isinstance(x, tuple) else (x,) for x in (want, got))
    for w, g in zip(wants, gots, strict=True):
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
        assert torch.equal(g, w)
    assert torch.equal(state, left)
    return want


def drawn(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).bernoulli_(0.7)


@pytest.mark.parametrize("size", [0, 1, 311, 312, 313, BLOCK - 1, BLOCK, BLOCK + 1, 10**6 + 1])
def test_any_count_from_any_phase(size):
    compiled = compile_all(drawn)
    x = torch.zeros(size)
    for words in (0, 1, 2, 3, BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1):
        same(drawn, x, compiled=compiled, words=words, seed=words)


TYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    ones = same(drawn, torch.zeros(1001, dtype=dtype), words=1)
    assert 600 < ones.sum().item() < 800


EDGES = [0.0, 1.0, 5e-324, 2**-53, 2**-54, 1 - 2**-53, 2**-21, 2**-32, 0.5, math.nextafter(0.5, 1)]


@pytest.mark.parametrize("p", EDGES)
def test_probabilities(p):
    same(lambda x: torch.empty_like(x).bernoulli_(p), torch.zeros(5000), words=3)


def test_the_last_bit_of_a_number_decides():
    torch.manual_seed(0)
    numbers = torch.rand(2000, dtype=torch.float64)
    for i in (0, 1, 311, 312, 1999):
        u = numbers[i].item()
        for p, one in ((u, 0), (math.nextafter(u, 1), 1), (u + 2**-53, 1), (u - 2**-53, 0)):
            ones = same(lambda x, p=p: torch.empty_like(x).bernoulli_(p), torch.zeros(2000))
            assert ones[i] == one


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_what_is_no_probability(p):
    def f(x):
        return torch.empty_like(x).bernoulli_(p)

    texts = []
    for function in (f, ingot.compile(f)):
        with pytest.raises(RuntimeError) as e:
            function(torch.zeros(3))
        texts.append(str(e.value).split("\n")[0])
    assert texts[0] == texts[1]


LAYOUTS = {
    "transposed": lambda: torch.zeros(30, 41).t(),
    "channels_last": lambda: torch.zeros(2, 5, 7, 9).to(memory_format=torch.channels_last),
    "turned": lambda: torch.zeros(3, 4, 5, 6, 7).permute(3, 0, 4, 1, 2),
    "gaps": lambda: torch.zeros(40, 50)[::2, 1:33],
    "repeated": lambda: torch.zeros(40, 1).expand(40, 33),
    "no dims": lambda: torch.zeros(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_order_follows_memory(layout):
    def f(x):
        return torch.empty_like(x).bernoulli_(0.3), torch.rand_like(x), F.dropout(x + 1, 0.1)

    x = LAYOUTS[layout]()
    outcomes = []
    for g in (f, compile_all(f)):
        torch.manual_seed(1)
        outcomes.append((*g(x), torch.get_rng_state()))
    for want, got in zip(*outcomes, strict=True):
        assert want.stride() == got.stride() and torch.equal(want, got)


@pytest.mark.parametrize("layout", ["transposed", "gaps"])
def test_inputs_are_filled_in_place(layout):
    def f(x):
        x.bernoulli_(0.25)
        return x[1:].uniform_()

    outcomes = []
    for g in (f, compile_all(f)):
        x = LAYOUTS[layout]()
        torch.manual_seed(1)
        g(x)
        outcomes.append(x)
    assert torch.equal(*outcomes)


def test_a_generator_of_ones_own():
    def f(x, g):
        return torch.empty_like(x).bernoulli_(0.25, generator=g), torch.empty_like(x).bernoulli_()

    outcomes = []
    for function in (f, ingot.compile(f)):
        g = torch.Generator().manual_seed(3)
        torch.manual_seed(1)
        outcomes.append((*function(torch.zeros(999), g), g.get_state(), torch.get_rng_state()))
    for want, got in zip(*outcomes, strict=True):
        assert torch.equal(want, got)


def test_between_other_numbers():
    def f(x):
        a = torch.randn(7)  # leaves its second normal number behind
        b = F.dropout(x, 0.1)
        c = torch.randn(3, dtype=torch.float64)
        d = torch.rand(5)
        e = torch.randint(0, 9, (3,))
        g = torch.rand(5, dtype=torch.float64)
        h = torch.empty(9).uniform_(-1, 2)
        i = torch.ops.aten.native_dropout(x, 0.2, True)
        F.dropout(x, 0.3)  # nobody reads it, and the generator goes on
        return a, b, c, d, e, g, h, *i, torch.randn(1), torch.rand(1)

    for words in range(3):
        same(f, torch.randn(50, 3), words=words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_native_dropout(dtype, p):
    x = torch.randn(33, 20).to(dtype)
    x[0, 0], x[1, 1] = math.inf, -0.0

    def f(x):
        y, mask = torch.ops.aten.native_dropout(x, p, True)
        return y.nan_to_num(7), mask, y.signbit() | y.isnan()

    same(f, x)
    same(f, x.t())


def test_states_are_kept_and_set():
    def f(x):
        return F.dropout(x, 0.5)

    compiled = compile_all(f)
    x = torch.ones(3000)
    state = torch.get_rng_state()
    first = compiled(x)
    with torch.random.fork_rng():
        compiled(x)
    second = compiled(x)
    torch.set_rng_state(state)
    assert torch.equal(f(x), first) and torch.equal(f(x), second)


def test_sizes_that_differ():
    def f(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    compiled = ingot.compile(f, dynamic=True)
    for size in (5, 700, 623, 1):
        same(f, torch.randn(size, 3), compiled=compiled, words=size)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_again(reentrant):
    torch.manual_seed(0)
    w = torch.randn(40, 40, requires_grad=True)
    x = torch.randn(30, 40, requires_grad=True)

    def f(x):
        return F.dropout(torch.tanh(x @ w), 0.3)

    outcomes = []
    for g in (f, ingot.compile(f)):  # fullgraph is an error under saved-tensor hooks
        loss = lambda g=g: checkpoint(g, x, use_reentrant=reentrant).square().sum()  # noqa: E731
        outcomes.append(gradients(loss, [w, x], seed=4))
    (want, wants), (got, gots) = outcomes
    torch.testing.assert_close(got, want)
    for g, h in zip(gots, wants, strict=True):
        torch.testing.assert_close(g, h)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformers_layer_has_eagers_masks(norm_first):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.1, batch_first=True, norm_first=norm_first
    )
    x = torch.randn(3, 17, 32)
    leaves = list(layer.parameters())
    results = []
    for f in (layer, compile_all(layer)):
        loss, grads = gradients(lambda f=f: f(x).square().mean(), leaves, seed=5)
        results.append((loss, *grads, torch.get_rng_state()))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_no_call_of_eagers_draws():
    x = torch.randn(100, 10, requires_grad=True)
    compiled = compile_all(lambda x: (F.dropout(x.sin(), 0.1) + torch.rand_like(x)).sum())
    compiled(x)
    with torch.profiler.profile() as profile:
        compiled(x).backward()
    names = {e.name for e in profile.events()}
    assert not names & {"aten::bernoulli_", "aten::uniform_", "aten::rand_like"}


def test_what_is_kept_for_a_backward_is_a_byte_each(tmp_path):
    options = {"fallback": False, "cache": False, "debug": str(tmp_path)}
    x = torch.randn(64, 64, requires_grad=True)
    ingot.compile(lambda x: F.dropout(x * 2, 0.1).sum(), fullgraph=True, options=options)(x)
    graphs = [p.read_text() for p in tmp_path.glob("*/00_traced.ir")]
    assert len(graphs) == 2
    assert any('"saved0": b8[64, 64], %1 "tangent0"' in g for g in graphs)


def test_threads_take_turns():
    """Several threads draw from one generator at once: every number is drawn by one of them."""
    compiled = compile_all(lambda x: torch.rand_like(x))
    x = torch.zeros(5000)
    compiled(x)
    torch.manual_seed(9)
    want = torch.rand(8 * 5000)
    torch.manual_seed(9)
    parts: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: parts.append(compiled(x))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(p.tolist() for p in parts) == sorted(c.tolist() for c in want.split(5000))
