"""Random numbers drawn inside of kernels on a GPU: eager's numbers, and eager's generator after.

Skipped where PyTorch has no GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
STRICT = {"fallback": False}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def drawn(function: Callable, *inputs: torch.Tensor, calls: int = 3) -> list:
    """The results of calls from one seed on, and the generator's state behind each."""
    torch.cuda.manual_seed(1234)
    torch.cuda.default_generators[0].set_offset(8)
    results = []
    for _ in range(calls):
        results += [*function(*inputs), torch.cuda.get_rng_state()]
    return results


def same_numbers(function: Callable, *inputs: torch.Tensor, **options: object) -> None:
    expected = drawn(function, *inputs)
    compiled = ingot.compile(function, options=STRICT | options)
    compiled(*inputs)
    for mine, eager in zip(drawn(compiled, *inputs), expected, strict=True):
        assert mine.dtype == eager.dtype
        assert mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)


def layout(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(size, device="cuda").to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if len(size) == 4 else x


SIZES = [(3, 5, 7), (64, 128, 768), (1001, 1002), (1,), (2, 3, 4, 5), (9, 16, 33, 34), (300_007,)]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_dropout_draws_eagers_numbers(
    size: tuple[int, ...], dtype: torch.dtype, graphs: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, mask = torch.ops.aten.native_dropout(x * 2, 0.3, True)
        z = functional.dropout(y + 1, 0.1)
        part = functional.dropout((x + 1).flatten()[3:], 0.5)  # aligned to its elements only
        turned = functional.dropout((x + 1).transpose(0, -1), 0.5)
        return y, mask, z, part, turned

    same_numbers(function, layout(size, dtype), cudagraphs=graphs)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_uniform_and_bernoulli_draw_eagers_numbers(
    size: tuple[int, ...], dtype: torch.dtype, graphs: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.rand_like(x)
        b = torch.rand(size, device="cuda", dtype=dtype)
        c = torch.empty_like(x).uniform_(-3.1, 7.3)
        d = torch.bernoulli(x, 0.3)
        e = torch.empty(size, device="cuda", dtype=torch.bool).bernoulli_(0.75)
        normal = torch.randn_like(x)  # PyTorch's own, and the generator goes on behind it
        f = torch.rand_like(x)
        return a, b, c, d, e, normal, f

    same_numbers(function, layout(size, dtype), cudagraphs=graphs)


class Block(nn.Module):
    """A transformer's layer with dropout before its residuals and in its attention."""

    def __init__(self, width: int = 256, drop: float = 0.1, attention: float = 0.1) -> None:
        super().__init__()
        self.drop, self.attention = drop, attention
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (t.view(b, n, 4, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.attention)
        y = self.out(y.transpose(1, 2).reshape(b, n, c))
        x = self.first(x + functional.dropout(y, self.drop))
        y = self.down(functional.gelu(self.up(x)))
        return self.second(x + functional.dropout(y, self.drop))


def step(model: Callable, x: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    return [y.detach(), *torch.autograd.grad(y.float().square().mean(), parameters)]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("attention", [0.0, 0.1])
def test_training_with_dropout(graphs: bool, attention: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(attention=attention), Block(attention=attention)).cuda()
    parameters = list(model.parameters())
    x = torch.randn(16, 128, 256, device="cuda")
    compiled = ingot.compile(model, options=STRICT | {"cudagraphs": graphs})
    step(compiled, x, parameters)
    expected = drawn(lambda x: step(model, x, parameters), x)
    got = drawn(lambda x: step(compiled, x, parameters), x)
    for mine, eager in zip(got, expected, strict=True):
        if mine.dtype == torch.uint8:  # a state
            assert torch.equal(mine, eager)
        else:
            assert (mine - eager).norm() <= 0.03 * eager.norm()


def test_masks_are_not_saved() -> None:
    """What a backward needs of a mask it computes again from the generator's state."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = functional.dropout(x @ w, 0.1)
        return x

    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    compiled = ingot.compile(function, options=STRICT)
    for _ in range(3):
        y = compiled(x, w)
        del y
    before = torch.cuda.memory_allocated()
    y = compiled(x, w)
    kept = torch.cuda.memory_allocated() - before
    # Three operands of products and the result; masks would be four times half of that.
    assert kept <= 4 * x.nbytes + (1 << 20)
    (mine,) = torch.autograd.grad(y.sum(), w)
    torch.manual_seed(5)
    (mine,) = torch.autograd.grad(compiled(x, w).float().sum(), w)
    torch.manual_seed(5)
    (eager,) = torch.autograd.grad(function(x, w).float().sum(), w)
    assert (mine - eager).norm() <= 0.03 * eager.norm()


def test_checkpoints_draw_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    block = Block(attention=0.0).cuda()
    compiled = ingot.compile(block, options=STRICT)
    parameters = list(block.parameters())
    x = torch.randn(8, 64, 256, device="cuda", requires_grad=True)

    def run(f: Callable) -> list[torch.Tensor]:
        torch.manual_seed(7)
        y = checkpoint(f, x, use_reentrant=False)
        return [y.detach(), *torch.autograd.grad(y.square().mean(), parameters)]

    run(compiled)
    for mine, eager in zip(run(compiled), run(block), strict=True):
        assert (mine - eager).norm() <= 2e-3 * eager.norm()


def test_a_gradient_of_a_gradient_has_the_same_mask() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x.sin(), 0.5).square().sum()

    compiled = ingot.compile(function, options=STRICT)
    x = torch.randn(512, 64, device="cuda", requires_grad=True)
    results = []
    for f in (compiled, compiled, function):
        torch.manual_seed(3)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        results.append((g.detach(), h))
    for mine, eager in zip(results[1], results[2], strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
