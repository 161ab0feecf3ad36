"""Batch sizes and sequence lengths that change from call to call, as a server or bucketed training sees them: a transformer encoder, a
convolutional network with images of many sizes, ragged last batches, sizes of one and zero, flattened tokens. How much is made is noted."""

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.nn import functional as F

TOL = 3.0


class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb, self.pos = nn.Embedding(200, d), nn.Embedding(256, d)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "o": nn.Linear(d, d),
                    "n2": nn.LayerNorm(d),
                    "up": nn.Linear(d, 4 * d),
                    "down": nn.Linear(4 * d, d),
                }
            )
            for _ in range(2)
        )

    def forward(self, ids, mask):
        b, s = ids.shape
        x = self.emb(ids) + self.pos(torch.arange(s))
        m = mask[:, None, None, :].expand(b, 1, s, s)
        for l in self.layers:
            q, k, v = l["qkv"](l["n1"](x)).view(b, s, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + l["o"](
                F.scaled_dot_product_attention(q, k, v, attn_mask=m)
                .transpose(1, 2)
                .reshape(b, s, -1)
            )
            x = x + l["down"](F.gelu(l["up"](l["n2"](x))))
        w = mask[..., None].to(x.dtype)
        return F.normalize((x * w).sum(1) / w.sum(1).clamp(min=1), dim=-1)


def run(compile_fn):
    out = {}
    common.seed(0)
    model = compile_fn(Encoder().eval())
    g = torch.Generator().manual_seed(1)
    sizes = [
        (int(torch.randint(1, 9, (1,), generator=g)), int(torch.randint(1, 60, (1,), generator=g)))
        for _ in range(40)
    ]
    it = iter(sizes * 2)

    def serve():
        b, s = next(it)
        ids = torch.randint(0, 200, (b, s), generator=g)
        mask = torch.arange(s)[None] < torch.randint(1, s + 1, (b, 1), generator=g)
        with torch.no_grad():
            return model(ids, mask)

    made = common.counters()
    out["server"] = measure("server", serve, reps=59)
    note("server", {k: v - made[k] for k, v in common.counters().items()})

    common.seed(2)
    cnn = compile_fn(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 8, 1),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(128, 5),
        )
    )
    opt = torch.optim.SGD(cnn.parameters(), lr=0.01)
    it2 = iter(
        [
            (4, 32, 32),
            (4, 40, 32),
            (4, 48, 64),
            (2, 33, 47),
            (1, 64, 64),
            (3, 56, 24),
            (4, 32, 32),
            (5, 28, 36),
            (6, 20, 52),
            (4, 44, 44),
        ]
    )

    def train():
        b, h, w = next(it2)
        opt.zero_grad()
        loss = F.cross_entropy(
            cnn(torch.randn(b, 3, h, w, generator=g)), torch.randint(0, 5, (b,), generator=g)
        )
        loss.backward()
        opt.step()
        return loss.detach()

    made = common.counters()
    out["images"] = measure("images, training", train, reps=9)
    note("images", {k: v - made[k] for k, v in common.counters().items()})

    common.seed(3)
    enc = compile_fn(Encoder())
    made = common.counters()
    it3 = iter(
        [
            (8, 20),
            (8, 31),
            (8, 25),
            (3, 40),
            (8, 17),
            (8, 20),
            (1, 9),
            (6, 50),
            (8, 33),
            (2, 21),
            (7, 44),
            (5, 12),
        ]
    )

    def pairs():
        b, s = next(it3)
        ids = torch.randint(0, 200, (b, s), generator=g)
        mask = torch.arange(s)[None] < torch.randint(1, s + 1, (b, 1), generator=g)
        a = enc(ids, mask)
        loss = F.cross_entropy(a @ a.T * 5, torch.arange(b))
        enc.zero_grad()
        loss.backward()
        return loss.detach()

    out["pairs"] = measure("text, training", pairs, reps=11)
    note("text, training", {k: v - made[k] for k, v in common.counters().items()})

    @compile_fn
    def odd(x):
        return (
            x.relu().sum(0) / max(x.shape[0], 1),
            x.new_zeros(x.shape[0], 3),
            torch.cat([x, x[:1]]) if x.shape[0] else x,
        )

    out["zero and one"] = [odd(torch.randn(n, 4, generator=g)) for n in (3, 1, 0, 2, 5, 0, 1, 7)]
    return out
