"""Calls of libraries that a program carries out by itself after the first ones; needs a GPU.

What is compared is the first calls, which the libraries carry out, with the later ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot import _ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
STRICT = {"fallback": False}
CALLS = 7


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


class Mixed(nn.Module):
    """A convolution, attention and products, with and without a bias."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.drop = drop
        self.patch = nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.again = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(functional.relu(self.norm(self.patch(x))))
        x = x.flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (2, 32)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        x = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
        return self.out(functional.gelu(x.transpose(1, 2).flatten(2)))


def image(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 3, 32, 32, device="cuda")


def autocast(f: Callable) -> Callable:
    def call(*args: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return f(*args)

    return call


def learned(model: nn.Module, x: torch.Tensor) -> Callable:
    """The compiled model after its first calls."""
    compiled = autocast(ingot.compile(model, options=STRICT))
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(x)
    return compiled


def report_of(model: nn.Module, x: torch.Tensor) -> dict:
    """The report of the model's program after its first calls."""
    recorder = _ingot.Recorder({})
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        state = {n: recorder.input(p.detach(), True, n) for n, p in named.items()}
        promise = recorder.input(x)
        with recorder, nn.utils.stateless._reparametrize_module(model, state):
            output = model(promise)
        program = recorder.compile([output])
        for _ in range(CALLS):
            program(*[p.detach() for p in named.values()], x)
    return program.report()


def test_later_calls_give_what_the_first_ones_gave() -> None:
    model = Mixed().cuda().eval()
    inputs = [image() for _ in range(CALLS)]
    compiled = autocast(ingot.compile(model, options=STRICT))
    with torch.no_grad():
        first = [autocast(model)(x) for x in inputs]
        for _ in range(3):
            held = []  # so that memory is lent elsewhere each time
            for x, expected in zip(inputs, first, strict=True):
                held.append((compiled(x), torch.full((1 << 18,), 7.0, device="cuda")))
                torch.testing.assert_close(held[-1][0], expected, rtol=0.05, atol=0.02)
            for (y, noise), expected in zip(held, first, strict=True):
                torch.testing.assert_close(y, expected, rtol=0.05, atol=0.02)
                assert (noise == 7).all()


class Causal(nn.Module):
    """Attention of few rows: its keys are divided among kernels, whose parts are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(2048, 3 * 2048, bias=False)
        self.out = nn.Linear(2048, 2048, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (16, 128)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def test_a_call_that_works_in_memory_of_its_own() -> None:
    # What attention had worked in was given back and became its result when it was copied: later
    # calls wrote all of it to the result, and far beyond.
    model = Causal().cuda().eval()
    x = torch.randn(1, 512, 2048, device="cuda")
    compiled = autocast(ingot.compile(model, options=STRICT))
    with torch.no_grad():
        expected = autocast(model)(x)
        held = []
        for _ in range(CALLS):
            held.append((compiled(x), torch.full((1 << 20,), 7.0, device="cuda")))
        for y, noise in held:
            torch.testing.assert_close(y, expected, rtol=0.05, atol=0.02)
            assert (noise == 7).all()


def test_calls_of_libraries_are_learned() -> None:
    report = report_of(Mixed().cuda().eval(), image())
    assert report["direct_externs"] >= 3, report
    left = sum(report["externs_left"].values())
    assert report["direct_externs"] + left >= report["externs"], report


def test_inputs_at_other_alignments() -> None:
    w = torch.randn(64, 64, device="cuda")
    compiled = ingot.compile(lambda x: torch.relu(x @ w) @ w, options=STRICT)
    with torch.no_grad():
        for offset in [0] * 5 + [4, 1, 64, 4, 0]:
            x = torch.randn(64 * 64 + 64, device="cuda")[offset : offset + 64 * 64].view(64, 64)
            torch.testing.assert_close(compiled(x), torch.relu(x @ w) @ w, rtol=1e-3, atol=1e-3)


def test_on_other_streams_and_threads() -> None:
    model = Mixed().cuda().eval()
    x = image()
    compiled = learned(model, x)
    with torch.no_grad():
        expected = compiled(x)
    torch.cuda.synchronize()
    wrong = []

    def work(stream: torch.cuda.Stream | None) -> None:
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(20):
                if not torch.equal(compiled(x), expected):
                    wrong.append(stream)

    threads = [
        threading.Thread(target=work, args=(s,))
        for s in (None, None, torch.cuda.Stream(), torch.cuda.Stream())
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_inside_a_graph_of_the_user() -> None:
    model = Mixed().cuda().eval()
    x = image()
    compiled = learned(model, x)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        x.copy_(image())
        graph.replay()
        torch.testing.assert_close(y, autocast(model)(x), rtol=0.05, atol=0.02)


def test_memory_of_libraries_is_not_given_away() -> None:
    model = Mixed().cuda().eval()
    x = image()
    compiled = learned(model, x)
    with torch.no_grad():
        expected = compiled(x)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
        assert all((o == 7).all() for o in others)


def test_settings_that_change() -> None:
    model = Mixed().cuda().eval()
    x = image()
    compiled = learned(model, x)
    with torch.no_grad():
        expected = compiled(x)
        before = torch.backends.cudnn.deterministic
        try:
            for value in (True, False, True, False, True):
                torch.backends.cudnn.deterministic = value
                torch.testing.assert_close(compiled(x), expected, rtol=0.05, atol=0.02)
        finally:
            torch.backends.cudnn.deterministic = before


def test_steps_of_training() -> None:
    model, twin = Mixed().cuda(), Mixed().cuda()
    twin.load_state_dict(model.state_dict())
    compiled, eager = autocast(ingot.compile(model, options=STRICT)), autocast(twin)
    for _ in range(CALLS):
        x = image()
        for m, f in ((model, compiled), (twin, eager)):
            m.zero_grad()
            f(x).float().square().mean().backward()
        for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
            gap = (p.grad - q.grad).norm() / q.grad.norm().clamp_min(1e-6)
            assert gap < 0.1, f"{name}: {gap}"


def test_random_numbers_are_drawn_each_time() -> None:
    model = Mixed(0.5).cuda().eval()
    x = image()
    compiled = learned(model, x)
    with torch.no_grad():
        results = [compiled(x) for _ in range(4)]
        assert all(not torch.equal(results[0], y) for y in results[1:])
        torch.manual_seed(3)
        a = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(x), a, rtol=0, atol=0)


def test_operators_of_others_run_each_time() -> None:
    calls = []

    @torch.library.custom_op("ingot_direct::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 * len(calls)

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    x = torch.ones(8, 8, device="cuda")
    compiled = ingot.compile(lambda x: torch.ops.ingot_direct.twice(x) @ x, options=STRICT)
    with torch.no_grad():
        for _ in range(CALLS):
            count = len(calls)
            y = compiled(x)
            assert len(calls) == count + 1
            assert (y == 16 * len(calls)).all()


def test_on_odd_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    model = Mixed().to("cuda:1").eval()
    x = image().to("cuda:1")
    compiled = learned(model, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), autocast(model)(x), rtol=0.05, atol=0.02)
