"""A spiking network with leaky neurons keeps membranes as attributes, draws Bernoulli spikes and drops inputs in two branches.

Reported: pytorch/pytorch#188074 (stateful SNN differs, bernoulli), #192635 (dropout's random numbers in another order), #172207, #158643.
Right: with a seed, eager's random numbers in eager's order, the membranes after every call, and the surrogate gradients.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 1).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g / (1 + 10 * (v - 1).abs()) ** 2


class LIF(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay, self.v, self.fired = decay, 0.0, 0

    def forward(self, current):
        self.v = self.v * self.decay + current
        out = Spike.apply(self.v)
        self.v = self.v - out.detach()
        self.fired += 1
        return out


class SNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.a, self.second, self.b = (
            nn.Linear(6, 12),
            LIF(0.9),
            nn.Linear(12, 4),
            LIF(0.5),
        )

    def forward(self, x, steps):
        self.a.v = self.b.v = 0.0
        total = 0
        for _ in range(steps):
            spikes = torch.bernoulli(x.clamp(0, 1))
            total = total + self.b(self.second(F.relu(self.a(self.first(spikes)), inplace=True)))
        return total / steps


def branches(encoder, decoder, p):
    left = F.dropout(encoder, p).sum(0) * 2
    right = F.dropout(decoder, p, training=True) + torch.rand(3)
    noise = torch.randn_like(decoder) * torch.empty(1).uniform_(1, 2)
    mask = torch.rand(decoder.shape[0]) < 0.5
    return (
        left,
        right,
        noise,
        mask,
        torch.randperm(4),
        torch.randint(0, 9, (3,)),
        torch.multinomial(torch.ones(5), 3),
        torch.normal(0.0, decoder.abs()),
    )


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = SNN()
    fast, two = compile_fn(model), compile_fn(branches)
    for n, steps in ((3, 4), (3, 4), (5, 4), (3, 6)):
        torch.manual_seed(n + steps)
        x = torch.rand(n, 6, requires_grad=True)
        out = fast(x, steps)
        model.zero_grad()
        out.pow(2).sum().backward()
        notes.append(
            [
                out.detach(),
                model.a.v.detach().clone(),
                model.b.v.detach().clone(),
                model.a.fired,
                model.first.weight.grad.clone(),
            ]
        )
        encoder = torch.randn(7 * n, 20, requires_grad=True)
        out = two(encoder, torch.randn(3), 0.1 * steps)
        out[0].sum().backward()
        notes.append([[o.detach() for o in out], encoder.grad, torch.rand(2)])
    return notes
