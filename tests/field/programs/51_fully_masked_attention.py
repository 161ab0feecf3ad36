"""Attention over padded batches in which whole rows are masked, with boolean and float masks, weights asked for, and training.

Reported: pytorch/pytorch#41508, #189045, #100318 (NaN in and out of masked rows differ between paths and compiled code).
Right: NaN exactly where eager has it, in outputs and gradients, and eager's finite numbers elsewhere.
"""

import torch
import torch.nn.functional as F
from torch import nn


def manual(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hard = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    soft = torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(-1)
    safe = torch.nan_to_num(hard, nan=0.0)
    return hard @ v, soft @ v, safe @ v, (scores * mask).logsumexp(-1), hard.isnan().any(-1)


def fused(q, k, v, mask):
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    return (
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q[:, :1], k, v, attn_mask=mask[:, :1], scale=0.3),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x, padding, need):
        y, w = self.attn(x, x, x, key_padding_mask=padding, need_weights=need)
        return self.layer(x, src_key_padding_mask=padding), y, w


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast, fast_fused, model = compile_fn(manual), compile_fn(fused), Encoder()
    encoder = compile_fn(model)
    for n in (5, 5, 7):
        q, k, v = (torch.randn(2, 3, n, 4, requires_grad=True) for _ in range(3))
        mask = torch.rand(2, 1, n, n) > 0.3
        mask[0, :, 1] = False
        mask[:, :, 0, 0] = True
        for f in (fast, fast_fused):
            out = f(q, k, v, mask.expand(2, 3, n, n))
            grads = torch.autograd.grad(sum(o.float().sum() for o in out[:3]), (q, k, v))
            notes.append([[o.detach() for o in out], grads])
        padding = torch.zeros(2, n, dtype=torch.bool)
        padding[1, 2:] = True
        for step in range(3):
            if step == 1:
                padding[1] = True
            model.train(step < 2)
            x = torch.randn(2, n, 8, requires_grad=True)
            out, y, w = encoder(x, padding, step != 1)
            model.zero_grad()
            (out[0].sum() + y[0].pow(2).sum()).backward()
            notes.append(
                [
                    out.detach(),
                    y.detach(),
                    None if w is None else w.detach(),
                    x.grad,
                    model.attn.in_proj_weight.grad.clone(),
                ]
            )
        model.eval()
        with torch.no_grad():
            padding[1] = False
            padding[1, 1:] = True
            notes.append(encoder(torch.randn(2, n, 8), padding, True))
    return notes
