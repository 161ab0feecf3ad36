"""Layers of one class run in a loop and read a global request object that the loop replaces; a helper is monkeypatched in between.

Reported: pytorch/pytorch#191821 (a region reused what it had read of a replaced global), #103563 (nested lists in a loop).
Right: each turn reads what the global is then; the global afterwards is what the program left.
"""

from dataclasses import dataclass, field

import torch


@dataclass
class Request:
    hidden: torch.Tensor
    depth: int = 0
    trace: list = field(default_factory=list)


request = Request(torch.zeros(()))
gain = 2.0
table = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def helper(x):
    return x * gain


def region():
    request.trace.append(request.depth)
    return helper(request.hidden) + request.depth


def loop(hidden, turns):
    global request, gain
    for k in range(turns):
        request = Request(hidden, k, request.trace if k else [])
        hidden = region()
        if k == 1:
            gain = gain + 1
    return hidden


def nested(x):
    data = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    for i in range(3):
        data[0][i] = x if i == 0 else data[0][i - 1] + 1
        table[i][i] = table[i][i] + 1
    rows = [row[:] for row in data]
    rows[1].append(rows)
    del rows[2][0]
    return (
        data[0][-1],
        sum(table[k][k] for k in range(3)),
        len(rows[1]),
        rows[2],
        data[0] + rows[0][1:],
    )


def run(compile_fn):
    global helper, gain
    notes = []
    fast, fast_nested = compile_fn(loop), compile_fn(nested)
    original = helper
    for turns in (2, 2, 3, 4, 3):
        notes.append(
            [
                fast(torch.ones(2), turns),
                gain,
                request.depth,
                list(request.trace),
                request.hidden.clone(),
            ]
        )
        notes.append([fast_nested(torch.rand(2) * 0 + turns), [list(r) for r in table]])
        if turns == 4:
            helper = lambda x: original(x) - 1
        gain = float(turns)
    helper = original
    notes.append(fast(torch.ones(2), 3))
    return notes
