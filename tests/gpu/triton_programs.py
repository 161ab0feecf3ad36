"""Programs for a GPU compiled from Triton's text; test_triton.py runs this on a stand-in driver.

python triton_programs.py refuse|fake|real     prints what became of the kernels as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot import _ingot, _options, _triton

CUDA = torch.device("cuda:0")
OPTIONS = _options.resolve(None, {"codegen": "triton"})
Program = tuple[nn.Module, list[torch.Tensor]]


class Layer(nn.Module):
    """Tokens through an embedding and a transformer's layer, with a loss."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.out = nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.out(self.layer(self.words(tokens)))
        return functional.cross_entropy(y.flatten(0, 1).float(), tokens.flatten())


class Images(nn.Module):
    """Convolutions, batch norms and pools, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        labels = x[:, 0, 0].argmax(-1) % 10
        return functional.cross_entropy(self.net(x), labels)


class Gradients(nn.Module):
    """What backwards are made of, written out."""

    def forward(self, x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        width = x.shape[-1]
        weight = g[0] + 2
        y, mean, rstd = torch.native_layer_norm(x, [width], weight, None, 1e-5)
        back = torch.ops.aten.native_layer_norm_backward(
            g, x, [width], mean, rstd, weight, None, [True, True, False]
        )
        p = torch.softmax(y, -1)
        s = torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype)
        return torch.ops.aten.gelu_backward(g, x), back[0], back[1], s, s.sum(0)


class Rows(nn.Module):
    """Statistics of rows longer than a block, of columns, and indices."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x * 2, -1)
        return y, x.sum(0), x.argmax(-1), (x > 0).all(-1), x.bfloat16().t().contiguous()


def programs() -> list[Program]:
    torch.manual_seed(0)
    return [
        (Layer(), [torch.randint(0, 50, (4, 24))]),
        (Layer().bfloat16(), [torch.randint(0, 50, (4, 24))]),
        (Images(), [torch.randn(4, 3, 16, 16)]),
        (Gradients(), [torch.randn(64, 200), torch.randn(64, 200)]),
        (Rows(), [torch.randn(6, 10_000)]),
        (Rows(), [torch.randn(300, 100)]),
    ]


def compile_for_gpu(module: nn.Module, inputs: list[torch.Tensor], options: dict) -> dict:
    """The report of the program."""
    recorder = _ingot.Recorder(options)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        state = {n: recorder.input(p.detach(), False, n, device=CUDA) for n, p in named.items()}
        arguments = [recorder.input(x, device=CUDA) for x in inputs]
        with recorder, nn.utils.stateless._reparametrize_module(module, state):
            output = module(*arguments)
        outputs = list(output) if isinstance(output, tuple) else [output]
        return recorder.compile(outputs).report()


def fake(kernels: Sequence, capability: int, threads: int) -> list:
    """Refuses sums of columns, and gives the stand-in driver what it takes for the others."""
    assert capability == 90
    for source, name, types, *_ in kernels:
        assert f"def {name}(" in source and types[-2:] == ["*i64", "*i8"]
    return ["no sums" if "tl.reduce" in k[0] else (b"fake", k[1], 128, 0) for k in kernels]


def main() -> None:
    way = sys.argv[1]
    if way == "refuse":
        sys.modules["triton"] = None  # as if it were not installed
    if way == "fake":
        _triton.version, _triton.compile_kernels = lambda: "fake 1", fake
    try:
        reports = [compile_for_gpu(*program, OPTIONS) for program in programs()]
    except RuntimeError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
        return
    stats = ingot.stats()
    print(json.dumps({
        "reports": reports, "made": stats.triton_kernels, "refused": stats.triton_refused,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
