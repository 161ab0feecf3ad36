"""Compiled functions beside DataLoader: a compiled augmentation in the main process, one inside worker processes (fork), a compiled collate,
pinned-like copies in a thread, and a model that the workers inherit compiled."""

import torch
from field_common import measure
from torch import nn

AUGMENT = None


def augment(x):
    flip = x.flip(-1)
    w = torch.linspace(0, 1, x.shape[-1])
    y = x * w + flip * (1 - w)
    return (y - y.mean((-2, -1), keepdim=True)) / (y.std((-2, -1), keepdim=True) + 1e-5)


class Data(torch.utils.data.Dataset):
    def __init__(self, n, f):
        self.n, self.f = n, f

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return self.f(torch.randn(3, 16, 16, generator=g)), i % 4


def run(compile_fn):
    out = {}
    f = compile_fn(augment)
    for workers in (0, 2):
        for name, warm in (("cold", False), ("warm", True)):
            if warm:
                f(torch.randn(3, 16, 16))
            loader = torch.utils.data.DataLoader(
                Data(24, f), batch_size=6, num_workers=workers, timeout=60 if workers else 0
            )
            got = measure(f"{workers} workers, {name}", lambda: [b for b, _ in loader], reps=1)
            out[f"{workers} {name}"] = [torch.stack(g) for g in got]
    model = compile_fn(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    loader = torch.utils.data.DataLoader(
        Data(24, f), batch_size=5, num_workers=2, persistent_workers=True, timeout=60
    )
    for epoch in range(2):
        for x, y in loader:  # the last batch is smaller
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
    out["training"] = torch.stack(losses)
    # a compiled model used in the workers, after it was used here
    feature = compile_fn(nn.Sequential(nn.Flatten(0), nn.Linear(768, 16)).eval())
    with torch.no_grad():
        feature(torch.randn(3, 16, 16))

    def in_worker(x):
        with torch.no_grad():
            return feature(x)

    out["model in workers"] = [
        b
        for b, _ in torch.utils.data.DataLoader(
            Data(12, in_worker), batch_size=4, num_workers=2, timeout=60
        )
    ]
    return out
