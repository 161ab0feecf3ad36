"""A vision-language model makes a buffer at its first call, casts caches to the activations' dtype and changes clones in place.

Reported: Lightning-AI/lightning-thunder#1951 (buffer made again at each call), #1637, #2793 (clone written through), #652, #646.
Right: the buffer is made once and stays; casts happen once; a clone is another tensor.
"""

import torch
from torch import nn


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("buf", None, False)
        self.register_buffer("k", torch.zeros(2, 2))
        self.table = {}

    def forward(self, x):
        if self.buf is None:
            self.buf = torch.randn(1, 2, device=x.device)
        self.k = self.k.to(x.dtype) + 1
        n = x.shape[0]
        if n not in self.table:
            self.table[n] = torch.arange(n, dtype=x.dtype)[:, None]
        return self.fc(x.float()) + self.buf + self.k.float()[:1] + self.table[n]


class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.parts = nn.ModuleList()

    def forward(self, x):
        if len(self.parts) <= self.steps // 2:
            self.parts.append(nn.Linear(3, 3))
        self.steps += 1
        for part in self.parts:
            x = torch.tanh(part(x))
        if not hasattr(self, "mean"):
            self.mean = x.detach().mean(0)
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def changed_clone(x):
    y = x.clone()
    y.sin_()
    z = x.detach().clone(memory_format=torch.contiguous_format)
    z[0] = 0
    return x + y, z


def flat_changes(a, b):
    c, d = torch.exp(a), torch.tanh(b)
    e = c.view(-1)
    e.add_(d.flatten())
    d.div_(a)
    return c, d, e / 2.0


def chain(a):
    a.relu_()
    a.add_(1.0)
    c = a + 1
    a.mul_(c)
    return c


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    lazy, grown = Lazy(), Grown()
    fast, fast_grown = compile_fn(lazy), compile_fn(grown)
    fast_clone, fast_flat, fast_chain = (
        compile_fn(changed_clone),
        compile_fn(flat_changes),
        compile_fn(chain),
    )
    for dtype, n in (
        (torch.float32, 2),
        (torch.float32, 2),
        (torch.float16, 2),
        (torch.float64, 3),
        (torch.float64, 3),
    ):
        x = torch.ones(n, 2, dtype=dtype)
        notes.append(
            [
                fast(x).detach(),
                lazy.buf.clone(),
                lazy.k.clone(),
                sorted(lazy.table),
                [str(v.dtype) for v in lazy.table.values()],
                "buf" in lazy.state_dict(),
            ]
        )
        x = torch.randn(4, 3)
        notes.append(
            [
                fast_grown(x).detach(),
                len(grown.parts),
                grown.steps,
                grown.mean.clone(),
                sorted(grown.state_dict()),
            ]
        )
        notes.append(
            [
                fast_clone(x),
                x.clone(),
                fast_flat(torch.rand(2, 2) + 1, torch.rand(2, 2)),
                fast_chain(x),
                x.clone(),
            ]
        )
    lazy.buf = None
    notes.append([fast(torch.ones(2, 2)).detach(), lazy.buf.clone()])
    return notes
