"""Physics code differentiates a compiled function that fills columns of its output in place, with torch.func on the outside.

Reported: pytorch/pytorch#136662 (func.grad over a compiled function silently wrong), #154036 (jacrev, vmap and aux give another shape).
Right: eager's gradient, Jacobian and aux values, with the compiled function inside or around the transform.
"""

import torch
from torch.func import grad, jacrev, jvp, vjp, vmap


def fill(x):
    y = torch.zeros_like(x)
    y[:, 0] += x[:, 2].abs()
    y[:, 1] = x[:, 0] * x[:, 1]
    y[0] = y[0] * 2 + x[1].exp()
    return y


def wave(x, t):
    d = 4 * 0.07 * (t + 1)
    return torch.exp(-torch.square(x - 4 * t) / d) + torch.exp(
        -torch.square(x - 4 * t - 2 * torch.pi) / d
    )


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast, fast_wave = compile_fn(fill), compile_fn(wave)

    def burgers(x, t):
        slope, value = jacrev(lambda z: tuple([fast_wave(z, t)] * 2), has_aux=True)(x + torch.pi)
        return -(2 * 0.07 / value) * slope + 4

    around = compile_fn(grad(lambda x: fill(x).sum()))
    whole = compile_fn(lambda x, t: vmap(burgers, (0, None))(x, t))
    for n in (2, 2, 4):
        x = torch.randn(n, 3)
        notes.append(
            [
                fast(x),
                grad(lambda v: fast(v).sum())(x),
                around(x),
                vmap(grad(lambda v: fast(v[None].expand(2, 3)).sum()))(x),
            ]
        )
        notes.append(jvp(fast, (x,), (torch.ones_like(x),)))
        value, pull = vjp(fast, x)
        notes.append([value, pull(torch.ones_like(value))])
        notes.append(jacrev(fast)(x))
        points = torch.linspace(-3, 3, 5 * n, dtype=torch.float64)
        notes.append([vmap(burgers, (0, None))(points, 0.5), whole(points, 0.25 * n)])
        leaf = x.clone().requires_grad_()
        fast(leaf).sum().backward()
        notes.append(leaf.grad)
    return notes
