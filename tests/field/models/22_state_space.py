"""Mamba: transformers' Mamba and Mamba2 with random weights (training, `generate` with their cache) and a selective scan of one's own in
three forms: a loop over time, chunks with cumulative sums, a parallel scan by doubling; a linear-attention recurrence (RWKV-like)."""

import field_common as common
import torch
from field_common import grads, measure, note
from torch import nn
from torch.nn import functional as F

TOL = 4.0


def loop_scan(u, delta, A, B, C):
    dA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
    dBu = torch.einsum("bld,bln,bld->bldn", delta, B, u)
    x = torch.zeros(u.shape[0], u.shape[2], A.shape[1])
    ys = []
    for t in range(u.shape[1]):
        x = dA[:, t] * x + dBu[:, t]
        ys.append(torch.einsum("bdn,bn->bd", x, C[:, t]))
    return torch.stack(ys, 1)


def doubling_scan(u, delta, A, B, C):
    a = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
    b = torch.einsum("bld,bln,bld->bldn", delta, B, u)
    step = 1
    while step < u.shape[1]:
        b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return torch.einsum("bldn,bln->bld", b, C)


class Mixer(nn.Module):
    def __init__(self, scan, d=48, n=8):
        super().__init__()
        self.scan, self.n = scan, n
        self.inp, self.conv, self.proj = (
            nn.Linear(d, 2 * d),
            nn.Conv1d(d, d, 4, padding=3, groups=d),
            nn.Linear(d, 2 * n + d),
        )
        self.A, self.D, self.out = (
            nn.Parameter(torch.log(torch.arange(1, n + 1).float().repeat(d, 1))),
            nn.Parameter(torch.ones(d)),
            nn.Linear(d, d),
        )

    def forward(self, x):
        u, z = self.inp(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        B, C, d = self.proj(u).split([self.n, self.n, u.shape[-1]], -1)
        y = self.scan(u, F.softplus(d), -torch.exp(self.A), B, C) + u * self.D
        return self.out(y * F.silu(z))


def run(compile_fn):
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

    out = {}
    for scan in (loop_scan, doubling_scan):
        common.seed(0)
        model = compile_fn(Mixer(scan))
        x = torch.randn(2, 48, 48)
        made = common.counters()

        def step():
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        out[scan.__name__] = measure(scan.__name__ + " train", step, reps=3)
        out[scan.__name__ + " grads"] = grads(model)
        with torch.no_grad():
            out[scan.__name__ + " lengths"] = [
                model(torch.randn(2, n, 48)).sum() for n in (20, 33, 48, 57)
            ]
        note(scan.__name__, {k: v - made[k] for k, v in common.counters().items()})
    ids = torch.randint(1, 200, (2, 16))
    for name, model in (
        (
            "mamba",
            MambaForCausalLM(
                MambaConfig(
                    vocab_size=200,
                    hidden_size=48,
                    state_size=8,
                    num_hidden_layers=2,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=None,
                )
            ),
        ),
        (
            "mamba2",
            Mamba2ForCausalLM(
                Mamba2Config(
                    vocab_size=200,
                    hidden_size=48,
                    state_size=16,
                    num_hidden_layers=2,
                    num_heads=6,
                    head_dim=16,
                    n_groups=2,
                    chunk_size=8,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=None,
                )
            ),
        ),
    ):
        model = compile_fn(model)
        made = common.counters()

        def step():
            model.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            return loss.detach()

        out[name] = measure(name + " train", step, reps=2)
        model.eval()
        with torch.no_grad():
            out[name + " text"] = measure(
                name + " generate",
                lambda: model.generate(ids[:1], max_new_tokens=10, do_sample=False),
                reps=1,
            )
        note(name, {k: v - made[k] for k, v in common.counters().items()})

    def rwkv(k, v, w, u):
        B, T, C = k.shape
        num, den, ys = torch.zeros(B, C), torch.zeros(B, C), []
        for t in range(T):
            ek = torch.exp(k[:, t])
            ys.append((num + torch.exp(u) * ek * v[:, t]) / (den + torch.exp(u) * ek))
            num = torch.exp(-w) * num + ek * v[:, t]
            den = torch.exp(-w) * den + ek
        return torch.stack(ys, 1)

    f = compile_fn(rwkv)
    args = [
        torch.randn(2, 64, 32, requires_grad=True),
        torch.randn(2, 64, 32, requires_grad=True),
        torch.rand(32, requires_grad=True),
        torch.randn(32, requires_grad=True),
    ]

    def both():
        for a in args:
            a.grad = None
        y = f(*args)
        y.square().sum().backward()
        return [y.detach()] + [a.grad for a in args]

    out["rwkv"] = measure("rwkv loop, forward and backward", both, reps=3)
    return out
