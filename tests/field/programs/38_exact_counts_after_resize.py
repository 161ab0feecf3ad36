"""A compressor rounds a feature map, doubles it bilinearly and counts runs of equal numbers.

Reported: pytorch/pytorch#148859, #185772 (other rounding in the compiled resize, so that the number of runs differs).
Right: the same lengths and values as eager: resizing whole numbers must round as eager does.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, mode, align, scale):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.up = nn.Upsample(scale_factor=scale, mode=mode, align_corners=align)

    def forward(self, x):
        x = self.conv(x)
        x = torch.floor(x * 3)
        y = self.up(x)
        runs, counts = torch.unique_consecutive(y, return_counts=True)
        return y, runs, counts.shape[0]


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    for mode, align, scale in (
        ("bilinear", True, 2),
        ("bilinear", False, 2),
        ("bicubic", True, 2),
        ("nearest", None, 3),
        ("bilinear", True, 4),
    ):
        model = Model(mode, align, scale)
        for p in model.parameters():
            p.data.copy_(torch.round(p.data * 8) / 8)
        fast = compile_fn(model)
        with torch.no_grad():
            for n in (16, 16, 9):
                notes.append(fast(torch.randint(-4, 5, (1, 1, n, n)).float()))
    return notes
