"""A model logs features in a list on its class and reads a factor there, as small research code does.

Reported: pytorch/pytorch#169253 (appends to the class's list are dropped), #176851 (a changed class attribute is not seen).
Right: the class is one place for all instances; what a call appends or counts is there afterwards, and changes count at once.
"""

import torch
from torch import nn


class Settings:
    factor = 1.0
    names = {"a": 1}


class Probe(nn.Module):
    log = []
    calls = 0
    limits = {"low": -1.0}

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        Probe.log.append(tuple(x.shape))
        Probe.calls += 1
        type(self).limits["high"] = Settings.factor
        y = self.lin(x) * Settings.factor
        if "skip" in Settings.names:
            y = y - x
        return y.clamp(type(self).limits["low"], self.limits["high"])


class SubProbe(Probe):
    limits = {"low": -0.1}


def run(compile_fn):
    torch.manual_seed(0)
    Probe.log.clear()
    notes = []
    first, second, third = Probe(), Probe(), SubProbe()
    second.forward = compile_fn(second.forward)
    models = [compile_fn(first), second, compile_fn(third)]
    x = torch.randn(2, 3)
    for step in range(4):
        for model in models:
            notes.append(
                [
                    model(x).detach(),
                    len(Probe.log),
                    Probe.calls,
                    dict(Probe.limits),
                    dict(SubProbe.limits),
                    list(Probe.log),
                ]
            )
        if step == 0:
            Settings.factor = 10.0
        elif step == 1:
            Settings.names["skip"] = 0
            x = torch.randn(4, 3)
        elif step == 2:
            del Settings.names["skip"]
            SubProbe.limits = {"low": -5.0}
            Probe.log = []
    return notes
