"""How embedding and classification models pick a token: by an index of tensors, by a size, by the mask, with left and right padding; the batch
and the length change from call to call."""

import field_common as common
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.emb, self.up, self.head = nn.Embedding(100, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.how = how

    def forward(self, ids, mask):
        x = torch.tanh(self.up(self.emb(ids)))
        return self.head(self.how(x, ids, mask))


def run(compile_fn):
    hows = {
        "minus one": lambda x, i, m: x[:, -1],
        "arange and minus one": lambda x, i, m: x[torch.arange(x.shape[0]), -1],
        "lengths": lambda x, i, m: x[torch.arange(x.shape[0]), m.sum(1) - 1],
        "argmax of ids": lambda x, i, m: x[torch.arange(x.shape[0]), i.argmax(-1)],
        "left or right": lambda x, i, m: torch.where(
            (m[:, -1].sum() == m.shape[0]), x[:, -1], x[torch.arange(x.shape[0]), m.sum(1) - 1]
        ),
        "arange and size": lambda x, i, m: x[torch.arange(x.shape[0]), x.shape[1] - 1],
    }
    out = {}
    g = torch.Generator().manual_seed(0)
    for name, how in hows.items():
        common.seed(0)
        model = compile_fn(Model(how))
        r = []
        for b, s in ((3, 17), (4, 29), (5, 31), (2, 40), (7, 19), (4, 22)):
            ids = torch.randint(0, 100, (b, s), generator=g)
            mask = (torch.arange(s)[None] < torch.randint(1, s + 1, (b, 1), generator=g)).long()
            with torch.no_grad():
                r.append(model(ids, mask))
            model.zero_grad()
            model(ids, mask).square().mean().backward()
            r.append(model.up.weight.grad.clone())
        out[name] = r
    # the same in a plain function
    pool = compile_fn(lambda x: (x * 2)[torch.arange(x.shape[0]), x.shape[1] - 1])
    out["function"] = [
        pool(torch.randn(b, s, 4, generator=g)) for b, s in ((3, 17), (4, 29), (5, 31), (2, 40))
    ]
    return out
