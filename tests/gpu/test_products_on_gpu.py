"""Products generated for GPUs of compute capability 9.0: what they compute, when they are used."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0",
)

ACTIVATIONS = {
    "gelu": nn.GELU(),
    "tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(),
}


class Up(nn.Module):
    """A linear layer and what follows it in a transformer."""

    def __init__(self, k: int, n: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(k, n, bias), ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x))


def names_of_kernels(call) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [e.key for e in profile.key_averages()]


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "n", "activation", "bias"),
    [
        ((8, 128, 768), 3072, "gelu", True),
        ((1024, 768), 3072, "tanh", True),
        ((1000, 520), 1032, "gelu", True),  # edges in all directions
        ((2, 1000, 768), 3072, "silu", False),
        ((128, 768), 3072, "gelu", True),
        ((4096, 768), 3072, "gelu", True),
    ],
)
def test_against_double_precision(dtype, shape, n, activation, bias) -> None:
    torch.manual_seed(0)
    layer = Up(shape[-1], n, activation, bias).cuda().to(dtype).eval()
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    with torch.no_grad():
        exact = layer.double()(x.double())
        layer.to(dtype)
        eager = layer(x)
        compiled = ingot.compile(layer)
        for _ in range(3):
            result = compiled(x)
        assert result.dtype == eager.dtype and result.stride() == eager.stride()
        assert error(result, exact) <= 2 * error(eager, exact)
        names = names_of_kernels(lambda: compiled(x))
    assert any("ingot_matmul" in name for name in names), names


def test_under_autocast_and_after_a_change_of_the_weight() -> None:
    layer = Up(768, 3072, "gelu").cuda().eval()
    x = torch.randn(8, 128, 768, device="cuda")
    compiled = ingot.compile(layer)
    for _ in range(3):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            result = compiled(x)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            eager = layer(x)
        exact = functional.gelu(
            functional.linear(x.double(), layer.linear.weight.double(), layer.linear.bias.double())
        )
        assert error(result, exact) <= 2 * error(eager, exact)
        with torch.no_grad():
            layer.linear.weight.mul_(1.5)


def test_gradients() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Up(768, 3072, "gelu"), nn.Linear(3072, 768)).cuda()
    x = torch.randn(4096, 768, device="cuda", requires_grad=True)

    def gradients(call, kind: torch.dtype | None) -> list[torch.Tensor]:
        with torch.autocast("cuda", kind or torch.bfloat16, enabled=kind is not None):
            loss = call(x).float().square().mean()
        return list(torch.autograd.grad(loss, [x, *net.parameters()]))

    exact = gradients(net, None)
    eager = gradients(net, torch.bfloat16)
    for result in (gradients(ingot.compile(net), torch.bfloat16) for _ in range(2)):
        for a, b, c in zip(result, eager, exact, strict=True):
            assert error(a, c.double()) <= 2 * error(b, c.double())


def test_the_option_leaves_products_to_the_library() -> None:
    layer = Up(768, 3072, "gelu").cuda().bfloat16().eval()
    x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
    compiled = ingot.compile(layer, options={"gpu_products": False})
    with torch.no_grad():
        compiled(x)
        names = names_of_kernels(lambda: compiled(x))
    assert not any("ingot_matmul" in name for name in names), names


def test_cuda_graphs() -> None:
    layer = Up(768, 3072, "gelu").cuda().bfloat16().eval()
    compiled = ingot.compile(layer, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
            torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "n"),
    [((8, 512, 768), 50257), ((5100, 768), 50257), ((4096, 768), 30523), ((1000, 264), 6001)],
)
def test_rows_at_odd_places(dtype, shape, n) -> None:
    """A vocabulary's logits are written where the caller finds them, and nothing beside them."""
    torch.manual_seed(0)
    layer = nn.Linear(shape[-1], n, bias=False).cuda().to(dtype).eval()
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    with torch.no_grad():
        compiled = ingot.compile(layer)
        for _ in range(3):
            result = compiled(x)
        eager = layer(x)
        assert result.shape == eager.shape and result.stride() == eager.stride()
        rows = torch.randperm(x[..., 0].numel(), device="cuda")[:300]
        exact = functional.linear(x.flatten(0, -2)[rows].double(), layer.weight.double())
        assert error(result.flatten(0, -2)[rows], exact) <= 2 * error(
            eager.flatten(0, -2)[rows], exact
        )
        # Every element of every row, the first and the last among them.
        torch.testing.assert_close(result, eager, rtol=2e-2, atol=2e-2)
        names = names_of_kernels(lambda: compiled(x))
    assert any("ingot_matmul" in name for name in names), names
    assert sum("ingot" in name for name in names) == 1, names  # no copy that cuts


def test_weights_by_input_are_laid_by_output() -> None:
    """GPT-2's layers: the copy that autocast makes of a frozen weight lies as products want it."""

    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(768, 3072) * 0.02)
            self.bias = nn.Parameter(torch.randn(3072))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.addmm(self.bias, x.view(-1, 768), self.weight).view(8, 512, 3072)
            return functional.gelu(y, approximate="tanh")

    torch.manual_seed(0)
    layer = Up().cuda().eval()
    x = torch.randn(8, 512, 768, device="cuda")
    compiled = ingot.compile(layer)
    for _ in range(3):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            result, eager = compiled(x), layer(x)
        with torch.no_grad():
            y = x.view(-1, 768).double() @ layer.weight.double() + layer.bias.double()
            exact = functional.gelu(y, approximate="tanh").view(8, 512, 3072)
            assert error(result, exact) <= 2 * error(eager, exact)
            layer.weight.mul_(1.5)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        names = names_of_kernels(lambda: compiled(x))
    assert any("ingot_matmul" in name for name in names), names
