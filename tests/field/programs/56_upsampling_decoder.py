"""A decoder upsamples with transposed convolutions (output_padding, groups, dilation), pixel shuffle and skip connections.

Reported: pytorch/pytorch#184026 (wrong strides predicted with output_padding), apache/tvm#19524, #152066 (channels last).
Right: eager's pictures, strides and gradients, in both memory formats and without a batch.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.wide = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=2, dilation=2, bias=False)
        self.line = nn.ConvTranspose1d(4, 3, 5, stride=3, output_padding=2)
        self.mix = nn.Conv2d(8, 16, 3, padding="same", padding_mode="reflect")
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x, skip):
        y = self.up(x)
        y = self.norm(y + F.interpolate(skip, size=y.shape[-2:], mode="nearest"))
        shuffled = F.pixel_shuffle(self.mix(y), 2)
        z = self.wide(y)
        line = self.line(z.mean(-1))
        return (
            shuffled,
            z,
            line,
            F.pixel_unshuffle(shuffled, 2),
            F.fold(F.unfold(z, 3, padding=1), z.shape[-2:], 3, padding=1),
        )


def loose(x, w, output_size):
    y = F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    return (
        y,
        y.relu_().sum(1),
        F.conv_transpose2d(x.flip(-1), w, stride=3),
        F.conv2d(y, w.transpose(0, 1)[:, :1], groups=y.shape[1]),
    )


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Decoder()
    fast, fast_loose = compile_fn(model), compile_fn(loose)
    for k, (n, h, w) in enumerate(((2, 4, 5), (2, 4, 5), (1, 6, 3), (3, 4, 5))):
        x = torch.randn(n, 8, h, w)
        if k == 1:
            x = x.contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        out = fast(x, torch.randn(n, 8, 3, 3))
        model.zero_grad()
        sum((o * torch.linspace(0, 1, o.numel()).reshape(o.shape)).sum() for o in out).backward()
        notes.append(
            [[o.detach() for o in out], x.grad, [p.grad.clone() for p in model.parameters()]]
        )
        weight = torch.randn(8, 4, 3, 3)
        with torch.no_grad():
            notes.append(fast_loose(x, weight, None))
            notes.append(
                fast_loose(x[:1], weight.contiguous(memory_format=torch.channels_last), None)
            )
            notes.append(model.up(x[0]) * 0 + compile_fn(model.up)(x[0]))
            notes.append(
                compile_fn(
                    lambda v: model.up(v, output_size=[2 * v.shape[-2] - 1, 2 * v.shape[-1]])
                )(x)
            )
    return notes
