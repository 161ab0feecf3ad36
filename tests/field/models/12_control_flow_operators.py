"""torch.cond, while_loop, scan, associative_scan and map, inside compiled models, with inference and (where PyTorch can) training."""

import torch
from field_common import measure
from torch import nn


def run(compile_fn):
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    out = {}

    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.gate = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return torch.cond(
                self.gate(h).mean() > 0, lambda y: self.b(y).sin(), lambda y: y * 0.5, (h,)
            )

    model = compile_fn(Early())
    with torch.no_grad():
        out["cond"] = measure(
            "cond", lambda: [model(torch.full((4, 64), v)) for v in (0.5, -2.0)], reps=3
        )

    def newton(x):
        def go(i, y):
            return (i < 20) & ((y * y - x).abs().max() > 1e-5)

        def body(i, y):
            return i + 1, 0.5 * (y + x / y)

        return while_loop(go, body, (torch.zeros((), dtype=torch.long), torch.ones_like(x)))

    f = compile_fn(newton)
    with torch.no_grad():
        out["while"] = measure("while_loop", lambda: f(torch.rand(50) + 0.5), reps=3)

    def combine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    def linear_recurrence(a, x):
        return associative_scan(combine, (a, x), dim=1, combine_mode="generic")[1]

    g = compile_fn(linear_recurrence)
    a, x = torch.rand(4, 64, 32), torch.randn(4, 64, 32)
    with torch.no_grad():
        out["associative"] = measure("associative_scan", lambda: g(a, x), reps=3)

    cell = nn.GRUCell(16, 16)

    def rnn(xs, h):
        def step(h, x):
            h = cell(x, h)
            return h, h.clone()

        return scan(step, h, xs, dim=0)

    s = compile_fn(rnn)
    with torch.no_grad():
        out["scan"] = measure("scan", lambda: s(torch.randn(12, 3, 16), torch.zeros(3, 16)), reps=3)
    return out
