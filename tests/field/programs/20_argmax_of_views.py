"""Peak picking asks for the index of the largest value of transposed, flipped and strided pictures that were changed in place.

Reported: pytorch/pytorch#183082 (argmax after sin_ and t() counted in the untransposed order), #118266 (NaN).
Right: the index counts in the order of the view that is asked; the first of equal ones; NaN is the largest.
"""

import torch


def peaks(x):
    x = x.clone()
    x.sin_()
    return (
        x.t().argmax(),
        x.t().argmin(),
        x.argmax(),
        x.T.flip(0).argmax(),
        x.t().argmax(dim=0),
        x.t().argmax(dim=1, keepdim=True),
    )


def values(x):
    y = (x * 2 + 1).transpose(0, 1)
    best, where = y.max(dim=0)
    least, there = y.min(dim=-1)
    top, index = y.topk(2, dim=0)
    order = y.contiguous().view(-1).sort(stable=True, descending=True).indices
    return (
        best,
        where,
        least,
        there,
        top,
        index,
        order,
        y.median(dim=0).indices,
        y.cummax(0),
        y.mode(dim=1).values,
    )


def strided(x):
    z = x[::2, 1::2].abs().mT
    return z.argmax(), z.argmin(), z.flatten().argmax(), z.unsqueeze(0).argmax(-1), torch.aminmax(z)


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (peaks, values, strided)]
    for seed, shape in enumerate(((5, 7), (5, 7), (6, 3), (17, 20))):
        torch.manual_seed(seed)
        x = torch.randn(shape)
        notes += [list(f(x)) for f in fast]
        ties = torch.randint(0, 3, shape).float()
        notes += [fast[0](ties), fast[2](ties), list(fast[1](ties))[:2]]
        x[2, 1] = float("nan")
        x[1, 2] = float("inf")
        notes += [fast[0](x), fast[2](x)]
        notes.append(fast[2](torch.randint(-9, 9, shape)))
    return notes
