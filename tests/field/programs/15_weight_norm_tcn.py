"""A temporal convolution net with weight norm and spectral norm is trained, saved, loaded and stripped of its parametrisations.

Reported: pytorch/pytorch#121304, #121902, #118742, #191137 (weight_norm under torch.compile fails); stale weights feared.
Right: weights are made anew at each call from g and v; u and v of the spectral norm advance in training only.
"""

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.parametrize import cached, remove_parametrizations


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(3 if k == 0 else 6, 6, 3, dilation=2**k)) for k in range(3)
        )
        self.critic = spectral_norm(nn.Linear(6, 4))
        self.turn = orthogonal(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        for k, conv in enumerate(self.convs):
            left = 2 * 2**k
            y = torch.relu(conv(nn.functional.pad(x, (left, 0))))
            x = y if x.shape[1] != y.shape[1] else x + y
        return self.turn(self.critic(x.mean(-1)))


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = TCN()
    fast = compile_fn(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for length in (16, 16, 16, 23, 16):
        x = torch.randn(2, 3, length)
        loss = (fast(x) - torch.tensor([0.5, -1.0, 2.0, 0.25])).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        notes.append([loss.item(), [p.grad.clone() for p in model.parameters()]])
        optimizer.step()
    notes.append({k: v.clone() for k, v in model.state_dict().items()})
    fast.eval()
    x = torch.randn(2, 3, 16)
    with torch.no_grad():
        notes.append([fast(x), fast(x)])
        model.convs[0].parametrizations.weight.original0.mul_(2)
        notes.append(fast(x))
        with cached():
            notes.append([fast(x), fast(x)])
        model.convs[1].weight = model.convs[1].weight * 3
        notes.append(fast(x))
    saved = {k: v * 0.5 for k, v in model.state_dict().items() if "base" not in k}
    notes.append(str(model.load_state_dict(saved, strict=False)))
    notes.append(fast(x).detach())
    for conv in model.convs:
        remove_parametrizations(conv, "weight")
    notes.append(fast(x).detach())
    model.convs[2].weight.data.zero_()
    notes.append(fast(x).detach())
    return notes
