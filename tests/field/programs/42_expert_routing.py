"""A mixture of experts sends tokens to their top experts with one_hot, where and index_add, with capacity and dropped tokens.

Reported: huggingface/transformers#30793, #48653; torch-spyre/torch-spyre#3638 (index_add combines wrong); PrimeIntellect-ai/prime-rl#996.
Right: eager's combined outputs, loads, losses and gradients, also when an expert gets no token.
"""

import torch
import torch.nn.functional as F
from torch import nn

timed = True


class Experts(nn.Module):
    def __init__(self, width=8, experts=4, top=2):
        super().__init__()
        self.top, self.count = top, experts
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        batch, length, width = x.shape
        x = x.reshape(-1, width)
        logits = self.gate(x)
        weights, picked = torch.topk(F.softmax(logits, dim=1, dtype=torch.float), self.top, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        mask = F.one_hot(picked, num_classes=self.count).permute(2, 1, 0)
        for e in range(self.count):
            rank, token = torch.where(mask[e])
            if token.numel() == 0:
                continue
            state = self.experts[e](x[None, token].reshape(-1, width)) * weights[token, rank, None]
            out.index_add_(0, token, state.to(x.dtype))
        load = mask.float().mean((1, 2))
        balance = (load * F.softmax(logits, 1).mean(0)).sum() * self.count
        return out.reshape(batch, length, width), balance, picked


def grouped(x, picked, weights, matrices):
    order = picked.flatten().argsort(stable=True)
    counts = torch.bincount(picked.flatten(), minlength=matrices.shape[0])
    parts = x[order // picked.shape[1]].split(counts.tolist())
    done = torch.cat([p @ matrices[e] for e, p in enumerate(parts)])
    back = torch.empty_like(done)
    back[order] = done
    return (back.view(*picked.shape, -1) * weights[..., None]).sum(1), counts


def capacity(logits, limit):
    picked = logits.argmax(-1)
    hot = F.one_hot(picked, logits.shape[-1])
    place = (hot.cumsum(0) * hot).sum(-1) - 1
    keep = place < limit
    slots = torch.full((logits.shape[-1], limit), -1).index_put(
        (picked[keep], place[keep]), torch.arange(picked.shape[0])[keep]
    )
    return slots, keep, torch.histc(picked.float(), bins=4, min=0, max=3)


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Experts()
    fast, fast_grouped, fast_capacity = compile_fn(model), compile_fn(grouped), compile_fn(capacity)
    for shape in ((2, 5, 8), (2, 5, 8), (1, 1, 8), (3, 4, 8)):
        x = torch.randn(shape, requires_grad=True)
        out, balance, picked = fast(x)
        model.zero_grad()
        (out.pow(2).sum() + balance).backward()
        notes.append(
            [
                out.detach(),
                balance.detach(),
                picked,
                x.grad,
                [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            ]
        )
        flat = torch.randn(picked.shape[0], 8, requires_grad=True)
        matrices = torch.randn(4, 8, 3, requires_grad=True)
        out, counts = fast_grouped(flat, picked, torch.rand(picked.shape), matrices)
        out.sum().backward()
        notes.append([out.detach(), counts, flat.grad, matrices.grad])
        notes.append(fast_capacity(torch.randn(shape[0] * shape[1], 4), 2))
    return notes


def bench(compile_fn):
    torch.manual_seed(0)
    fast, x = compile_fn(Experts()), torch.randn(2, 16, 8)

    def call():
        out, balance, _ = fast(x)
        (out.sum() + balance).backward()

    return call
