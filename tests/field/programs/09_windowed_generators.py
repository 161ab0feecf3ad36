"""A forecaster draws window positions from generator expressions with filters, and mixes next, zip, send and defaults.

Reported: pytorch/pytorch#176693 (a filtered generator expression gave other numbers).
Right: generators give one item at a time, in order; what was drawn is gone, in this call and the next.
"""

import itertools

import torch


def odd_offsets(x):
    positions = (v * 2 for v in range(6) if v % 2 == 1)
    first, second = next(positions), next(positions)
    rest = list(positions)
    return x + first + 10 * second + 100 * sum(rest)


def windows(series, width):
    starts = (s for s in range(series.shape[0] - width + 1) if s % 3 != 1)
    means = [series[s : s + width].mean() for s in starts]
    tail = next(starts, None)
    return torch.stack(means), len(means), tail is None


def accumulate():
    total = 0.0
    while True:
        value = yield total
        if value is None:
            return
        total = total + value


def sent(parts):
    box = accumulate()
    next(box)
    out = [box.send(p * k) for k, p in enumerate(parts, 1)]
    return torch.stack(out)


def chained(parts):
    pairs = zip((p.sum() for p in parts if p.numel() > 2), itertools.count(1))
    weighted = sum(v * k for v, k in pairs)
    has = any(p.shape[0] == 2 for p in parts)
    biggest = max((p.shape[0], k) for k, p in enumerate(parts))
    longest, *others = sorted(parts, key=lambda p: -p.shape[0])
    return weighted, has, biggest, longest.shape[0], len(others)


class Loader:
    def __init__(self, batches):
        self.stream = iter(batches)

    def forward(self, w):
        batch = next(self.stream, None)
        return None if batch is None else w * batch


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast = [compile_fn(f) for f in (odd_offsets, windows, sent, chained)]
    for n in (9, 9, 14, 6):
        x = torch.randn(n)
        parts = [torch.randn(k) for k in (n % 5 + 1, 2, 4)]
        notes.append(
            [fast[0](x), fast[1](x, 3), fast[1](x, 5), fast[2]([x, x + 1, x - 2]), fast[3](parts)]
        )
    loader = Loader([torch.full((2,), float(k)) for k in range(3)])
    step = compile_fn(loader.forward)
    notes.append([step(torch.ones(2)) for _ in range(4)])
    return notes
