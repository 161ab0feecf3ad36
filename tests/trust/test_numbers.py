"""Numbers beside tensors of all types: rounded and refused as eager rounds and refuses them."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch
import torch.nn.functional as F

import ingot

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import number_sweep

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
NUMBERS = (0.1, 3.14, 0.7, 1 / 3, -0.3, 2.7182, 257.3)


@pytest.mark.parametrize("seed", range(2))
def test_random_calls(seed):
    found, counts = number_sweep.judge(400, seed)
    assert counts["run"] > 150
    assert not found, "\n".join(f"{case}: {what}" for case, what in found)


@pytest.mark.parametrize("dtype", HALVES)
def test_numbers_are_rounded_first(dtype, compiled_whole):
    def program(x):
        return x == 0.1, x > 0.1, x >= 3.14, 0.1 - x, x - 0.1, x % 0.1, torch.fmod(x, 0.1), x * 0.1

    x = torch.tensor([0.1, 3.14, 0.2, 1.0]).to(dtype)
    for ours, eager in zip(ingot.compile(program)(x), program(x), strict=True):
        assert torch.equal(ours, eager)
    assert F.hardshrink(x, 0.1)[0] == ingot.compile(lambda x: F.hardshrink(x, 0.1))(x)[0] == 0


# What the lowerings assume of PyTorch: which operators take a number as it is. (name, call)
TAKEN_AS_IT_IS = {
    "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c,
    "div trunc": lambda x, c: torch.div(x, c, rounding_mode="trunc"),
    "div floor": lambda x, c: torch.div(x, c, rounding_mode="floor"),
    "floor_divide": lambda x, c: x // c,
    "lerp": lambda x, c: torch.lerp(x, x.flip(0), c),
    "leaky_relu": lambda x, c: F.leaky_relu(x, c),
    "addcmul": lambda x, c: torch.addcmul(x, x, x.flip(0), value=c),
}
ROUNDED = {
    "number / x": lambda x, c: torch.div(torch.tensor(c, dtype=torch.float64), x),
    "x + number": lambda x, c: x + c,
    "x - number": lambda x, c: x - c,
    "number - x": lambda x, c: c - x,
    "alpha": lambda x, c: torch.add(x, x.flip(0), alpha=c),
    "fmod": lambda x, c: torch.fmod(x, c),
    "remainder": lambda x, c: x % c,
    "pow": lambda x, c: x.abs() ** c,
    "number ** x": lambda x, c: abs(c) ** x,
    "atan2": lambda x, c: torch.atan2(x, torch.tensor(c, dtype=torch.float64)),
    "xlogy": lambda x, c: torch.xlogy(x, abs(c)),
    "logaddexp": lambda x, c: torch.logaddexp(x, torch.tensor(c, dtype=torch.float64)),
    "eq": lambda x, c: x == c,
    "lt": lambda x, c: x < c,
    "ge": lambda x, c: x >= c,
    "hardshrink": lambda x, c: aten.hardshrink(x, abs(c)),
    "hypot": lambda x, c: torch.hypot(x, torch.tensor(c, dtype=torch.float64)),
}


def takes_it_as_it_is(call, dtype) -> bool:
    for c in NUMBERS:
        rounded = float(torch.tensor(c).to(dtype))
        x = torch.cat([torch.tensor([rounded * k for k in range(1, 9)]), torch.randn(500) * 3])
        a, b = call(x.to(dtype), c), call(x.to(dtype), rounded)
        if not torch.equal(a.nan_to_num(0), b.nan_to_num(0)):
            return True
    return False


@pytest.mark.parametrize("dtype", HALVES)
def test_which_operators_take_numbers_as_they_are(dtype):
    found = {n for n, f in (TAKEN_AS_IT_IS | ROUNDED).items() if takes_it_as_it_is(f, dtype)}
    assert found == set(TAKEN_AS_IT_IS)
    ours = {
        n
        for n, f in (TAKEN_AS_IT_IS | ROUNDED).items()
        if takes_it_as_it_is(ingot.compile(f, dynamic=False), dtype)
    }
    assert ours == set(TAKEN_AS_IT_IS)


def both(program, *args):
    """What eager and Ingot do: the results, or the class of the error."""
    seen = []
    for run in (program, ingot.compile(program)):
        try:
            seen.append(run(*args))
        except Exception as error:
            seen.append(type(error))
    return seen


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_large_numbers_of_eight_bits(dtype, source):
    x = torch.tensor([440, 448, 449, 464, 465, 480, 57344, -1e5, torch.inf, -torch.inf, torch.nan])
    eager, ours = both(lambda x: x.to(dtype).float(), x.to(source).repeat(3))
    torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + 1,
        lambda x: x + x,
        lambda x: x == x,
        lambda x: x.sum(),
        lambda x: -x,
        lambda x: x.flip(0),
        lambda x: torch.where(x.bool(), x, x),
        lambda x: torch.cat([x, x]),
        lambda x: x[torch.tensor([1, 0])],
        lambda x: x * 2.0,
    ],
)
@pytest.mark.parametrize(
    "dtype",
    [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_rare_types(dtype, program):
    eager, ours = both(program, torch.tensor([1, 2, 3]).to(dtype))
    if not isinstance(eager, torch.Tensor):
        assert ours is eager
        return
    assert ours.dtype == eager.dtype
    torch.testing.assert_close(ours.double(), eager.double(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.where(x, 1.0, 2.0),
        lambda x: x.masked_fill(x, 1.0),
        lambda x: x.clamp(max=1e5),
        lambda x: x.fill_(1e5),
        lambda x: x + torch.ones(3),
        lambda x: torch.add(x, x, alpha=1e5),
        lambda x: torch.add(x, x, alpha=True),
        lambda x: torch.add(x.int(), 1, alpha=0.5),
        lambda x: F.binary_cross_entropy(x, x),
        lambda x: F.celu(x, 0.0),
        lambda x: aten.nll_loss2d(x.float(), torch.tensor(1)),
        lambda x: torch.fill(x, x),
        lambda x: torch.fill(x, True),
        lambda x: torch.full((), 0.1, dtype=torch.bfloat16).item() + x.float(),
    ],
)
def test_refusals(program):
    eager, ours = both(program, torch.tensor([0.5, 2.0, -1.0], dtype=torch.float16))
    if isinstance(eager, torch.Tensor):
        assert torch.equal(ours, eager) and ours.dtype == eager.dtype
    else:
        assert ours is eager


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [0, 1])
def test_many_rows_are_added_up_in_32_bits(dtype, dim):
    ones = torch.ones((600, 3) if dim == 0 else (3, 600), dtype=dtype)
    index = torch.zeros(600, dtype=torch.long)

    def add(x, index):
        sizes = [4, 3] if dim == 0 else [3, 4]
        return torch.zeros(sizes, dtype=x.dtype).index_add(dim, index, x)

    assert ingot.compile(add)(ones, index)[0, 0] == 600
    x = torch.ones((4, 3) if dim == 0 else (3, 4), dtype=dtype, requires_grad=True)
    ingot.compile(lambda x, i: x.index_select(dim, i))(x, index).sum().backward()
    assert x.grad[0, 0] == 600


def test_complex_one_is_no_identity():
    x = torch.tensor([complex(float("inf"), 1), 1 + 2j])
    eager, ours = both(lambda x: (torch.view_as_real(x * 1), torch.view_as_real(x / 1)), x)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", [(16, 8, 7, 48, 3, 2), (4, 16, 9, 32, 1, 1)])
def test_a_convolution_with_a_bias_is_rounded_once(dtype, sizes):
    images, channels, side, kernels, taps, step = sizes
    x = torch.randn(images, channels, side, side)
    w = torch.randn(kernels, channels, taps, taps) / (channels * taps * taps) ** 0.5
    leaves = [t.to(dtype) for t in (x, w, torch.randn(kernels))]

    def program(x, w, b):
        return F.conv2d(x, w, b, step).relu()

    def run(f, given):
        given = [t.detach().clone().requires_grad_() for t in given]
        y = f(*given)
        y.backward(torch.ones_like(y))
        return [y.detach(), *(t.grad for t in given)]

    exact = run(program, [t.double() for t in leaves])
    eager, ours = run(program, leaves), run(ingot.compile(program), leaves)
    for a, b, x in zip(ours, eager, exact, strict=True):
        theirs = (b.double() - x).pow(2).mean().sqrt()
        assert (a.double() - x).pow(2).mean().sqrt() <= 1.1 * theirs + 1e-6
    with torch.no_grad():
        y = ingot.compile(program)(*leaves)
    theirs = (eager[0].double() - exact[0]).pow(2).mean().sqrt()
    assert (y.double() - exact[0]).pow(2).mean().sqrt() <= 1.1 * theirs


def test_a_float16_product_with_a_bias_is_rounded_once():
    x, w, b = torch.randn(32, 64), torch.randn(48, 64) / 8, torch.randn(48)
    half = [t.half() for t in (x, w, b)]
    exact = F.linear(*(t.double() for t in half))
    ours, eager = ingot.compile(lambda *a: F.linear(*a))(*half), F.linear(*half)
    theirs = (eager.double() - exact).pow(2).mean()
    assert (ours.double() - exact).pow(2).mean() <= 1.2 * theirs
