"""Weights and activations are quantised by hand and multiplied as integers, then scaled back per channel.

Reported: pytorch/pytorch#191308 (int8 batched matmul came back as int64 under torch.compile on CPUs).
Right: matmul of equal integer dtypes keeps the dtype and wraps; int32 holds the sums; rounding is to even.
"""

import torch


def product(a, b):
    return torch.matmul(a, b)


def quantise(x, bits):
    top = 2 ** (bits - 1) - 1
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-8) / top
    return torch.clamp(torch.round(x / scale), -top - 1, top).to(torch.int8), scale


class QuantLinear(torch.nn.Module):
    def __init__(self, n, m):
        super().__init__()
        weight, scale = quantise(torch.randn(m, n), 8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.squeeze(-1))
        self.bias = torch.nn.Parameter(torch.randn(m))

    def forward(self, x):
        q, s = quantise(x, 8)
        sums = torch.matmul(q.to(torch.int32), self.weight.to(torch.int32).t())
        return sums.to(x.dtype) * s * self.scale + self.bias, q, sums


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast = compile_fn(product)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        low = 0 if dtype == torch.uint8 else -100
        for shapes in (
            ((1, 1, 2), (1, 2, 2)),
            ((2, 3, 5), (2, 5, 4)),
            ((3, 5), (5, 7)),
            ((5,), (5, 2)),
            ((2, 3, 5), (5,)),
            ((4,), (4,)),
        ):
            notes.append(fast(*(torch.randint(low, 101, s).to(dtype) for s in shapes)))
    layer = QuantLinear(24, 10)
    compiled = compile_fn(layer)
    for rows in (3, 3, 8, 1):
        x = torch.randn(rows, 24)
        x[0, :4] = torch.tensor([0.5, 1.5, -0.5, 2.5])
        notes.append(compiled(x))
    layer.scale.mul_(2)
    notes.append(compiled(x))
    halves = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.4999999, -2.5, 126.5])
    notes.append(
        compile_fn(
            lambda v: (
                torch.round(v).to(torch.int8),
                torch.quantize_per_tensor(v, 0.5, 3, torch.quint8).int_repr(),
            )
        )(halves)
    )
    fake = compile_fn(lambda v: torch.fake_quantize_per_tensor_affine(v, 0.1, 3, -128, 127))
    v = torch.linspace(-20, 20, 41, requires_grad=True)
    out = fake(v)
    out.sum().backward()
    notes.append([out.detach(), v.grad])
    return notes
