"""Meta-learning code switches gradients on inside no_grad and computes the same expression on both sides of the switch.

Reported: pytorch/pytorch#114338 (equal expressions of different gradient modes were merged), #100977 (inference graph reused).
Right: the one inside enable_grad needs gradients, the other does not; each call looks at the mode it is called in.
"""

import torch
from torch import nn


def both(x):
    with torch.enable_grad():
        a = x + 1
    b = x + 1
    return a, b


def inner_step(model, x, y, lr):
    with torch.enable_grad():
        loss = (model(x) - y).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
    updated = [p - lr * g for p, g in zip(model.parameters(), grads)]
    again = (model(x) - y).pow(2).mean()
    return loss, again, updated


@torch.no_grad()
def decorated(x, w):
    z = x * w
    with torch.set_grad_enabled(x.shape[0] > 2):
        y = x * w
    return z.requires_grad, y.requires_grad, y, z


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast = [compile_fn(f) for f in (both, inner_step, decorated)]
    x = torch.ones(4, requires_grad=True)
    for mode in (False, True, False):
        with torch.set_grad_enabled(mode):
            a, b = fast[0](x)
        notes.append([a.requires_grad, b.requires_grad, a is b, a.detach()])
    a.sum().backward()
    notes.append(x.grad.clone())
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    compiled = compile_fn(model)
    for n in (4, 4, 6):
        data, target = torch.randn(n, 3), torch.randn(n, 1)
        with torch.no_grad():
            loss, again, updated = fast[1](compiled, data, target, 0.1)
        notes.append(
            [
                loss.requires_grad,
                again.requires_grad,
                loss.detach(),
                again,
                [u.requires_grad for u in updated],
                updated,
            ]
        )
        out = compiled(data)
        out.sum().backward()
        notes.append([out.requires_grad, [p.grad.clone() for p in model.parameters()]])
        with torch.inference_mode():
            notes.append([compiled(data).is_inference(), compiled(data).clone()])
    for n in (2, 3, 2):
        notes.append(
            [
                v.detach() if isinstance(v, torch.Tensor) else v
                for v in fast[2](
                    torch.ones(n, 2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
                )
            ]
        )
    return notes
