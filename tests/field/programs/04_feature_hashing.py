"""Tabular features are hashed into buckets with 32-bit arithmetic that wraps, and pictures are compared in uint8.

Reported: pytorch/pytorch#190764, #108520 (int32 sums in 64 bits), #187018 (abs of uint8 through a cat), #105264, #156788.
Right: every step wraps in its own dtype: int32 in 32 bits, uint8 modulo 256, int8 likewise; widening comes last.
"""

import torch


def hash_ids(ids, salt):
    h = ids.to(torch.int32)
    for step in range(3):
        h = h * 1664525 + 1013904223 + salt
        h = h ^ (h >> 13)
        h = h + (h << 5)
    return (
        h.to(torch.int64),
        (h % 97).to(torch.int64),
        torch.remainder(h, -13),
        torch.fmod(h, 13),
        (-h).to(torch.int64),
        h.abs().to(torch.int64),
    )


def buckets(ids):
    doubled = (ids + ids).to(torch.int64)
    return (
        doubled,
        (ids * ids).to(torch.int64),
        ids.cumsum(0),
        ids.sum(),
        (ids // 7).to(torch.int64),
        (ids - 2147483647 - 5).to(torch.int64),
    )


def compare_pictures(a, b):
    y = -a.abs()
    both = torch.cat([y, y])
    return (
        both.sum(),
        (a - b).to(torch.int16),
        (a + b).float().mean(),
        (a * 2).to(torch.int32),
        (~a).sum(),
        (a // 3),
        torch.bitwise_left_shift(a, 1),
        a.neg().to(torch.float32),
    )


def small(a):
    return (
        a.abs(),
        -a,
        (a + a).to(torch.int32),
        (a * a).to(torch.int32),
        a.sum(),
        a.cumsum(0),
        (a.abs() * 1).to(torch.int64),
    )


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (hash_ids, buckets, compare_pictures, small)]
    for seed, n in enumerate((17, 17, 40, 3)):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(-(2**31), 2**31 - 1, (n,), generator=g)
        notes.append(fast[0](ids, seed * 77777))
        notes.append(fast[1](ids.to(torch.int32)))
        notes.append(
            fast[2](
                torch.randint(0, 256, (n,), generator=g).to(torch.uint8),
                torch.randint(0, 256, (n,), generator=g).to(torch.uint8),
            )
        )
        notes.append(fast[3](torch.randint(-128, 128, (n,), generator=g).to(torch.int8)))
        notes.append(fast[3](torch.tensor([-128, 127, -1, 0] * 9, dtype=torch.int8)))
    return notes
