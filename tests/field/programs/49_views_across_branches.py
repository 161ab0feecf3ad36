"""A tensor is written through one name, looked at, and read through another name that shares its memory.

Reported: pytorch/pytorch#97083, #97130 (a write behind a branch on data did not reach the views), #94773 (set_ and slices).
Right: all names of one memory see every write, before and after a branch that looks at the data.
"""

import torch


def squeezed():
    a = torch.tensor([1])
    a = a[0:1]
    b = a.squeeze()
    a[0] = 0
    if a[0] < 1e5:
        pass
    a[0] = 2
    return b


def nested(n):
    a = torch.ones(n)
    b = a.reshape(n)
    c = a[0:n]

    def sub():
        b[0] = 2
        if b.sum() >= -1e5:
            b[1] = 5
        return b.sum().item()

    return c, sub(), a.view(-1, 1)


def weave(x, y):
    left, right = x[:, ::2], x[:, 1::2]
    left += 1
    if left.sum() > right.sum():
        right.mul_(left)
        z = x.clone()
    else:
        left.copy_(right)
        z = x
    z[0] = y
    top = x.view(-1)[:3]
    y.zero_()
    total = float(x.sum())
    x.t()[1] = -1
    return z, top, right, total, y is z


def swapped(x):
    xz = x[:]
    w = x
    x = x * 2
    w.add_(1)
    if w[0, 0] > 0:
        x[0] = w[0]
    return xz, x, w.diagonal()


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (squeezed, nested, weave, swapped)]
    for k, n in enumerate((4, 4, 6, 4)):
        torch.manual_seed(k)
        notes.append([fast[0](), fast[1](n)])
        base = torch.randn(3, n) - (k % 2) * 3
        y = torch.full((n,), float(k))
        notes.append([fast[2](base, y), base.clone(), y.clone()])
        base = torch.randn(n + 1, n + 1)
        notes.append([fast[3](base[1:, 1:]), base.clone()])
    return notes
