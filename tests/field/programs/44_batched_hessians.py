"""Newton steps for many points: Hessians and Jacobians under vmap, forward and reverse, with parameters as pytrees.

Reported: pytorch/pytorch#183015, #160508, #151196, #154284 (vmap of hessian or jacfwd compiled fails).
Right: eager's Hessians, Newton iterates and per-sample Jacobians.
"""

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap


def rosen(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def newton(points):
    for _ in range(2):
        g, h = vmap(grad(rosen))(points), vmap(hessian(rosen))(points)
        points = points - torch.linalg.solve(h, g)
    return points


def undistort(xy, wanted, k):
    def f(p):
        r = (p**2).sum()
        return p * (1 + k[0] * r + k[1] * r * r) - wanted

    for _ in range(3):
        xy = xy - torch.linalg.solve(jacfwd(f)(xy), f(xy))
    return xy


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))

    def per_sample(params, x):
        return functional_call(net, params, (x[None],)).squeeze(0)

    fast = [
        compile_fn(vmap(hessian(rosen))),
        compile_fn(newton),
        compile_fn(vmap(undistort, (0, 0, None))),
        compile_fn(vmap(jacrev(per_sample), (None, 0))),
        compile_fn(vmap(jacfwd(net))),
        compile_fn(hessian(lambda x: net(x).sum())),
    ]
    params = {k: v.detach() for k, v in net.named_parameters()}
    for n in (2, 2, 5):
        points = torch.randn(n, 3, dtype=torch.float64)
        wanted = torch.rand(n, 2, dtype=torch.float64) * 0.3
        x = torch.randn(n, 3)
        with torch.no_grad():
            notes.append(
                [
                    fast[0](points),
                    fast[1](points),
                    fast[2](wanted.clone(), wanted, torch.tensor([0.1, 0.01], dtype=torch.float64)),
                ]
            )
        notes.append([fast[3](params, x), fast[4](x).detach(), fast[5](x[0]).detach()])
        params["0.bias"] = params["0.bias"] + 1
        with torch.no_grad():
            net[2].weight.mul_(1.5)
        notes.append(
            [
                v.detach()
                for v in compile_fn(lambda x, v: jvp(net, (x,), (v,)))(x, torch.ones_like(x))
            ]
        )
    return notes
