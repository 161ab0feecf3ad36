"""An encoder keeps the embeddings of recent users in an OrderedDict and evicts the least recently used.

Reported: pytorch/pytorch#198189 (move_to_end inside a compiled function is dropped, so that the wrong user is evicted).
Right: order, hits, evictions and the cached tensors are eager's after each call.
"""

from collections import Counter, OrderedDict, defaultdict, deque

import torch
from torch import nn

timed = True


class Encoder(nn.Module):
    def __init__(self, room):
        super().__init__()
        self.room = room
        self.lin = nn.Linear(3, 3)
        self.cache = OrderedDict()
        self.stats = Counter()
        self.recent = deque(maxlen=3)
        self.by_length = defaultdict(list)

    def forward(self, user, x):
        if user in self.cache:
            self.cache.move_to_end(user)
            self.stats["hit"] += 1
            out = self.cache[user]
        else:
            self.stats["miss"] += 1
            out = torch.tanh(self.lin(x))
            self.cache[user] = out
            if len(self.cache) > self.room:
                gone, _ = self.cache.popitem(last=False)
                self.stats[f"evicted {gone}"] += 1
        self.recent.appendleft(user)
        self.by_length[len(user)].append(out.shape[0])
        return out * 2


def touch(cache, key):
    cache.move_to_end(key, last=False)
    oldest = next(iter(cache))
    cache["sum"] = cache.pop("sum", torch.zeros(2)) + cache[key]
    return cache[oldest] + 1


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Encoder(2)
    fast = compile_fn(model)
    touched = compile_fn(touch)
    with torch.no_grad():
        for user in ("ann", "bob", "ann", "cy", "bob", "ann", "ann", "cy", "d", "cy"):
            out = fast(user, torch.full((2, 3), float(len(user))))
            notes.append(
                [
                    out,
                    list(model.cache),
                    dict(model.stats),
                    list(model.recent),
                    dict(model.by_length),
                    [v.clone() for v in model.cache.values()],
                ]
            )
    cache = OrderedDict((k, torch.full((2,), float(k2))) for k2, k in enumerate("abc"))
    for key in ("c", "a", "b", "b"):
        notes.append([touched(cache, key), list(cache), cache["sum"].clone()])
    return notes


def bench(compile_fn):
    torch.manual_seed(0)
    fast, turn, x = compile_fn(Encoder(2)), [0], torch.ones(2, 3)

    def call():
        turn[0] += 1
        with torch.no_grad():
            return fast("abc"[turn[0] % 3], x)

    return call
