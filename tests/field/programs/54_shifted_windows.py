"""A small shifted-window transformer (version 2): cyclic shifts, log-spaced positions, cosine attention, patch merging, odd sizes.

Reported: pytorch/pytorch#179135 (compilation of Swin v2 fails on CPUs only).
Right: eager's features and gradients for sizes that need padding and ones that do not.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Window(nn.Module):
    def __init__(self, width, heads, size, shift):
        super().__init__()
        self.heads, self.size, self.shift = heads, size, shift
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        self.cpb = nn.Sequential(
            nn.Linear(2, 16), nn.ReLU(inplace=True), nn.Linear(16, heads, bias=False)
        )
        span = torch.arange(-(size - 1), size, dtype=torch.float32)
        table = (
            torch.stack(torch.meshgrid([span, span], indexing="ij")).permute(1, 2, 0)[None]
            * 8
            / (size - 1)
        )
        self.register_buffer("table", torch.sign(table) * torch.log2(table.abs() + 1.0) / 3.0)
        at = torch.stack(
            torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        ).flatten(1)
        gap = (at[:, :, None] - at[:, None]).permute(1, 2, 0) + size - 1
        self.register_buffer("index", (gap[..., 0] * (2 * size - 1) + gap[..., 1]).flatten())

    def forward(self, x):
        b, h, w, c = x.shape
        x = F.pad(
            x,
            (
                0,
                0,
                0,
                (self.size - w % self.size) % self.size,
                0,
                (self.size - h % self.size) % self.size,
            ),
        )
        _, ph, pw, _ = x.shape
        shift = [0 if self.size >= n else self.shift for n in (ph, pw)]
        if sum(shift) > 0:
            x = torch.roll(x, shifts=(-shift[0], -shift[1]), dims=(1, 2))
        count = (ph // self.size) * (pw // self.size)
        x = (
            x.view(b, ph // self.size, self.size, pw // self.size, self.size, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(b * count, self.size**2, c)
        )
        bias = self.qkv.bias.clone()
        bias[c : 2 * c].zero_()
        qkv = (
            F.linear(x, self.qkv.weight, bias)
            .reshape(x.shape[0], -1, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (
            F.normalize(q, dim=-1)
            @ F.normalize(k, dim=-1).transpose(-2, -1)
            * torch.clamp(self.scale, max=4.605).exp()
        )
        position = (
            self.cpb(self.table)
            .view(-1, self.heads)[self.index]
            .view(self.size**2, self.size**2, -1)
            .permute(2, 0, 1)
        )
        attn = attn + 16 * torch.sigmoid(position)[None]
        if sum(shift) > 0:
            mask, label = x.new_zeros((ph, pw)), 0
            for hs in ((0, -self.size), (-self.size, -shift[0]), (-shift[0], None)):
                for ws in ((0, -self.size), (-self.size, -shift[1]), (-shift[1], None)):
                    mask[hs[0] : hs[1], ws[0] : ws[1]] = label
                    label += 1
            mask = (
                mask.view(ph // self.size, self.size, pw // self.size, self.size)
                .permute(0, 2, 1, 3)
                .reshape(count, -1)
            )
            mask = (
                (mask[:, None] - mask[:, :, None])
                .masked_fill(mask[:, None] != mask[:, :, None], -100.0)
                .masked_fill(mask[:, None] == mask[:, :, None], 0.0)
            )
            attn = (attn.view(b, count, self.heads, attn.shape[-1], -1) + mask[None, :, None]).view(
                -1, self.heads, attn.shape[-1], attn.shape[-1]
            )
        x = self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        x = (
            x.view(b, ph // self.size, pw // self.size, self.size, self.size, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(b, ph, pw, c)
        )
        if sum(shift) > 0:
            x = torch.roll(x, shifts=(shift[0], shift[1]), dims=(1, 2))
        return x[:, :h, :w].contiguous()


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 2, 2)
        self.blocks = nn.ModuleList([Window(16, 2, 4, 0), Window(16, 2, 4, 2)])
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.reduce, self.head = nn.Linear(64, 32, bias=False), nn.Linear(32, 5)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        for block, norm in zip(self.blocks, self.norms):
            x = x + norm(block(x))
        h, w, _ = x.shape[-3:]
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        x = self.reduce(
            torch.cat(
                [
                    x[..., 0::2, 0::2, :],
                    x[..., 1::2, 0::2, :],
                    x[..., 0::2, 1::2, :],
                    x[..., 1::2, 1::2, :],
                ],
                -1,
            )
        )
        return self.head(x.mean((1, 2)))


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Small()
    fast = compile_fn(model)
    for size in ((2, 3, 16, 16), (2, 3, 16, 16), (1, 3, 20, 14), (3, 3, 26, 18)):
        x = torch.randn(size, requires_grad=True)
        out = fast(x)
        model.zero_grad()
        out.pow(2).sum().backward()
        notes.append([out.detach(), x.grad, [p.grad.clone() for p in model.parameters()]])
        with torch.no_grad():
            notes.append(fast(x))
    return notes
