"""A streaming convolution keeps the last frames in a buffer: it reads from it, shifts it and writes the new frames in one step.

Reported: pytorch/pytorch#164701 (the shift read what had just been written: zeros and ones in the wrong places).
Right: the buffer holds the latest frames in order after every call, whatever the chunk's length; overlapping copies raise as in eager.
"""

import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self, channels=2, keep=5):
        super().__init__()
        self.conv = nn.Conv1d(channels, 3, keep + 1)
        self.register_buffer("past", torch.zeros(1, channels, keep))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        whole = torch.cat([self.past, x], -1)
        self.past.copy_(whole[..., -self.past.shape[-1] :])
        self.at += x.shape[-1]
        return self.conv(whole), whole.sum()


def shift(buffer, x):
    out = torch.cat([buffer, x], 1)
    buffer[:] = out[:, -buffer.shape[1] :]
    return out


def shift_in_place(buffer, x):
    n = x.shape[1]
    if n < buffer.shape[1]:
        buffer[:, :-n] = buffer[:, n:].clone()
        buffer[:, -n:] = x
    else:
        buffer.copy_(x[:, -buffer.shape[1] :])
    return buffer.mean(1), buffer[:, 0] * 2


def ring(buffer, x, at):
    size = buffer.shape[1]
    where = (at + torch.arange(x.shape[1])) % size
    old = buffer[:, where].clone()
    buffer[:, where] = x
    ordered = torch.roll(buffer, -((at + x.shape[1]) % size), 1)
    return old, ordered, buffer.flip(1).cumsum(1)


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Causal()
    fast = compile_fn(model)
    shifts = [compile_fn(f) for f in (shift, shift_in_place, ring)]
    buffers = [torch.zeros(2, 6) for _ in range(3)]
    at = 0
    for n in (2, 2, 3, 1, 7, 2, 6):
        with torch.no_grad():
            out, total = fast(torch.randn(1, 2, n))
        notes.append([out, total, model.past.clone(), model.at.clone()])
        x = torch.arange(1.0, 2 * n + 1).reshape(2, n)
        notes.append([shifts[0](buffers[0], x), buffers[0].clone()])
        notes.append([shifts[1](buffers[1], x), buffers[1].clone()])
        notes.append([shifts[2](buffers[2], x[:, :6], at), buffers[2].clone()])
        at += min(n, 6)
    notes.append({k: v.clone() for k, v in model.state_dict().items()})
    return notes
