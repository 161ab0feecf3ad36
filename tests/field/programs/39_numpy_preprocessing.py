"""A pipeline mixes NumPy into a compiled function: rounding, clipping, small integers, medians, and a NumPy scalar as a scale.

Reported: pytorch/pytorch#198052, #198056 (fix, cbrt, clip, sign, cumsum, square, median differ), #141343, #141258 (NumPy scalars).
Right: NumPy's own values, dtypes and shapes.
"""

import numpy as np
import torch
import torch.nn.functional as F


def floats(a):
    return (
        np.fix(a),
        np.cbrt(a),
        np.sign(a),
        np.heaviside(a, 0.5),
        np.median(a),
        np.percentile(a, 30),
        np.square(a),
        np.nan_to_num(a).sum(),
        np.trunc(a),
        np.rint(a),
    )


def integers(a):
    return (
        np.cumsum(a),
        np.cumprod(a[:3]),
        np.square(a),
        np.clip(a, -3, 5),
        np.sum(a),
        np.any(a),
        a / np.int8(2),
        a // 2,
        np.mean(a),
        np.bincount(np.abs(a.astype(np.int64)) % 4),
        np.unique(a),
    )


class Upsampler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = np.prod([2, 3])
        self.gain = np.float64(1.5)
        self.shift = np.float32(0.25)

    def forward(self, x):
        y = F.interpolate(x, scale_factor=float(1 / self.scale), mode="linear")
        n = int(round(np.floor(3.1 * self.gain)))
        return (
            y * self.gain + self.shift,
            x[..., :n],
            torch.full((2,), self.gain),
            y.numpy().mean(),
            type(1 / self.scale).__name__,
        )


def both(x, a):
    b = np.asarray(a) * 2
    y = x + torch.from_numpy(b)
    z = y.numpy()
    z[0] = 7
    b += 1
    return y, torch.as_tensor(b), z.shape, np.stack([z, b]).max(axis=0)


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (floats, integers, both)]
    model = compile_fn(Upsampler())
    for n in (7, 7, 9):
        a = np.array([1.5, -1.5, 2.5, -0.5, 8.0, -8.0, 0.0, 3.2, -2.7][:n], dtype=np.float32)
        notes.append(fast[0](a))
        notes.append(fast[0](a.astype(np.float64)))
        notes.append(fast[1](np.array([-128, -100, -3, 0, 5, 100, 127, 1, 2][:n], dtype=np.int8)))
        notes.append(fast[1](np.array([0, 1, 3, 200, 255, 7, 9, 11, 2][:n], dtype=np.uint8)))
        with torch.no_grad():
            notes.append(model(torch.arange(12.0 * n).reshape(1, n, 12)))
        a = np.arange(3.0, dtype=np.float32)
        notes.append([fast[2](torch.ones(3), a), a.copy()])
    return notes
