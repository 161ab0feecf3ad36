"""Programs for a GPU, recorded and compiled to PTX where there is none.

Every kernel of a small transformer and a small convolutional network is assembled by ptxas where it
is installed; the plan must leave products and attention to the vendor and everything between to few
kernels.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import stateless

from ingot import _ingot, _options

CUDA = torch.device("cuda:0")
OLDER = ("sm_80", "sm_89")


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape

        def split(t: torch.Tensor) -> torch.Tensor:
            return t.view(b, n, self.heads, c // self.heads).transpose(1, 2)

        y = functional.scaled_dot_product_attention(
            split(self.q(x)), split(self.k(x)), split(self.v(x))
        )
        x = self.first(x + self.out(y.transpose(1, 2).reshape(b, n, c)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


def plan_of(
    module: nn.Module, inputs: list[torch.Tensor], folder: pathlib.Path, products: bool = True
) -> tuple[str, list[pathlib.Path]]:
    """The plan's text and the files of its kernels' PTX; others lie beside them for older GPUs."""
    options = _options.resolve(
        None, {"debug": str(folder), "cache": False, "gpu_products": products}
    )
    recorder = _ingot.Recorder(options)
    named = [*module.named_parameters(), *module.named_buffers()]
    with torch.no_grad():
        state = {n: recorder.input(p.detach(), True, n, device=CUDA) for n, p in named}
        arguments = [recorder.input(x, device=CUDA) for x in inputs]
        with recorder, stateless._reparametrize_module(module, state):
            output = module(*arguments)
        outputs = list(output) if isinstance(output, tuple) else [output]
        assert all(x.device == CUDA for x in outputs)
        if torch.cuda.is_available():
            recorder.compile(outputs)
        else:
            with pytest.raises(_ingot.Unsupported, match="NVIDIA driver"):
                recorder.compile(outputs)
    (graph,) = folder.iterdir()
    (plan,) = graph.glob("*_plan.txt")
    files = sorted(graph.glob("kernels/*.ptx"))
    return plan.read_text(), [f for f in files if not f.stem.endswith(OLDER)]


def assemble(files: list[pathlib.Path]) -> None:
    """Kernels as ptxas takes them, and for GPUs before those all that are no products."""
    assert files
    older = [file.with_suffix(f".{gpu}.ptx") for file in files for gpu in OLDER]
    products = [file for file in files if "wgmma" in file.read_text()]
    older = [file for file in older if not any(file.name.startswith(p.stem) for p in products)]
    for file in files + older:
        assert ".entry ingot_" in file.read_text(), file.read_text()
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not installed")
    for file in files + older:
        arch = next((gpu for gpu in OLDER if file.name.endswith(f".{gpu}.ptx")), "sm_90a")
        subprocess.run(["ptxas", f"-arch={arch}", "-o", "/dev/null", str(file)], check=True)


def test_a_transformer_layer(tmp_path: pathlib.Path) -> None:
    plan, kernels = plan_of(
        Block().bfloat16().eval(), [torch.randn(2, 128, 64).bfloat16()], tmp_path
    )
    steps = plan[plan.index("\nsteps") :]
    assert steps.count("matmul_bias(") == 3  # queries, keys and values in one; up is generated
    assert steps.count("attention(") == 1
    assert steps.count("kernel ") <= 5  # sums, norms and the activation
    assemble(kernels)


def test_a_product_is_generated_with_its_activation(tmp_path: pathlib.Path) -> None:
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(functional.gelu(self.up(x)))

    plan, kernels = plan_of(Up().bfloat16().eval(), [torch.randn(8, 128, 768).bfloat16()], tmp_path)
    steps = plan[plan.index("\nsteps") :]
    assert steps.count("matmul_bias(") == 1 and steps.count("kernel 0 matmul") == 1
    (product,) = [k for k in kernels if "wgmma.mma_async" in k.read_text()]
    assert ".target sm_90a" in product.read_text()
    assemble(kernels)


def test_older_gpus_have_no_products(tmp_path: pathlib.Path) -> None:
    module = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 30523))
    x = torch.randn(8, 128, 768).bfloat16()
    plan, kernels = plan_of(module.bfloat16().eval(), [x], tmp_path, products=False)
    steps = plan[plan.index("\nsteps") :]
    assert "kernel 0 matmul" not in steps
    assert not any("wgmma" in k.read_text() for k in kernels)
    assemble(kernels)


def test_a_kept_bias_is_not_spread_over_the_rows(tmp_path: pathlib.Path) -> None:
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3072, 768).bfloat16())
            self.bias = nn.Parameter(torch.randn(3072))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(functional.linear(x, self.weight, self.bias.bfloat16()))

    plan, _ = plan_of(Up().eval(), [torch.randn(1024, 768).bfloat16()], tmp_path)
    (kept,) = [line for line in plan.splitlines() if line.endswith(" frozen") and "#" in line]
    assert "(3072)" in kept


def test_a_convolutional_network(tmp_path: pathlib.Path) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 64, 65),
    )  # fmt: skip
    plan, kernels = plan_of(net.eval(), [torch.randn(4, 3, 16, 16)], tmp_path)
    assert plan.count("conv(") == 1
    assemble(kernels)


def test_a_convolution_with_what_follows_it(tmp_path: pathlib.Path) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
            self.norm = nn.BatchNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.norm(self.second(self.first(x).relu())) + x).relu()

    x = torch.randn(4, 16, 8, 8).bfloat16()
    plan, _ = plan_of(Residual().bfloat16().eval(), [x], tmp_path)
    steps = plan[plan.index("\nsteps") :]
    assert steps.count("conv_relu(") == 2 and "conv(" not in steps.replace("conv_relu", "")


@pytest.mark.parametrize("stride", [1, 2])
def test_a_depthwise_convolution_and_its_gradients(tmp_path: pathlib.Path, stride: int) -> None:
    class Convolved(nn.Module):
        def forward(
            self, x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            step = [stride, stride]
            y = nn.functional.conv2d(x, w, None, step, 1, 1, 64)
            both = torch.ops.aten.convolution_backward(
                grad, x, w, [0], step, [1, 1], [1, 1], False, [0, 0], 64, [True, True, False]
            )  # fmt: skip
            return y, *both[:2]

    def images(size: int) -> torch.Tensor:
        x = torch.randn(64, 64, size, size, dtype=torch.bfloat16)
        return x.to(memory_format=torch.channels_last)

    weight = torch.randn(64, 1, 3, 3, dtype=torch.bfloat16)
    plan, kernels = plan_of(Convolved(), [images(28), weight, images(28 // stride)], tmp_path)
    assert "conv" not in plan.replace("convert", ""), plan
    assemble(kernels)


def test_rows_of_all_lengths(tmp_path: pathlib.Path) -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * 2, -1)

    files = []
    for k, length in enumerate((3, 64, 100, 197, 1000, 4096, 5000, 50257)):
        folder = tmp_path / str(k)
        folder.mkdir()
        files += plan_of(Rows(), [torch.randn(5, length)], folder)[1]
    assemble(files)


def test_statistics_of_rows_that_two_dims_count(tmp_path: pathlib.Path) -> None:
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            mean = x.mean(-1)
            away = x - mean[..., None]
            scale = (away * away).mean(-1)
            return mean, scale, away * torch.rsqrt(scale[..., None] + 1e-5)

    plan, kernels = plan_of(Norm(), [torch.randn(6, 197, 768)], tmp_path)
    assert plan[plan.index("\nsteps") :].count("kernel ") == 1
    assemble(kernels)


class NormGradients(nn.Module):
    """A layer norm's statistics and gradients; `w` is its weight and its bias."""

    def forward(self, x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple:
        sizes = list(w.shape)
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, sizes, w, w, 1e-5)
        return torch.ops.aten.native_layer_norm_backward(
            g, x, sizes, mean, rstd, w, w, [True, True, True]
        )


def test_a_norms_gradients_are_one_kernel_of_rows(tmp_path: pathlib.Path) -> None:
    files = []
    for k, shape in enumerate([(8192, 768), (64, 197, 768)]):
        folder = tmp_path / str(k)
        folder.mkdir()
        x = torch.randn(shape).bfloat16()
        plan, kernels = plan_of(NormGradients(), [x, x, torch.randn(768).bfloat16()], folder)
        (first,) = folder.glob("*/kernels/0_*.nest")
        assert first.read_text().count(" sum\n") == 2  # the weight's and the bias's
        assert plan[plan.index("\nsteps") :].count("kernel ") <= 4
        files += kernels
    assemble(files)


def test_statistics_of_a_norm_have_eagers_type() -> None:
    recorder = _ingot.Recorder(_options.resolve(None, {"cache": False}))
    x = recorder.input(torch.randn(8, 64).bfloat16(), device=CUDA)
    w = recorder.input(torch.randn(64).bfloat16(), device=CUDA)
    with torch.no_grad(), recorder:
        y, mean, rstd = torch.ops.aten.native_layer_norm(x, [64], w, w, 1e-5)
    assert y.dtype == torch.bfloat16
    assert mean.dtype == rstd.dtype == torch.float32


def test_a_norms_gradient_with_its_statistics_is_one_pass(tmp_path: pathlib.Path) -> None:
    x = torch.empty(16384, 4096, dtype=torch.bfloat16)
    plan, kernels = plan_of(NormGradients(), [x, x, x[0].clone()], tmp_path)
    (first,) = tmp_path.glob("*/kernels/0_*.nest")
    assert first.read_text().count("phase {") == 2
    # The rows, and the partial sums of both columns in one launch.
    assert plan[plan.index("\nsteps") :].count("kernel ") == 2
    (rows,) = [k for k in kernels if ".maxntid 256" in k.read_text()]
    assert rows.read_text().count("bar.sync") == 2  # of a row, and behind the last one
    assemble(kernels)


def test_a_loss_over_many_classes_is_two_kernels(tmp_path: pathlib.Path) -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(x.float(), target)

    x = torch.empty(8192, 32000, dtype=torch.bfloat16)
    plan, kernels = plan_of(Loss(), [x, torch.zeros(8192, dtype=torch.int64)], tmp_path)
    assert plan[plan.index("\nsteps") :].count("kernel ") == 2
    assemble(kernels)


def test_small_sums_of_one_shape_share_a_kernel(tmp_path: pathlib.Path) -> None:
    class Sums(nn.Module):
        def forward(self, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(x.sum(1) for x in xs)

    plan, kernels = plan_of(Sums(), [torch.randn(64, 32) for _ in range(5)], tmp_path)
    assert plan[plan.index("\nsteps") :].count("kernel ") == 1
    assemble(kernels)


@pytest.mark.parametrize("size", [(64, 128, 64), (7, 5, 3)])
def test_dropout_is_part_of_kernels(tmp_path: pathlib.Path, size: tuple[int, ...]) -> None:
    class Dropped(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = functional.dropout(x * 2, 0.1)
            z = functional.layer_norm(x + functional.dropout(y + 1, 0.2), w.shape, w, w)
            noise = torch.rand_like(x) * 0.5 + torch.zeros_like(x).bernoulli_(0.25)
            return z, y, noise

    x = torch.randn(size).bfloat16()
    plan, kernels = plan_of(Dropped(), [x, torch.randn(size[-1]).bfloat16()], tmp_path)
    steps = plan[plan.index("\nsteps") :]
    assert steps.count("rand_state(") == 1  # one state for all four
    assert "dropout" not in steps and "bernoulli" not in steps
    assert steps.count("kernel ") <= 3
    assemble(kernels)


def test_tensors_on_two_devices_are_refused() -> None:
    recorder = _ingot.Recorder(_options.resolve())
    recorder.input(torch.ones(3), device=CUDA)
    with pytest.raises(_ingot.Unsupported, match="several devices"):
        recorder.input(torch.ones(3))
