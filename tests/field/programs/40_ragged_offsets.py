"""Ragged batches: rows are found by searchsorted in slices of offsets; lengths are padded, summed and expanded.

Reported: pytorch/pytorch#182343, #160964 (searchsorted and bucketize ignore a slice's start), #189895 (pad of a sum loses its zero).
Right: eager's rows, buckets and cumulative lengths, for slices, steps, dtypes and sizes that change.
"""

import torch
import torch.nn.functional as F

timed = True


def rows_of(offsets, values):
    return (
        torch.searchsorted(offsets[1:], values, right=True),
        torch.searchsorted(offsets[:-1], values),
        torch.bucketize(values, offsets[1:-1], right=True),
        torch.bucketize(values.float() + 0.5, offsets[::2].float()),
        torch.searchsorted(offsets.flip(0).neg(), -values, out_int32=True),
    )


def lengths(mask):
    sums = mask.sum(dim=-1, dtype=torch.int32)
    ends = F.pad(torch.cumsum(sums, 0, dtype=torch.int32), (1, 0))
    positions = (torch.cumsum(mask, dim=1) - 1) * mask
    return (
        ends,
        F.pad(sums, (1, 0)),
        F.pad(mask.float().sum(), (2, 1))
        if False
        else F.pad(mask.float().sum().reshape(1), (2, 1), value=-1.0),
        positions,
        F.pad(mask.any(0).long(), (1, 2), value=9),
    )


def segment_sum(x, offsets):
    total = F.pad(x.cumsum(0), (0, 0, 1, 0))
    sums = total[offsets[1:]] - total[offsets[:-1]]
    row = torch.repeat_interleave(torch.arange(offsets.shape[0] - 1), offsets.diff())
    top = torch.segment_reduce(x, "max", offsets=offsets, initial=-9.0)
    return (
        sums,
        row,
        torch.zeros_like(sums).index_add(0, row, x),
        top,
        x - sums[row] / offsets.diff()[row, None],
    )


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (rows_of, lengths, segment_sum)]
    for seed, counts in enumerate(([3, 4, 5], [3, 4, 5], [1, 0, 7, 2], [6])):
        torch.manual_seed(seed)
        offsets = F.pad(torch.tensor(counts).cumsum(0), (1, 0))
        n = int(offsets[-1])
        notes.append(fast[0](offsets, torch.arange(n)))
        notes.append(fast[1](torch.rand(len(counts), n) > 0.3))
        x = torch.randn(n, 3, requires_grad=True)
        out = fast[2](x, offsets)
        (out[0].pow(2).sum() + out[3].sum() + out[4].sin().sum()).backward()
        notes.append([[o.detach() for o in out], x.grad])
    return notes


def bench(compile_fn):
    offsets = torch.arange(0, 20001, 20)
    values = torch.arange(20000)
    fast = compile_fn(lambda o, v: torch.searchsorted(o[1:], v, right=True) * 2 + 1)
    return lambda: fast(offsets, values)
