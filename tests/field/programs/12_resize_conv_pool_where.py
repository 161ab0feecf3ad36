"""A segmentation head resizes by uneven factors, crops, convolves, pools and keeps one or the other by a mask; it is trained.

Reported: pytorch/pytorch#185509 (forward right, gradients off by up to 77 under torch.compile).
Right: eager's outputs and gradients for input, weight and bias.
"""

import torch
import torch.nn.functional as F


def head(x, weight, bias, mask, scale, mode):
    y = F.interpolate(
        x, scale_factor=scale, mode=mode, align_corners=False if mode != "nearest" else None
    )
    y = y[:, :, 1:7, 1:8]
    conv = F.conv2d(y, weight, bias, padding=1)
    pool = F.max_pool2d(conv, kernel_size=3, stride=1, padding=1)
    average = F.avg_pool2d(conv, 3, stride=1, padding=1, count_include_pad=False)
    return torch.where(mask, conv, pool) + torch.where(mask, average, conv.detach())


def pyramid(x, weight):
    total = 0
    for size in ((3, 5), (7, 4), (12, 13)):
        level = F.adaptive_avg_pool2d(x, size)
        level = F.conv2d(level, weight, padding=1, groups=2)
        total = total + F.interpolate(level, size=x.shape[-2:], mode="bicubic", align_corners=True)
    return total + F.adaptive_max_pool2d(x, 1)


def run(compile_fn):
    notes = []
    fast, tower = compile_fn(head), compile_fn(pyramid)
    for seed, (n, scale, mode) in enumerate(
        (
            (2, (1.5, 1.25), "bilinear"),
            (2, (1.5, 1.25), "bilinear"),
            (1, (2.0, 1.7), "nearest"),
            (3, (1.6, 1.6), "bicubic"),
            (2, (1.3, 1.9), "bilinear"),
        )
    ):
        torch.manual_seed(seed)
        leaves = [
            torch.randn(n, 4, 6, 7, requires_grad=True),
            torch.randn(4, 4, 3, 3, requires_grad=True),
            torch.randn(4, requires_grad=True),
        ]
        width = min(8, int(7 * scale[1])) - 1
        mask = torch.rand(n, 4, 6, width) > 0.4
        out = fast(*leaves, mask, scale, mode)
        (out * torch.linspace(-1, 2, out.numel()).reshape(out.shape)).sum().backward()
        notes.append([out.detach()] + [leaf.grad for leaf in leaves])
        leaves = [
            torch.randn(n, 4, 9, 8, requires_grad=True),
            torch.randn(4, 2, 3, 3, requires_grad=True),
        ]
        out = tower(*leaves)
        (out**2).mean().backward()
        notes.append([out.detach()] + [leaf.grad for leaf in leaves])
    return notes
