"""Calibration code makes quantised tensors inside a compiled function, reads their scale, adds them and gives one back.

Reported: pytorch/pytorch#198307 (quantize_per_tensor of a transposed input fails), #93430 and pytorch/torchdynamo#1892, #1003 (crashes).
Right: eager's integers, scales, zero points and floats; a quantised result is a whole one.
"""

import torch
import torch.ao.nn.quantized as nnq
from torch import nn


def round_trip(x, scale):
    q = torch.quantize_per_tensor(x, scale, 10, torch.quint8)
    return q.dequantize() + 1, (x - q.dequantize()).abs().max()


def give_back(x):
    return torch.quantize_per_tensor(x.t() * 2, 0.1, 0, torch.qint8)


def channels(w):
    scale = w.abs().amax(1) / 127
    q = torch.quantize_per_channel(
        w, scale, torch.zeros(w.shape[0], dtype=torch.long), 0, torch.qint8
    )
    return q.int_repr(), q.dequantize(), q.q_per_channel_scales()


def arithmetic(a, b):
    s = torch.ops.quantized.add(a, b, 0.2, 3)
    return (
        s.dequantize(),
        torch.relu(s).dequantize().sum(),
        s.q_scale(),
        s.int_repr().float().mean(),
    )


class Hybrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.quant, self.dequant, self.lin = (
            nnq.Quantize(0.05, 64, torch.quint8),
            nnq.DeQuantize(),
            nnq.Linear(4, 3),
        )
        self.lin.set_weight_bias(
            torch.quantize_per_tensor(
                torch.linspace(-1, 1, 12).reshape(3, 4), 0.01, 0, torch.qint8
            ),
            torch.arange(3.0),
        )
        self.lin.scale, self.lin.zero_point = 0.1, 20

    def forward(self, x):
        return self.dequant(self.lin(self.quant(torch.tanh(self.first(x)))))


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast = [compile_fn(f) for f in (round_trip, give_back, channels, arithmetic)]
    model = compile_fn(Hybrid())
    for n in (3, 3, 5):
        x = torch.randn(n, 4)
        notes.append(fast[2](x))
        with torch.no_grad():
            notes.append(model(x))
        q = torch.quantize_per_tensor(x, 0.1, 5, torch.quint8)
        notes.append(fast[3](q, q))
        notes.append(fast[0](x, 0.1 * n))
        out = fast[1](x)
        notes.append(
            [
                str(out.dtype),
                out.is_quantized,
                str(out.qscheme()),
                out.q_scale(),
                out.q_zero_point(),
                out.int_repr(),
                out.dequantize(),
            ]
        )
    return notes
