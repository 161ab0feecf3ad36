"""A Hough transform lets points vote for cells: several points name one cell, in place, by lists, tensors and masks.

Reported: pytorch/pytorch#174074 (x[[0, 0]] += x[[0, 0]] doubled twice under torch.compile).
Right: `x[i] += v` reads first and writes once, so duplicates count once; index_put_(accumulate=True) and index_add_ count all.
"""

import torch


def vote_once(cells, where):
    cells[where] += cells[where]
    cells[[0, 0, 1]] += 1.0
    return cells.sum()


def vote_all(cells, where, weights):
    cells.index_put_((where,), weights, accumulate=True)
    cells.index_add_(0, where, weights, alpha=0.5)
    cells.scatter_add_(0, where, weights)
    return cells.max()


def vote_grid(grid, rows, columns):
    before = grid[rows, columns]
    grid[rows, columns] = before * 2 + 1
    grid[:, [1, 1]] -= grid[:, [1, 1]] * 0.25
    grid[rows] -= 1
    return before, grid.cumsum(1)


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (vote_once, vote_all, vote_grid)]
    for seed, points in enumerate((5, 5, 12, 3)):
        torch.manual_seed(seed)
        where = torch.randint(0, 3, (points,))
        for dtype in (torch.float64, torch.float32):
            cells = torch.randn(6, dtype=dtype)
            notes.append([fast[0](cells, where), cells.clone()])
            notes.append([fast[1](cells, where, torch.rand(points, dtype=dtype)), cells.clone()])
        grid = torch.arange(12.0).reshape(3, 4)
        notes.append(
            [fast[2](grid, where, torch.randint(0, 4, (points,)) * 0 + where), grid.clone()]
        )
    return notes
