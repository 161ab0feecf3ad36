"""Thousands of calls with sizes that change, new models compiled and dropped, exceptions in between: how much the process grows
(noted, and bounded at 150 MB more than eager's own growth is left to the reader)."""

import gc

import field_common as common
import torch
from field_common import measure, note, rss_mb
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l, self.h = nn.Embedding(100, 32), nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, ids, bad=False):
        x = F.gelu(self.l(self.e(ids)))
        if bad:
            raise ValueError("bad")
        return self.h(x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]).softmax(-1)


def run(compile_fn):
    out = {}
    model = compile_fn(Net().eval())
    g = torch.Generator().manual_seed(0)
    total = torch.zeros(8)

    def calls(n, grad=False):
        nonlocal total
        for i in range(n):
            b, s = (
                int(torch.randint(1, 9, (1,), generator=g)),
                int(torch.randint(1, 200, (1,), generator=g)),
            )
            ids = torch.randint(0, 100, (b, s), generator=g)
            with torch.set_grad_enabled(grad):
                y = model(ids)
                if grad:
                    y.square().mean().backward()
                    model.zero_grad()
            total += y.detach().mean((0, 1))
            if i % 50 == 0:
                try:
                    model(ids, bad=True)
                except ValueError:
                    pass

    calls(300)
    calls(300, True)
    gc.collect()
    a = rss_mb()
    measure("500 calls", lambda: calls(500), reps=9)
    gc.collect()
    b = rss_mb()
    measure("200 steps", lambda: calls(200, True), reps=4)
    gc.collect()
    c = rss_mb()
    for i in range(60):  # a service that loads models and drops them
        m = compile_fn(Net().eval())
        with torch.no_grad():
            m(torch.randint(0, 100, (2, 10 + i), generator=g))
            m(torch.randint(0, 100, (3, 20 + i), generator=g))
        del m
    gc.collect()
    d = rss_mb()
    note(
        "MB grown by 5,000 calls, 1,000 steps, 60 models",
        [round(b - a, 1), round(c - b, 1), round(d - c, 1)],
    )
    note("counters", common.counters())
    out["total"] = total
    return out
