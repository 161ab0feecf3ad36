"""Programs carried out on a GPU: results, gradients, CUDA graphs and what goes wrong.

Skipped where PyTorch has no GPU; test_recorded.py and test_gpu_faults.py need none.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
STRICT = {"fallback": False}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


def distance(a: torch.Tensor, exact: torch.Tensor) -> float:
    return ((a.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()


def check(function: Callable, *inputs: torch.Tensor, **options: object) -> None:
    """Ingot's error against double precision is at most twice eager's."""
    eager = function(*inputs)
    exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    compiled = ingot.compile(function, options=STRICT | options)
    for _ in range(3):
        result = compiled(*inputs)
        assert result.dtype == eager.dtype
        assert result.shape == eager.shape
        assert distance(result, exact) <= 2 * distance(eager, exact) + 1e-6


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("odd", [0, 1])
def test_numbers_of_eight_bits(dtype: torch.dtype, odd: int) -> None:
    """Every byte widened, and floats of all sizes narrowed, with what lies beside each limit."""

    def widen(x: torch.Tensor) -> torch.Tensor:
        return x.float() * 1.0

    def narrow(x: torch.Tensor) -> torch.Tensor:
        return (x + 0.0).to(dtype)

    every = torch.arange(256 - odd, device="cuda").byte().view(dtype)
    widened = ingot.compile(widen, options=STRICT)(every)
    torch.testing.assert_close(widened, widen(every), rtol=0, atol=0, equal_nan=True)

    limits = torch.tensor([448, 464, 480, 57344, 61440, 65536, 2**-6, 2**-9, 2**-14, 2**-16])
    near = torch.cat([limits, limits.nextafter(limits * 2), limits.nextafter(limits * 0)])
    special = torch.tensor([0.0, torch.inf, torch.nan])
    some = torch.randint(-(2**31), 2**31, (100_000 + odd,), dtype=torch.int32).view(torch.float32)
    all_of = torch.cat([near, -near, special, -special, some, 100 * torch.randn(100_000)]).cuda()
    narrowed = ingot.compile(narrow, options=STRICT)(all_of).float()
    torch.testing.assert_close(narrowed, narrow(all_of).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(256, 4096), (1024, 96), (64, 8, 8, 64), (128, 8192), (32, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_few_columns(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (8 * torch.randn(shape, device="cuda")).to(dtype)
    dims = tuple(range(x.dim() - 1))
    if dtype.is_floating_point:
        check(lambda x: x.sum(dims), x)
        check(lambda x: x.float().var(dims), x)
        check(lambda x: (x * 2).mean(dims) + 1, x)
    for function in (
        lambda x: x.amax(dims), lambda x: x.flatten(0, -2).argmin(0), lambda x: (x > 0).sum(dims),
        lambda x: (x > 9).flatten(0, -2).any(0),
    ):  # fmt: skip
        assert torch.equal(ingot.compile(function, options=STRICT)(x), function(x))


@pytest.mark.parametrize("shape", [(8192, 768), (4096, 4096), (64, 100_000), (33, 69632), (3, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_columns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device="cuda", dtype=dtype)
    check(lambda x: x.sum(0), x)
    check(lambda x: x.float().var(0), x)
    check(lambda x: x.amax(0), x)


@pytest.mark.parametrize("classes", [8200, 9216, 12345, 32000, 32768, 50264, 65536, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_many_classes(classes: int, dtype: torch.dtype) -> None:
    x = 4 * torch.randn(70, classes, device="cuda", dtype=dtype)
    labels = torch.randint(0, classes, (70,), device="cuda")
    check(lambda x, y: functional.cross_entropy(x, y), x, labels)
    check(lambda x: torch.softmax(x, -1), x)
    check(lambda x: torch.log_softmax(x, -1), x)
    check(lambda x: functional.layer_norm(x, x.shape[-1:]), x)
    check(lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1), x)
    assert torch.equal(ingot.compile(lambda x: x.argmax(-1), options=STRICT)(x), x.argmax(-1))


@pytest.mark.parametrize("classes", [100, 1000, 4096, 32000, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extreme_numbers_in_a_softmax(classes: int, dtype: torch.dtype) -> None:
    x = torch.randn(24, classes, device="cuda").to(dtype)
    least, infinity = torch.finfo(dtype).min, float("inf")
    x[1] = -infinity
    x[2, 1:] = -infinity
    x[3, ::2] = -infinity
    x[4] = least
    x[5, 1:] = least
    x[6, 5] = float("nan")
    x[7, -1] = infinity
    x[8] = 0
    x[9] *= 1000
    x[10, :8] += 300
    x[11] = -50.0 * torch.arange(classes, device="cuda").clamp_max(1000) / 8
    labels = torch.randint(0, classes, (24,), device="cuda")

    def losses(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x if x.dtype == torch.float64 else x.float()
        each = functional.cross_entropy(wide, labels, reduction="none")
        return each, torch.logsumexp(wide, -1), wide.amax(-1), torch.log_softmax(wide, -1)

    eager, exact = losses(x, labels), losses(x.double(), labels)
    got = ingot.compile(losses, options=STRICT)(x, labels)
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())
        plain = theirs.isfinite()
        mine, theirs, right = mine[plain].double(), theirs[plain].double(), right[plain]
        limit = 2 * (theirs - right).abs().max() + 1e-6 * right.abs().clamp_min(1)
        assert ((mine - right).abs() <= limit).all()


def test_maxima_keep_nan() -> None:
    x = torch.randn(64, 4096, device="cuda")
    x[3, 7], x[5], x[6, 0], x[7, -1] = float("nan"), float("-inf"), float("inf"), float("nan")
    for y in (x, x.bfloat16(), x.half(), x.repeat(1, 8).bfloat16()):
        for function in (
            lambda x: x.amax(-1), lambda x: x.amin(-1), lambda x: torch.maximum(x, x.flip(0)),
            lambda x: x.clamp(-0.5, 0.5),
        ):  # fmt: skip
            result = ingot.compile(function, options=STRICT)(y)
            torch.testing.assert_close(result, function(y), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [768, 4096, 8192])
def test_gradients_of_norms_far_from_zero(columns: int) -> None:
    x = torch.randn(8192, columns, device="cuda") + 30
    x[::3, 0] = 1000
    x[1] = 7.0
    x, g = x.bfloat16(), torch.randn(8192, columns, device="cuda").bfloat16()
    w = torch.randn(columns, device="cuda").bfloat16()

    def gradients(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, mean, rstd = torch.ops.aten.native_layer_norm(x, [columns], w, w, 1e-5)
        found = torch.ops.aten.native_layer_norm_backward(
            g, x, [columns], mean, rstd, w, w, [True, True, True]
        )
        return (*found, mean, rstd, y)

    eager, exact = gradients(x, g, w), gradients(*(t.double() for t in (x, g, w)))
    got = ingot.compile(gradients, options=STRICT)(x, g, w)
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert distance(mine, right) <= 2 * distance(theirs, right) + 2e-5


@pytest.mark.parametrize(
    "shape", [(8192, 768), (64, 197, 768), (4096, 4096), (8192, 1001), (4096, 130), (64, 64, 8000)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, g = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    w, b = (torch.randn(shape[-1], device="cuda", dtype=dtype) for _ in range(2))

    def gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, g, w, b = inputs
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, shape[-1:], w, b, 1e-5)
        found = torch.ops.aten.native_layer_norm_backward(
            g, x, shape[-1:], mean, rstd, w, b, [True, True, True]
        )
        return (*found, (found[0] + x).sum(tuple(range(x.dim() - 1))))

    eager, exact = gradients(x, g, w, b), gradients(*(t.double() for t in (x, g, w, b)))
    got = ingot.compile(gradients, options=STRICT)(x, g, w, b)
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert distance(mine, right) <= 2 * distance(theirs, right) + 1e-6


@pytest.mark.parametrize("shape", [(64, 197, 3072), (8192, 768), (64, 64, 130), (4096, 4099)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_bias_before_an_activation(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, g = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    w = torch.randn(shape[-1], 8, device="cuda", dtype=dtype)

    def gradients(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.ops.aten.gelu_backward(g, x)
        flat = made.view(-1, shape[-1])
        return flat @ w, flat.sum(0), made.float().sum(tuple(range(x.dim() - 1)))

    eager, exact = gradients(x, g, w), gradients(x.double(), g.double(), w.double())
    got = ingot.compile(gradients, options=STRICT)(x, g, w)
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert distance(mine, right) <= 2 * distance(theirs, right) + 1e-6


def test_sums_of_channels() -> None:
    x = torch.randn(64, 64, 28, 28, device="cuda")
    for y in (x, x.to(memory_format=torch.channels_last)):
        check(lambda x: x.sum((0, 2, 3)), y)
        check(lambda x: x.var((0, 2, 3)), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
@pytest.mark.parametrize("shape", [(600, 8193, 8200), (1100, 4099, 4104), (64, 100_003, 100_010)])
def test_copies_of_rows_at_odd_places(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, columns, wide = shape
    x = torch.randint(0, 100, (rows, wide), device="cuda").to(dtype)
    y = x[:, :columns].contiguous()

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = functional.pad(y, (0, wide - columns))
        again = functional.pad(z.reshape(rows, columns), (0, 5))
        return x[:, :columns].contiguous(), filled, x[1:, 3:-2].contiguous(), again

    inputs = (x, y, y.view(2, rows // 2, columns))
    compiled = ingot.compile(function, options=STRICT)
    for result, want in zip(compiled(*inputs), function(*inputs), strict=True):
        assert torch.equal(result, want)


def test_copies_that_turn_a_matrix() -> None:
    for shape in ((1024, 2112), (777, 3001), (50257, 64)):
        check(lambda x: x.t().contiguous() + 1, torch.randn(shape, device="cuda"))
        check(lambda x: x[:, :-1].exp(), torch.randn(shape, device="cuda").bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quick_functions_of_sixteen_bits(dtype: torch.dtype) -> None:
    functions = [
        torch.tanh, torch.sigmoid, torch.exp, torch.erf, functional.gelu, functional.silu,
        lambda x: functional.gelu(x, approximate="tanh"),
    ]  # fmt: skip
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-4, -1e-4, 3e-7]
    tail = torch.tensor(special, dtype=dtype, device="cuda")
    x = torch.cat([torch.linspace(-12, 9, 1 << 16, device="cuda").to(dtype), tail])
    rounding = torch.finfo(dtype).eps / 2
    for function in functions:
        got = ingot.compile(lambda x, f=function: f(x), options=STRICT)(x)
        exact, eager = function(x.double()), function(x)
        assert torch.equal(got.isnan(), eager.isnan())
        finite = eager.isfinite()
        assert torch.equal(got[~finite].nan_to_num(7.0), eager[~finite].nan_to_num(7.0))
        error = (got.double() - exact).abs()[finite]
        # Half a unit for rounding, and 2e-6 where a difference has lost digits, as eager's does.
        bound = exact.abs()[finite] * rounding * 1.05 + 2e-6 * (1 + x.double().abs()[finite])
        assert (error <= bound).all(), (function, (error / bound).max().item())


def gradients(model: nn.Module, function: Callable, loss: Callable) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss(function).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def check_training(model: nn.Module, inputs: list[torch.Tensor], labels: torch.Tensor) -> None:
    model.cuda().train()
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def loss_of(function: Callable) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = function(*inputs)
        return functional.cross_entropy(logits.to(torch.float32), labels)

    eager = gradients(model, model, loss_of)
    model.load_state_dict(state)
    compiled = ingot.compile(model, options=STRICT)
    for _ in range(3):
        model.load_state_dict(state)
        made = gradients(model, compiled, loss_of)
    buffers = [b.clone() for b in model.buffers()]
    model.load_state_dict(state)
    gradients(model, model, loss_of)
    for a, b in zip(buffers, model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    model.double()
    double = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = gradients(model, model, lambda f: functional.cross_entropy(f(*double), labels))
    assert len(made) == len(eager) == len(exact)
    total = sum(g.norm() ** 2 for g in exact) ** 0.5
    for m, e, x in zip(made, eager, exact, strict=True):
        eager_error = (e.double() - x).norm() / total
        assert (m.double() - x).norm() / total <= 2 * eager_error + 1e-4


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        parts = self.mixed(self.norm(x)).view(b, n, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.down(functional.gelu(self.up(x)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.layers = nn.Sequential(Attention(128, 4), Attention(128, 4))
        self.head = nn.Linear(128, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(ids)).mean(1))


def test_training_a_transformer(compiled_whole: None) -> None:
    ids = torch.randint(0, 1000, (8, 64), device="cuda")
    check_training(Classifier(), [ids], torch.randint(0, 10, (8,), device="cuda"))


class Masked(nn.Module):
    """Attention with a mask (rows, columns) -> bool, made the way transformers makes it."""

    def __init__(self, keep: Callable) -> None:
        super().__init__()
        self.keep = keep
        self.words = nn.Embedding(1000, 256)
        self.mixed, self.head = nn.Linear(256, 3 * 256), nn.Linear(256, 1003, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        b, n = ids.shape
        at = torch.arange(n, device=ids.device)
        mask = self.keep(at[None, None, :, None], at[None, None, None, :]).expand(b, -1, n, n)
        parts = self.mixed(self.words(ids)).view(b, n, 3, 4, 64)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(y.transpose(1, 2).reshape(b * n, 256))


@pytest.mark.parametrize(
    "keep",
    [lambda i, j: i >= 0, lambda i, j: i > -1, lambda i, j: j <= i],
    ids=["nothing", "unknown", "causal"],
)
def test_training_with_masks_and_an_odd_vocabulary(compiled_whole: None, keep: Callable) -> None:
    ids = torch.randint(0, 1000, (4, 128), device="cuda")
    check_training(Masked(keep), [ids], torch.randint(0, 1003, (512,), device="cuda"))


def test_training_a_convolutional_network(compiled_whole: None) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 64, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    images = torch.randn(16, 3, 64, 64, device="cuda")
    check_training(net, [images], torch.randint(0, 10, (16,), device="cuda"))


@pytest.mark.parametrize(
    "first",
    [
        nn.Conv2d(3, 32, 8, stride=8),
        nn.Conv2d(3, 32, 7, stride=2, padding=3),
        nn.Conv2d(3, 32, (4, 5), stride=(3, 2), padding=(2, 0), bias=False),
        nn.Conv2d(4, 32, 2, stride=2),
    ],
    ids=["patches", "blocks", "uneven", "windows"],
)
def test_training_convolutions_of_few_channels(compiled_whole: None, first: nn.Module) -> None:
    net = nn.Sequential(
        first, nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(32, 32, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images = torch.randn(16, first.in_channels, 64, 66, device="cuda")
    check_training(net, [images], torch.randint(0, 10, (16,), device="cuda"))


@pytest.mark.parametrize("channels", [64, 24, 12])
@pytest.mark.parametrize(
    "windows",
    [
        lambda n: nn.MaxPool2d(3, 2, 1),
        lambda n: nn.MaxPool2d((3, 2), (2, 1), (1, 0)),
        lambda n: nn.MaxPool2d(2, 3, ceil_mode=True),
        lambda n: nn.Conv2d(n, n, 3, 2, 1, groups=n, bias=False),
        lambda n: nn.Conv2d(n, n, (4, 2), 2, groups=n, bias=False),
        lambda n: nn.Conv2d(n, n, 3, (2, 1), 1, groups=n, bias=False),
        lambda n: nn.Conv2d(n, n, 5, 1, 2, groups=n, bias=False),
    ],
    ids=["pool", "uneven pool", "pool apart", "steps", "uneven", "one step", "no steps"],
)
def test_training_with_windows(compiled_whole: None, windows: Callable, channels: int) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
        windows(channels), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 32, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images = torch.randn(32, 3, 34, 37, device="cuda")
    check_training(net, [images], torch.randint(0, 10, (32,), device="cuda"))


class FirstToken(nn.Module):
    """A token in front of an image's, whose result alone is read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.layer, self.norm = Attention(width, 4), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.norm(self.layer(x))[:, 0])


@pytest.mark.parametrize("width", [256, 132])
def test_training_with_a_first_token(compiled_whole: None, width: int) -> None:
    images = torch.randn(32, 3, 64, 64, device="cuda")
    check_training(FirstToken(width), [images], torch.randint(0, 10, (32,), device="cuda"))


@pytest.mark.parametrize("padding", [None, 0, 7])
def test_gradients_of_embeddings(padding: int | None) -> None:
    words = nn.Embedding(300, 96, padding_idx=padding).cuda()
    ids = torch.randint(0, 300, (64, 50), device="cuda")
    ids[:, 25:] = 7
    scale = torch.randn(64, 50, 96, device="cuda")
    compiled = ingot.compile(lambda ids, scale: words(ids) * scale, options=STRICT)

    def gradient(function: Callable) -> torch.Tensor:
        words.weight.grad = None
        function(ids, scale).sum().backward()
        return words.weight.grad

    right = gradient(lambda ids, scale: words(ids) * scale)
    torch.testing.assert_close(gradient(compiled), right, rtol=1e-4, atol=1e-4)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gradient(compiled), gradient(compiled))
    finally:
        torch.use_deterministic_algorithms(False)


def test_dropout_draws_as_eager_does_and_its_gradient_has_the_same_mask() -> None:
    layer = nn.Dropout(0.4)
    x = torch.randn(512, 1024, device="cuda", requires_grad=True)
    compiled = ingot.compile(lambda x: layer(x) * 2, options=STRICT)
    for _ in range(2):
        y = compiled(x)
        (g,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(g != 0, y != 0)
        assert 0.35 < (y == 0).float().mean().item() < 0.45


def test_results_of_cuda_graphs_are_never_overwritten() -> None:
    weight = torch.randn(256, 256, device="cuda")
    compiled = ingot.compile(
        lambda x: torch.relu(x @ weight) + 1, options=STRICT | {"cudagraphs": True}
    )
    inputs = [torch.randn(64, 256, device="cuda") for _ in range(8)]
    with torch.no_grad():
        results = [compiled(x) for x in inputs]
        for x, y in zip(inputs, results, strict=True):
            torch.testing.assert_close(y, torch.relu(x @ weight) + 1, rtol=1e-4, atol=1e-4)


def graph_launches(call: Callable) -> int:
    """How many CUDA graphs a call replays."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        call()
        torch.cuda.synchronize()
    return sum(e.count for e in record.key_averages() if e.key == "cudaGraphLaunch")


def test_weights_that_change_right_before_a_graph_is_recorded() -> None:
    # What is computed of them alone is then made while the graph is prepared, from its inputs.
    model = nn.Linear(64, 64).cuda()
    x = torch.randn(32, 64, device="cuda")
    compiled = ingot.compile(model, options=STRICT | {"cudagraphs": True})
    for _ in range(4):
        # In one context eager would go on with the weights it has cast first.
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.5)


def test_memory_of_a_graph_outlives_its_function() -> None:
    compiled = ingot.compile(lambda x: x * 2 + 1, options=STRICT | {"cudagraphs": True})
    x = torch.randn(1 << 20, device="cuda")
    with torch.no_grad():
        kept = [compiled(x) for _ in range(4)]
    del compiled
    gc.collect()
    other = [torch.full_like(x, 7.0) for _ in range(8)]
    for y in kept:
        torch.testing.assert_close(y, x * 2 + 1)
    del other


class Small(nn.Module):
    """Convolution, batch norm with running sums, dropout."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(drop),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def pair(drop: float = 0.0) -> tuple[nn.Module, Callable, nn.Module, Callable]:
    """The same module twice, compiled without and with CUDA graphs."""
    plain, graphed = Small(drop).cuda(), Small(drop).cuda()
    graphed.load_state_dict(plain.state_dict())
    return (
        plain, ingot.compile(plain, options=STRICT),
        graphed, ingot.compile(graphed, options=STRICT | {"cudagraphs": True}),
    )  # fmt: skip


def same_state(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_training_steps_through_cuda_graphs(set_to_none: bool, drop: float) -> None:
    plain, f, graphed, g = pair(drop)
    steps = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (plain, graphed)]
    outputs: list[list[torch.Tensor]] = [[], []]

    def step(k: int, x: torch.Tensor) -> None:
        steps[k].zero_grad(set_to_none=set_to_none)
        y = (f, g)[k](x)
        outputs[k].append(y)
        y.square().mean().backward()
        steps[k].step()

    for i in range(8):
        x = torch.randn(4, 3, 8, 8, device="cuda")
        for k in (0, 1):
            torch.manual_seed(i)  # the same dropout
            step(k, x)
        same_state(plain, graphed)
    # Results that were kept are still what they were.
    for y, z in zip(*outputs, strict=True):
        torch.testing.assert_close(z, y, rtol=1e-3, atol=1e-5)
    assert graph_launches(lambda: step(1, x)) == 2


def test_forwards_before_backwards_and_gradients_that_add_up() -> None:
    plain, f, graphed, g = pair()
    for i in range(8):
        inputs = [torch.randn(4, 3, 8, 8, device="cuda") for _ in range(3)]
        for m, h in ((plain, f), (graphed, g)):
            if i % 2 == 0:
                m.zero_grad()
            made = [h(x) for x in inputs]
            for k, y in enumerate(reversed(made)):
                loss = (y.square() * (k + 1)).mean()
                loss.backward(retain_graph=k < 2)
                if k == 0:
                    loss.backward(retain_graph=True)
            del made, y, loss
        same_state(plain, graphed)


def test_gradients_of_inputs_that_move() -> None:
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    g = ingot.compile(lambda x: (x @ weight).relu(), options=STRICT | {"cudagraphs": True})
    kept = []
    for _ in range(12):
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        kept.append(x)
        got = torch.autograd.grad(g(x).sum(), [x, weight])
        want = torch.autograd.grad((x @ weight).relu().sum(), [x, weight])
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert graph_launches(lambda: torch.autograd.grad(g(x).sum(), [x, weight])) == 2


def test_other_streams() -> None:
    compiled = ingot.compile(lambda x: (x * 2).softmax(-1), options=STRICT)
    x = torch.randn(512, 4096, device="cuda")
    want = (x * 2).softmax(-1)
    compiled(x)
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = compiled(x)
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(y, want)


def test_an_index_out_of_range_is_reported_and_the_process_goes_on() -> None:
    table = torch.randn(16, 8, device="cuda")
    compiled = ingot.compile(lambda i: table[i] * 2, options=STRICT)
    good = torch.tensor([1, 2, 3], device="cuda")
    compiled(good)
    compiled(torch.tensor([1, 2, 99], device="cuda"))
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="index was out of range"):
        compiled(good)
    torch.testing.assert_close(compiled(good), table[good] * 2)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_memory_that_runs_out(mode: str | None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(0).t().contiguous() * 3).softmax(0)

    compiled = ingot.compile(function, mode=mode)
    small = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(small), function(small))
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + (3 << 30)) / total
        )
        try:
            large = torch.randn(1 << 14, 1 << 14, device="cuda")  # 1 GiB
            for _ in range(3):
                try:
                    result = compiled(large)
                except torch.cuda.OutOfMemoryError:
                    continue
                assert result.shape == large.shape
                del result
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

        for _ in range(4):
            torch.testing.assert_close(compiled(small), function(small))
            torch.testing.assert_close(compiled(large), function(large))


@pytest.mark.parametrize("middle", [0.0, 40.0])
def test_batch_norm_of_16_bits_reads_its_images_once(middle: float) -> None:
    torch.manual_seed(0)
    x = (torch.randn(32, 24, 28, 28, device="cuda") + middle).bfloat16()
    x = x.to(memory_format=torch.channels_last)
    net = torch.nn.BatchNorm2d(24).cuda()
    exact = x.double()
    variance, mean = torch.var_mean(exact, (0, 2, 3), unbiased=True)
    ingot.compile(net, options={"fallback": False})(x)
    torch.testing.assert_close(net.running_mean.double(), 0.1 * mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.running_var.double(), 0.9 + 0.1 * variance, rtol=1e-5, atol=1e-5)
