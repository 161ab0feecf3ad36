"""Training through CUDA graphs that share their memory: whatever somebody holds stays as it is.

A backward's graph overwrites what its forward has saved (docs/gpu.md). Each test holds something
over the moment in which it could be lost, for more steps than graphs take to settle.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")

STRICT = {"fallback": False, "cudagraphs": True}
STEPS = 12


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    """A convolution, norms and products: results of libraries and of kernels are saved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.up, self.down = nn.Linear(8 * 64, width), nn.Linear(width, 8 * 64)
        self.last = nn.LayerNorm(8 * 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        for _ in range(3):
            x = self.last(x + self.down(nn.functional.gelu(self.up(x))))
        return x


def pair(width: int = 1024) -> tuple[nn.Module, nn.Module, Callable]:
    """A module, the same again, and the latter compiled."""
    torch.manual_seed(0)
    plain, other = Block(width).cuda(), Block(width).cuda()
    other.load_state_dict(plain.state_dict())
    return plain, other, ingot.compile(other, options=STRICT)


def images(n: int = 256) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, device="cuda")


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def grads(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters()]


def graph_launches(call: Callable) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        call()
        torch.cuda.synchronize()
    return sum(e.count for e in record.key_averages() if e.key == "cudaGraphLaunch")


@pytest.mark.parametrize("early", [True, False], ids=["before", "behind"])
def test_gradients_that_are_freed_before_or_behind_the_forward(early: bool) -> None:
    plain, other, f = pair()

    def step(module: nn.Module, call: Callable, x: torch.Tensor) -> torch.Tensor:
        if early:
            module.zero_grad()
        y = call(x)
        before = [(g, g.clone()) for g in grads(module) if g is not None]
        if not early:
            same([g for g, _ in before], [c for _, c in before])
            module.zero_grad()
        y.square().mean().backward()
        return y.detach()

    for _ in range(STEPS):
        x = images()
        same([step(other, f, x)], [step(plain, plain, x)])
        same(grads(other), grads(plain))
    assert graph_launches(lambda: step(other, f, images())) == 2


def test_gradients_that_are_kept_for_ever() -> None:
    plain, other, f = pair()
    kept = []
    for _ in range(STEPS):
        x = images()
        got = torch.autograd.grad(f(x).square().mean(), list(other.parameters()))
        want = torch.autograd.grad(plain(x).square().mean(), list(plain.parameters()))
        kept.append((got, want))
    for got, want in kept:
        same(list(got), list(want))


def test_a_second_backward_over_the_same_values() -> None:
    plain, other, f = pair()
    for i in range(STEPS):
        x = images()
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            y = call(x)
            loss = y.square().mean()
            for _ in range(i % 3):
                loss.backward(retain_graph=True)
            (y.abs().mean() + loss).backward()
        same(grads(other), grads(plain))


def test_what_hooks_on_saved_tensors_have_seen() -> None:
    plain, other, f = pair()
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    running = {t.data_ptr() for t in other.buffers()}  # change in every forward

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in running:
            kept.append((t, t.detach().clone()))
        return t

    for i in range(STEPS):
        x = images()
        for module in (plain, other):
            module.zero_grad()
        plain(x).square().mean().backward()
        if i % 2 == 0:
            f(x).square().mean().backward()
        else:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                y = f(x)
            y.square().mean().backward()
        same(grads(other), grads(plain))
        for t, was in kept:
            assert torch.equal(t, was)
        if i % 4 == 3:
            kept.clear()


def test_values_that_come_back_from_elsewhere() -> None:
    plain, other, f = pair()
    for _ in range(STEPS):
        x = images()
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            with torch.autograd.graph.save_on_cpu():
                y = call(x)
            y.square().mean().backward()
        same(grads(other), grads(plain))


def test_checkpoints() -> None:
    plain, other, f = pair()
    for _ in range(STEPS):
        x = images()
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            y = checkpoint(call, x, use_reentrant=False)
            y.square().mean().backward()
        same(grads(other), grads(plain))


def test_results_that_the_backward_reads_too() -> None:
    # Too big to be copied out, and exp's own result is what its gradient is computed from.
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    f = ingot.compile(lambda x: torch.exp(x @ weight), options=STRICT)
    kept = []
    for i in range(STEPS):
        x = torch.randn(1 << 19, 64, device="cuda") * 0.1
        y = f(x)
        z = y.detach().clone() if i % 3 == 0 else None
        (g,) = torch.autograd.grad(y.sum(), weight)
        want = torch.exp(x @ weight)
        torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
        (wanted,) = torch.autograd.grad(want.sum(), weight)
        torch.testing.assert_close(g, wanted, rtol=1e-3, atol=1.0)
        if z is not None:
            kept.append((y.detach(), z))
        del y, want
    for a, b in kept:
        assert torch.equal(a, b)


def test_gradients_of_gradients() -> None:
    plain, other, f = pair()
    for _ in range(STEPS):
        x = images(32).requires_grad_()
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            (g,) = torch.autograd.grad(call(x).square().mean(), x, create_graph=True)
            (g.square().sum() + call(x).abs().mean()).backward()
        same(grads(other), grads(plain))


def test_weights_that_move() -> None:
    plain, other, f = pair()
    for i in range(STEPS):
        x = images()
        if i % 5 == 4:
            for p, q in zip(plain.parameters(), other.parameters(), strict=True):
                p.data = p.data * 1.01
                q.data = p.data.clone()
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            call(x).square().mean().backward()
        same(grads(other), grads(plain))


def test_two_steps_at_a_time() -> None:
    plain, other, f = pair()
    for _ in range(STEPS):
        x = [images() for _ in range(3)]
        for module, call in ((plain, plain), (other, f)):
            module.zero_grad()
            y = [call(t) for t in x]
            y[1].square().mean().backward()
            y[0].square().mean().backward()
            y[2].abs().mean().backward()
            del y
        same(grads(other), grads(plain))


def test_what_a_step_holds_is_not_more_than_without_graphs() -> None:
    layers = [m for _ in range(6) for m in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(nn.Linear(16, 1024), *layers, nn.Linear(1024, 4)).cuda()
    x = torch.randn(16384, 16, device="cuda")

    def held(graphs: bool) -> int:
        f = ingot.compile(model, options=STRICT | {"cudagraphs": graphs})

        def step() -> None:
            model.zero_grad()
            f(x).square().mean().backward()

        for _ in range(6):
            step()
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if graphs:
            assert graph_launches(step) == 2
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_reserved()

    def held_anew(graphs: bool) -> int:
        ingot.reset()
        gc.collect()
        torch.cuda.empty_cache()
        return held(graphs)

    without = held(False)
    # The libraries have workspaces for one more stream. On a loaded machine the engine's thread may
    # let go of a step's gradients late: then that call runs without its graph.
    assert min(held_anew(True) for _ in range(3)) <= without + (96 << 20)
