"""A two-headed function gives back slices of one value and the value detached for logging; only some results are trained.

Reported: pytorch/pytorch#194479, #195357 (the heads lost their gradients because the detached one shares their memory).
Right: requires_grad is True, True, False, and the heads' gradients arrive; `h * 1` and `h.detach()` are two different results.
"""

import torch


def heads(x):
    y = torch.sin(x)
    return y[0:4], y[4:8], y.detach()


def four(x, w):
    h = x * w
    return h[:4], h * 1, h.detach(), h.detach() * 2, w.exp()


def maybe(x, keep):
    y = x.exp()
    with torch.no_grad():
        z = y * 2
    first, second = y.chunk(2)
    return {
        "first": first,
        "z": z,
        "second": second if keep else second.detach(),
        "same": y,
        "again": y.view(2, -1),
    }


def run(compile_fn):
    notes = []
    fast = [compile_fn(f) for f in (heads, four, maybe)]
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(8, requires_grad=True)
        out = fast[0](x)
        notes.append([[o.requires_grad for o in out], [o.detach() for o in out]])
        (out[0].sum() * 2 + (out[1] * out[2][4:]).sum()).backward()
        notes.append(x.grad)
        x, w = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
        out = fast[1](x, w)
        notes.append([[o.requires_grad for o in out], out[0].is_leaf, [o.detach() for o in out]])
        (out[0].sum() + out[1].pow(2).sum()).backward(retain_graph=True)
        notes.append([x.grad.clone(), None if w.grad is None else w.grad.clone()])
        out[4].sum().backward()
        notes.append(w.grad.clone())
        x = torch.randn(8, requires_grad=True)
        out = fast[2](x, seed != 1)
        notes.append(
            [
                {k: v.requires_grad for k, v in out.items()},
                {k: v.detach().clone() for k, v in out.items()},
            ]
        )
        with torch.no_grad():
            out["z"].zero_()
        out["same"].detach().add_(1)
        notes.append([out["again"].detach(), out["first"].detach(), out["z"]])
    return notes
