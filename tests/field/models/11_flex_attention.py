"""flex_attention, compiled as everybody does it: score mods (ALiBi, soft cap), block masks
(causal, sliding window, documents), GQA, sequence lengths and document layouts that change. (PyTorch has no backward of it on CPUs.)"""

import field_common as common
import torch
from field_common import measure, note
from torch import nn

TOL = 3.0


def run(compile_fn):
    from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

    out = {}
    flex = compile_fn(flex_attention)
    B, H, S, D = 2, 4, 128, 32
    q, k, v = (torch.randn(B, H, S, D) for _ in range(3))
    slopes = torch.exp2(-torch.arange(1, H + 1).float())

    def alibi(score, b, h, i, j):
        return score + (j - i) * slopes[h]

    def softcap(score, b, h, i, j):
        return 20 * torch.tanh(score / 20)

    def causal(b, h, i, j):
        return i >= j

    def window(b, h, i, j):
        return (i - j).abs() < 32

    with torch.no_grad():
        out["plain"] = measure("plain", lambda: flex(q, k, v), reps=3)
        out["alibi"] = measure("alibi", lambda: flex(q, k, v, score_mod=alibi), reps=3)
        mask = create_block_mask(
            and_masks(causal, window), None, None, S, S, device="cpu", BLOCK_SIZE=32
        )
        out["masked"] = measure(
            "block mask", lambda: flex(q, k, v, score_mod=softcap, block_mask=mask), reps=3
        )
        g = flex(q, k[:, :2], v[:, :2], enable_gqa=True, block_mask=mask)
        out["gqa"] = g

    made = common.counters()["made"]
    with torch.no_grad():
        for length in (96, 128, 160, 192, 224):
            a, b, c = (torch.randn(B, H, length, D) for _ in range(3))
            ids = torch.randint(0, 4, (length,)).sort()[0]

            def documents(bb, h, i, j):
                return (i >= j) & (ids[i] == ids[j])

            m = create_block_mask(
                documents, None, None, length, length, device="cpu", BLOCK_SIZE=32
            )
            out[f"documents {length}"] = measure(
                "documents", lambda: flex(a, b, c, block_mask=m), reps=1
            )
    note("made by 5 layouts of documents", common.counters()["made"] - made)

    class Attention(nn.Module):
        def __init__(self, d=64, h=4):
            super().__init__()
            self.qkv = nn.Linear(d, 3 * d)
            self.out = nn.Linear(d, d)
            self.h = h

        def forward(self, x, mask):
            b, s, d = x.shape
            q, k, v = self.qkv(x).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
            y = flex_attention(q, k, v, block_mask=mask)
            return self.out(y.transpose(1, 2).reshape(b, s, d))

    common.seed(2)
    net = nn.ModuleList([Attention() for _ in range(2)])
    x = torch.randn(2, 64, 64)
    causal_mask = create_block_mask(causal, None, None, 64, 64, device="cpu", BLOCK_SIZE=32)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = net

        def forward(self, x, mask):
            for layer in self.layers:
                x = x + layer(x, mask)
            return x

    model = compile_fn(Model())
    with torch.no_grad():
        out["model"] = measure("model, inference", lambda: model(x, causal_mask), reps=3)

    return out
