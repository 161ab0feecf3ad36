"""Augmentation code draws from Python's random, NumPy's generators and torch's in one compiled function, seeding inside it.

Reported: pytorch/pytorch#197101 (random.seed is ignored on the first call), #118735.
Right: the streams of all three are eager's: values, order and states afterwards.
"""

import random

import numpy as np
import torch

timed = True


def seeded(x, k):
    random.seed(k)
    return (
        x + random.random(),
        random.randint(0, 99),
        random.uniform(1, 2),
        random.choice("abc"),
        random.sample(range(10), 3),
    )


def augment(x, rng):
    if random.random() < 0.5:
        x = x.flip(-1)
    shift = random.randrange(x.shape[-1])
    x = torch.roll(x, shift, -1)
    scale = rng.uniform(0.5, 1.5)
    x = x * scale + float(np.random.rand())
    keep = torch.rand(x.shape) > random.betavariate(2, 5)
    order = list(range(3))
    random.shuffle(order)
    return x * keep, shift, order, random.gauss(0, 1)


def torch_seeded(x, seed):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 1)
    return (
        x + torch.rand(3),
        torch.randn(2, generator=g),
        torch.randperm(5, generator=g),
        torch.initial_seed(),
    )


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (seeded, augment, torch_seeded)]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    rng = np.random.default_rng(4)
    for k in range(5):
        notes.append(fast[0](torch.ones(2), k % 3))
        random.seed(10 + k // 2)
        notes.append(fast[1](torch.arange(6.0 + k % 2), rng))
        notes.append([random.random(), float(np.random.rand()), torch.rand(2), float(rng.random())])
        notes.append(fast[2](torch.ones(3), k % 2))
        notes.append(torch.rand(1))
    return notes


def bench(compile_fn):
    fast, rng, x = compile_fn(augment), np.random.default_rng(0), torch.arange(6.0)
    return lambda: fast(x, rng)
