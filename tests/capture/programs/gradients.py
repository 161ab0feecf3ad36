"""Autograd: backward through compiled calls, no_grad, custom functions, checkpoint, torch.func."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from capture.harness import program


@program
def backward_through_a_function(w):
    def f(x, y):
        return (x * y).sin() + x.sum()

    f = w.compile(f)
    for sizes in ((3,), (3,), (2, 2)):
        x, y = w.t(*sizes, grad=True), w.t(*sizes, grad=True)
        w.backward(w.call(f, x, y), x, y)


@program
def backward_through_a_module(w):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    f = w.compile(module)
    for _ in range(3):
        w.backward(w.call(f, w.t(4, 3)), *module.parameters())


@program
def requires_grad_changes(w):
    def f(x, y):
        return x * y + x

    f = w.compile(f)
    for a, b in ((False, False), (True, False), (False, True), (True, True), (False, False)):
        x, y = w.t(2, grad=a), w.t(2, grad=b)
        out = w.call(f, x, y)
        if a or b:
            w.backward(out, x, y)


@program
def no_grad_inside_and_outside(w):
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = x * 3
            flag = torch.is_grad_enabled()
        with torch.set_grad_enabled(True):
            v = x * 4
        return y, z, v, flag, torch.is_grad_enabled()

    f = w.compile(f)
    x = w.t(2, grad=True)
    w.call(f, x)
    with torch.no_grad():
        w.call(f, x)
    w.call(f, x)
    w.call(w.compile(torch.no_grad()(lambda x: x * 5)), x)


@program
def grad_mode_is_left_changed(w):
    def f(x, mode):
        torch.set_grad_enabled(mode)
        return x * 2

    f = w.compile(f)
    x = w.t(2, grad=True)
    for mode in (False, True, False, True):
        w.call(f, x, mode)


@program
def detach_and_requires_grad_inside(w):
    def f(x):
        y = x.detach() * 2
        z = torch.ones(2).requires_grad_()
        return y, (z * x).sum(), z.is_leaf, x.detach().requires_grad

    f = w.compile(f)
    for _ in range(2):
        x = w.t(2, grad=True)
        w.call(f, x)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 5 * grad * x**2 * ctx.scale, None  # 5 where 3 is true: ours must be called


@program
def custom_functions(w):
    def f(x, scale):
        return Cube.apply(x * 2, scale) + 1

    f = w.compile(f)
    for scale in (2, 2, 3):
        x = w.t(3, grad=True)
        w.backward(w.call(f, x, scale), x)
    w.call(f, w.t(3), 2)


@program
def straight_through(w):
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable()
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad

    f = w.compile(lambda x: Round.apply(x * 3) * x)
    for _ in range(2):
        x = w.t(3, grad=True)
        w.backward(w.call(f, x), x)


@program
def checkpointing(w):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)

    def f(x):
        return checkpoint(lambda y: layer(y).tanh(), x, use_reentrant=False) + x

    f = w.compile(f)
    for _ in range(2):
        x = w.t(2, 3, grad=True)
        w.backward(w.call(f, x), x, *layer.parameters())


@program
def grad_is_computed_inside(w):
    def f(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((x**3).sum(), x)
        return g * 2

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))


@program
def a_whole_training_step(w):
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = w.compile(step)
    x, y = w.t(4, 3), w.t(4, 1)
    for _ in range(4):
        w.call(f, x, y)
    w.note(list(module.parameters()))


@program
def training_with_a_compiled_forward(w):
    torch.manual_seed(0)
    # No bias before the batch norm: its gradient is zero but for rounding, and Adam steps by the
    # sign of that.
    layers = nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)
    module = nn.Sequential(*layers)
    f = w.compile(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    x, y = w.t(6, 3), w.t(6, 1)
    for _ in range(3):
        optimizer.zero_grad()
        (f(x) - y).square().mean().backward()
        optimizer.step()
        w.note([p.detach() for p in module.parameters()], module[1].running_mean)


@program
def in_place_under_autograd(w):
    def f(x, y):
        z = x * 2
        z.add_(y)
        z[0] *= 3
        z[1:].relu_()
        return z

    f = w.compile(f)
    for _ in range(2):
        x, y = w.t(3, grad=True), w.t(3, grad=True)
        w.backward(w.call(f, x, y), x, y)


@program
def in_place_on_a_leaf_is_an_error(w):
    f = w.compile(lambda x: x.add_(1))
    w.call(f, w.t(2))
    w.call(f, w.t(2, grad=True))
    with torch.no_grad():
        w.call(f, w.t(2, grad=True))


@program
def tensor_hooks(w):
    seen = []

    def f(x):
        y = x * 2
        y.register_hook(lambda g: seen.append(g.sum()) or g * 10)
        return y.sin()

    f = w.compile(f)
    for _ in range(2):
        x = w.t(2, grad=True)
        w.backward(w.call(f, x), x)
        w.note(seen)


@program
def double_backward(w):
    def f(x):
        return (x**3).sum()

    f = w.compile(f)
    for _ in range(2):
        x = w.t(3, grad=True)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        w.note(g.detach(), h)


@program
def function_transforms(w):
    def loss(weight, x):
        return (x @ weight).square().sum()

    def f(weight, x):
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
        return per_sample, torch.func.jacrev(lambda v: v.sin())(weight)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3), w.t(4, 3))


@program
def gradients_of_views_and_unused_inputs(w):
    def f(x, unused):
        a, b = x[:2], x.view(-1)[1:]
        return a * 2, b.sum(), x

    f = w.compile(f)
    for _ in range(2):
        x, unused = w.t(3, grad=True), w.t(2, grad=True)
        out = w.call(f, x, unused)
        (out[0].sum() + out[1]).backward()
        w.note(x.grad, unused.grad)


@program
def results_that_need_no_gradient(w):
    def f(x):
        best = x.argmax()
        mask = x > 0
        return best, mask, (x * mask).sum(), x.detach()

    f = w.compile(f)
    for _ in range(2):
        x = w.t(4, grad=True)
        out = w.call(f, x)
        w.backward(out[2], x)
