"""A decoder in the manner of gpt-fast: static caches as buffers written at `input_pos`, prefill and decode compiled apart, sampling by
exponentials, int8 weights dequantised on the fly, speculative decoding with a draft."""

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.nn import functional as F


class Cache(nn.Module):
    def __init__(self, b, s, h, d):
        super().__init__()
        self.register_buffer("k", torch.zeros(b, h, s, d))
        self.register_buffer("v", torch.zeros(b, h, s, d))

    def update(self, pos, k, v):
        self.k[:, :, pos] = k
        self.v[:, :, pos] = v
        return self.k, self.v


class Int8Linear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        w = linear.weight.detach()
        scale = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (w / scale).round().to(torch.int8))
        self.register_buffer("scales", scale.squeeze(1))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


def rotary(x, freqs):
    a, b = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    f = freqs.view(1, x.size(1), 1, -1, 2)
    return (
        torch.stack([a * f[..., 0] - b * f[..., 1], b * f[..., 0] + a * f[..., 1]], -1)
        .flatten(3)
        .type_as(x)
    )


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w3, self.w2 = (
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(2 * d, d, bias=False),
        )
        self.h, self.cache = h, None

    def forward(self, x, pos, freqs, mask):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.h, -1) for t in self.wqkv(self.n1(x)).split(d, -1))
        q, k, v = (t.transpose(1, 2) for t in (rotary(q, freqs), rotary(k, freqs), v))
        k, v = self.cache.update(pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, s, d)
        x = x + self.wo(y)
        n = self.n2(x)
        return x + self.w2(F.silu(self.w1(n)) * self.w3(n))


class Model(nn.Module):
    def __init__(self, vocab=512, d=256, h=8, layers=4, length=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)
        t = torch.outer(
            torch.arange(length).float(),
            1.0 / (10000 ** (torch.arange(0, d // h, 2).float() / (d // h))),
        )
        self.register_buffer("freqs", torch.stack([t.cos(), t.sin()], -1), persistent=False)
        self.register_buffer(
            "mask", torch.tril(torch.ones(length, length, dtype=torch.bool)), persistent=False
        )
        self.length, self.shape = length, (h, d // h)

    def setup(self, b):
        for block in self.blocks:
            block.cache = Cache(b, self.length, *self.shape)

    def forward(self, ids, pos):
        x = self.emb(ids)
        mask = self.mask[None, None, pos]
        freqs = self.freqs[pos]
        for block in self.blocks:
            x = block(x, pos, freqs, mask)
        return self.head(self.norm(x))


def pick(logits, temperature=0.8, top_k=50):
    logits = logits[:, -1] / temperature
    v, _ = torch.topk(logits, top_k)
    logits = torch.where(logits < v[:, [-1]], -float("inf"), logits)
    probs = logits.softmax(-1)
    q = torch.empty_like(probs).exponential_(1)
    return torch.argmax(probs / q, -1, keepdim=True).to(torch.int), probs


def decode_one(model, ids, pos):
    return pick(model(ids, pos))


def prefill(model, ids, pos):
    return pick(model(ids, pos))[0]


def run(compile_fn):
    out = {}
    decode = (
        compile_fn(decode_one, mode="reduce-overhead", fullgraph=True)
        if common.mode() == "ingot"
        else compile_fn(decode_one)
    )
    fill = compile_fn(prefill, dynamic=True)
    for name in ("float", "int8"):
        common.seed(0)
        model = Model().eval()
        if name == "int8":
            for m in list(model.modules()):
                for n, c in list(m.named_children()):
                    if isinstance(c, nn.Linear):
                        setattr(m, n, Int8Linear(c))
        model.setup(1)
        with torch.no_grad():
            for prompt in (5, 9, 14):
                common.seed(prompt)
                ids = torch.randint(0, 512, (1, prompt))
                tokens = [fill(model, ids, torch.arange(prompt))]
                pos = torch.tensor([prompt])

                def one():
                    t, p = decode(model, tokens[-1].view(1, 1), pos.clone())
                    tokens.append(t.clone())
                    pos.add_(1)
                    return p.max()

                tops = measure(f"decode {name}", one, reps=20)
                out[f"{name} {prompt}"] = [torch.cat(tokens, 1), torch.stack(tops)]
    # speculative: a draft proposes 3, the target looks at them at once
    common.seed(1)
    target, draft = Model().eval(), Model(d=64, h=2, layers=1).eval()
    target.setup(1), draft.setup(1)

    def propose(model, ids, pos):
        return model(ids, pos)[:, -1].argmax(-1, keepdim=True)

    def verify(model, ids, pos):
        return model(ids, pos).argmax(-1)

    propose, verify = compile_fn(propose), compile_fn(verify)
    with torch.no_grad():
        ids = torch.randint(0, 512, (1, 6))
        target(ids, torch.arange(6)), draft(ids, torch.arange(6))
        seq, n = ids[0].tolist(), 6
        while len(seq) < 40:
            guess, last = [], seq[-1]
            for i in range(3):
                last = int(propose(draft, torch.tensor([[last]]), torch.tensor([len(seq) - 1 + i])))
                guess.append(last)
            check = verify(
                target, torch.tensor([[seq[-1], *guess]]), torch.arange(len(seq) - 1, len(seq) + 3)
            )[0].tolist()
            ok = 0
            while ok < 3 and guess[ok] == check[ok]:
                ok += 1
            seq += guess[:ok] + [check[ok]]
        out["speculative"] = seq[:40]
    note("counters", common.counters())
    return out
