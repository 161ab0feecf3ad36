"""An inpainting loss pastes a patch, a diagonal and a row into a canvas, sums the picture along the pasted dim and trains both.

Reported: pytorch/pytorch#180164, #182012, #183898 (x.grad all zeros or all ones under torch.compile, forward right).
Right: what was overwritten has gradient 0, what stays has 1 (times what comes in), for clones, expanded canvases and sizes that change.
"""

import torch


def paste(canvas, patch, start):
    return torch.slice_scatter(canvas, patch, dim=1, start=start, end=start + patch.shape[1]).sum(
        dim=1
    )


def paste_diagonal(canvas, values):
    return torch.diagonal_scatter(canvas, values, offset=1).sum()


def paste_row(canvas, row, k):
    return (
        torch.select_scatter(canvas, row, 0, k) * torch.arange(canvas.shape[1], dtype=canvas.dtype)
    ).sum(0)


def paste_in_place(canvas, patch, start):
    out = canvas.clone()
    out[:, start : start + patch.shape[1]] = patch
    return out.sum(1)


def paste_on_background(color, patch):
    out = color.expand(patch.shape[0], 9).contiguous()
    return torch.slice_scatter(out, patch, dim=1, start=0, end=patch.shape[1], step=1).sum(1)


def run(compile_fn):
    notes = []

    def go(function, *shapes, extra=()):
        torch.manual_seed(len(notes))
        leaves = [torch.randn(s, requires_grad=True) for s in shapes]
        out = function(*leaves, *extra)
        (out * torch.linspace(0.5, 1.5, max(1, out.numel())).reshape(out.shape)).sum().backward()
        notes.append([out.detach()] + [leaf.grad for leaf in leaves])

    fast = [
        compile_fn(f)
        for f in (paste, paste_diagonal, paste_row, paste_in_place, paste_on_background)
    ]
    for n in (6, 6, 11, 8):
        go(fast[0], (4, n, 3), (4, 3, 3), extra=(1,))
        go(fast[0], (4, n, 3), (4, 3, 3), extra=(0,))
        go(fast[1], (n, n), (n - 1,))
        go(fast[2], (n, 5), (5,), extra=(n - 2,))
        go(fast[3], (3, n), (3, 2), extra=(n - 2,))
        go(fast[4], (1,), (n, 4))
    return notes
