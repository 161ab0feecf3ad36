"""torch.func in users' code: per-sample gradients, ensembles of stacked models, jvp, Hessians, Jacobians, a neural tangent kernel, MAML with
`functional_call`, Hessian-vector products; compiled outside the transforms and (where PyTorch lets one) inside."""

import copy

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn import functional as F

TOL = 4.0


def net():
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.n, self.f = nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.f(F.relu(self.n(self.c(x))).mean((2, 3)))


def run(compile_fn):
    out = {}

    def counted(name, f, *args, reps=3):
        made = common.counters()
        out[name] = measure(name, lambda: f(*args), reps=reps)
        note(
            name,
            {
                k: v - made[k]
                for k, v in common.counters().items()
                if k in ("made", "graphs", "breaks", "fallbacks")
            },
        )

    cnn = Cnn()
    p = {k: v.detach() for k, v in cnn.named_parameters()}

    def loss(p, x, y):
        return F.cross_entropy(functional_call(cnn, p, (x[None],)), y[None])

    x, y = torch.randn(32, 1, 12, 12), torch.randint(0, 5, (32,))
    per_sample = compile_fn(vmap(grad_and_value(loss), in_dims=(None, 0, 0)))
    counted("per-sample gradients", per_sample, p, x, y)

    def dp_step(p, x, y):  # differential privacy: clip each sample's gradient, add them
        g = vmap(grad(loss), in_dims=(None, 0, 0))(p, x, y)
        norms = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return {
            k: p[k] - 0.1 * torch.einsum("b,b...->...", scale, v) / len(x) for k, v in g.items()
        }

    counted("clipped step", compile_fn(dp_step), p, x, y)

    models = [net() for _ in range(5)]
    params, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def ensemble(params, buffers, x):
        return vmap(lambda p, b, t: functional_call(base, (p, b), (t,)), in_dims=(0, 0, None))(
            params, buffers, x
        )

    z = torch.randn(16, 8)
    counted(
        "ensemble", compile_fn(ensemble), {k: v.detach() for k, v in params.items()}, buffers, z
    )
    opt = torch.optim.Adam(params.values(), lr=1e-3)
    f = compile_fn(ensemble)

    def train():
        opt.zero_grad()
        l = f(params, buffers, z).square().mean()
        l.backward()
        opt.step()
        return l.detach()

    out["ensemble training"] = measure("ensemble training", train, reps=4)

    m = net()
    q = {k: v.detach() for k, v in m.named_parameters()}
    g = lambda x: functional_call(m, q, (x,))
    counted("jvp", compile_fn(lambda x, v: jvp(g, (x,), (v,))), z, torch.ones_like(z))
    counted("vjp", compile_fn(lambda x: (lambda o: o[1](torch.ones_like(o[0])))(vjp(g, x))), z)
    counted("hessian", compile_fn(vmap(hessian(lambda x: g(x).square().sum()))), z)
    counted("jacrev", compile_fn(vmap(jacrev(g))), z)
    counted("jacfwd", compile_fn(vmap(jacfwd(g))), z)
    counted(
        "hvp",
        compile_fn(lambda x, v: jvp(grad(lambda t: g(t).pow(2).sum()), (x,), (v,))[1]),
        z,
        torch.ones_like(z),
    )

    def ntk(x1, x2):
        def single(p, x):
            return functional_call(m, p, (x[None],))[0]

        j1 = vmap(jacrev(single), (None, 0))(q, x1)
        j2 = vmap(jacrev(single), (None, 0))(q, x2)
        return sum(
            torch.einsum("Naf,Mbf->NMab", a.flatten(2), b.flatten(2))
            for a, b in zip(j1.values(), j2.values())
        )

    counted("neural tangent kernel", compile_fn(ntk), z[:6], z[6:10])

    def laplacian(x):  # a physics-informed loss
        u = lambda t: functional_call(m, q, (t,)).sum()
        return vmap(lambda t: torch.diagonal(hessian(u)(t)).sum())(x)

    counted("laplacian", compile_fn(laplacian), z)

    def maml(params, xs, ys, xq, yq):
        def task(x, y, x2, y2):
            inner = params
            for _ in range(2):
                gr = grad(lambda p: F.mse_loss(functional_call(m, p, (x,)), y))(inner)
                inner = {k: v - 0.1 * gr[k] for k, v in inner.items()}
            return F.mse_loss(functional_call(m, inner, (x2,)), y2)

        return vmap(task)(xs, ys, xq, yq).mean()

    meta = compile_fn(grad_and_value(maml))
    args = (
        q,
        torch.randn(4, 5, 8),
        torch.randn(4, 5, 4),
        torch.randn(4, 5, 8),
        torch.randn(4, 5, 4),
    )
    counted("maml", meta, *args)

    # the model is compiled, the transform is around it
    c = compile_fn(net())
    try:
        out["vmap over compiled"] = vmap(c)(z)
    except Exception as e:
        out["vmap over compiled"] = "raised"
        note("vmap over compiled", f"{type(e).__name__}: {e}"[:200])
    try:
        out["grad over compiled"] = grad(lambda t: c(t).sum())(z)
    except Exception as e:
        out["grad over compiled"] = "raised"
        note("grad over compiled", f"{type(e).__name__}: {e}"[:200])
    dropout = vmap(lambda t: F.dropout(t, 0.5), randomness="different")
    common.seed(3)
    out["randomness"] = compile_fn(dropout)(z)
    return out
