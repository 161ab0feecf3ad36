"""Libraries' first calls ahead of a training step's own: what they must leave as it is.

cuDNN's attention is asked for by name, which is there from compute capability 8.0 on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import ingot
from ingot import _ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


class Attention(nn.Module):
    def __init__(self, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.all, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (
            t.view(b, n, self.heads, c // self.heads).transpose(1, 2)
            for t in self.all(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return x + self.out(y.transpose(1, 2).reshape(b, n, c))


def layers(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(Attention(4, dropout), Attention(4, dropout), Attention(2, dropout))
    return made.cuda().bfloat16()


@pytest.fixture(autouse=True)
def by_cudnn() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        yield
    torch.cuda.synchronize()


def a_step(model: nn.Module, function, x: torch.Tensor) -> list[torch.Tensor]:
    for p in model.parameters():
        p.grad = None
    y = function(x)
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("length", [128, 192])
def test_steps_are_eagers(length: int, compiled_whole: None) -> None:
    model = layers()
    x = torch.randn(4, length, 256, device="cuda", dtype=torch.bfloat16)
    want = a_step(model, model, x)
    compiled = ingot.compile(model, options={"fallback": False})
    state = torch.cuda.get_rng_state()
    for _ in range(3):
        for mine, theirs in zip(a_step(model, compiled, x), want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-3)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def report_of(model: nn.Module, x: torch.Tensor) -> dict:
    """What a training program says of itself."""
    recorder = _ingot.Recorder({})
    named = dict(model.named_parameters())
    state = {n: recorder.input(p, False, n, gradient=True) for n, p in named.items()}
    promise = recorder.input(x)
    with recorder, nn.utils.stateless._reparametrize_module(model, state):
        output = model(promise)
    program = recorder.compile_training([output])
    (y,) = program(*named.values(), x)
    y.float().sum().backward()
    return program.report()


def test_each_kind_of_call_is_made_once() -> None:
    x = torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16)
    assert report_of(layers(), x)["early_calls"] == 2  # of four heads and of two
    with torch.autograd.set_multithreading_enabled(False):  # its backward is the caller's
        assert report_of(layers(), x)["early_calls"] == 0
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # is compiled already
        assert report_of(layers(), x)["early_calls"] == 0


def test_what_dropout_draws_is_eagers() -> None:
    model = layers(0.3)
    x = torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16)
    torch.cuda.manual_seed(3)
    want = [a_step(model, model, x) for _ in range(2)]
    after = torch.cuda.get_rng_state()
    compiled = ingot.compile(model, options={"fallback": False})
    torch.cuda.manual_seed(3)
    for step in want:
        for mine, theirs in zip(a_step(model, compiled, x), step, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-3)
    assert torch.equal(torch.cuda.get_rng_state(), after)


def test_another_stream_is_the_current_one() -> None:
    model = layers()
    x = torch.randn(4, 160, 256, device="cuda", dtype=torch.bfloat16)
    want = a_step(model, model, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = a_step(model, ingot.compile(model, options={"fallback": False}), x)
    torch.cuda.current_stream().wait_stream(stream)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("way", ["ends", "forks", "forgets"])
def test_nobody_waits_for_a_backward_that_does_not_come(way: str) -> None:
    """The process ends, forks, or drops the function right behind the first forward."""
    done = subprocess.run(
        [sys.executable, __file__, way], env=dict(os.environ), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "forward\n", done.stdout


def only_a_forward(way: str) -> None:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        model = layers()
        compiled = ingot.compile(model, options={"fallback": False, "cache": False})
        compiled(torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16))
    print("forward", flush=True)
    if way == "forks":
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    elif way == "forgets":
        del compiled
        ingot.reset()


if __name__ == "__main__":
    only_a_forward(sys.argv[1])
