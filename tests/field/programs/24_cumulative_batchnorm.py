"""Batch norms with a cumulative average, without statistics, switched between train and eval and frozen layer by layer.

Reported: pytorch/pytorch#194504 (momentum=None fails), #181696 (eval batch norm + ELU + group norm wrong on constants), #20967.
Right: running statistics, the count of batches and outputs are eager's after every call.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.cumulative = nn.BatchNorm1d(4, momentum=None)
        self.plain = nn.BatchNorm1d(4, momentum=0.3, affine=False)
        self.untracked = nn.BatchNorm1d(4, track_running_stats=False)
        self.group = nn.GroupNorm(2, 4)
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x):
        y = self.untracked(F.elu(self.plain(F.elu(self.cumulative(x)))))
        return self.instance(torch.tanh(self.group(F.elu(y))))


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Mixed().double()
    fast = compile_fn(model)

    def note(x):
        x = x.double().requires_grad_()
        model.zero_grad()
        out = fast(x)
        (out**2 * torch.linspace(0, 1, out.numel()).reshape(out.shape)).sum().backward()
        notes.append(
            [
                out.detach(),
                x.grad,
                {k: v.clone() for k, v in model.state_dict().items()},
                [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            ]
        )

    for batch, length in ((6, 5), (6, 5), (3, 5), (6, 9)):
        note(torch.randn(batch, 4, length) * 3 + 1)
    fast.eval()
    note(torch.randn(6, 4, 5))
    model.cumulative.train()
    note(torch.randn(6, 4, 5))
    fast.train()
    model.plain.eval()
    note(torch.randn(2, 4, 5))
    model.cumulative.momentum = 0.1
    model.plain.reset_running_stats()
    note(torch.randn(2, 4, 5))
    model.plain.track_running_stats = False
    note(torch.randn(2, 4, 5))
    bn, gn = nn.BatchNorm1d(10).eval(), nn.GroupNorm(10, 10).eval()

    def constants():
        t = gn(F.elu(bn(torch.linspace(-2, 2, 720).reshape(6, 10, 12))))
        return torch.log1p(t.abs()).sum(), t

    again = compile_fn(constants)
    with torch.no_grad():
        notes += [again(), again()]
        bn.running_mean.fill_(0.5)
        notes.append(again())
    try:
        compile_fn(nn.BatchNorm1d(3))(torch.randn(1, 3))
    except Exception as e:
        notes.append({"raised": type(e).__name__, "kinds": [c.__name__ for c in type(e).__mro__]})
    return notes
