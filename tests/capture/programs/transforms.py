"""torch.func in compiled code and around it, and forward-mode differentiation around it."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

from capture.harness import program


def _calls(w, f, *sizes, times=2):
    """The first time records, others replay; then other sizes, and the first again."""
    f = w.compile(f)
    for rows in (5,) * times + (6, 7, 5):
        w.call(f, *(w.t(rows, *rest) for rest in sizes))


@program
def functions_of_one_row_are_mapped(w):
    weight = w.t(4, 3)

    def f(x):
        y = torch.sin(x) * 2
        return vmap(lambda row: (row @ weight).relu().sum() + 1.5)(y).cos() + x.sum()

    _calls(w, f, (4,))


@program
def maps_within_maps(w):
    def f(x):
        return vmap(lambda a: vmap(lambda b: b * a.sum())(x))(x)

    _calls(w, f, (4,))


@program
def maps_along_other_dims(w):
    def f(x, y):
        first = vmap(lambda a, b: (a * b, b), in_dims=(1, None), out_dims=(1, 0))(x, y)
        return first, vmap(lambda d: {"s": d["a"].sin(), "t": (d["b"], [d["a"].sum()])})(
            {"a": x, "b": y}
        )

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(5, 4), w.t(5))


@program
def maps_in_chunks_and_with_random_numbers(w):
    def f(x):
        chunks = vmap(lambda a: a.sin().sum(), chunk_size=2)(x)
        other = vmap(lambda a: a + torch.rand(a.shape), randomness="different")(x)
        same = vmap(lambda a: nn.functional.dropout(a, 0.5), randomness="same")(x)
        return chunks, other, same, torch.rand(2)

    _calls(w, f, (4,))


@program
def gradients_per_sample(w):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    parameters = dict(model.named_parameters())

    def loss(p, x, t):
        return ((functional_call(model, p, (x,)) - t) ** 2).mean()

    def f(x, t):
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, t)

    _calls(w, f, (4,), (2,))


@program
def an_ensemble_of_models(w):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def f(x):
        stacked = {n: torch.stack([p, p * 2]) for n, p in model.named_parameters()}
        return vmap(lambda p: functional_call(model, p, (x,)))(stacked)

    f = w.compile(f)
    for _ in range(2):
        w.backward(w.call(f, w.t(5, 4)), *model.parameters())
    w.note([p is q for p, q in zip(model.parameters(), model.parameters(), strict=True)])


@program
def other_parameters_for_one_call(w):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def f(x):
        changed = {"weight": model.weight * 2, "bias": model.bias + 1}
        return functional_call(model, changed, (x,)) + model(x)

    f = w.compile(f)
    for _ in range(3):
        w.backward(w.call(f, w.t(5, 4)), *model.parameters())


@program
def gradients_and_values(w):
    def f(x):
        g, value = grad_and_value(lambda t: (t.sin() ** 2).sum())(x * 2)
        second = grad(lambda s: grad(lambda t: t.sin().pow(3).sum())(s).sum())(x)
        aux = grad(lambda t: (t.exp().sum(), t * 2), has_aux=True)(x)
        return g * 3, value, second, aux

    _calls(w, f, (4,))


@program
def gradients_within_gradients_of_the_whole(w):
    weight = w.t(4, 3, grad=True)

    def f(x):
        inner = grad(lambda t: ((t @ weight) ** 2).sum())(x)
        return inner.sum() + vmap(lambda a: (a @ weight).tanh())(x).sum()

    f = w.compile(f)
    for _ in range(3):
        weight.grad = None
        w.backward(w.call(f, w.t(5, 4)), weight)


@program
def products_with_jacobians(w):
    weight = w.t(4, 3)

    def f(x, v):
        out, pull = vjp(lambda t: t.sin() @ weight, x)
        return out, pull(torch.ones_like(out)), jvp(lambda t: (t.sin() @ weight).exp(), (x,), (v,))

    _calls(w, f, (4,), (4,))


@program
def jacobians(w):
    weight = w.t(4, 3)

    def f(x):
        return (
            jacrev(lambda t: t.sin() @ weight)(x),
            jacfwd(lambda t: t.cos() @ weight)(x),
            hessian(lambda t: (t.sin() ** 2).sum())(x),
        )

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(4))


@program
def tangents_that_are_zero(w):
    def f(x, y):
        return jvp(lambda a, b: a * b.log() + b, (x, y), (torch.ones_like(x), torch.zeros_like(y)))

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(4), w.t(4).abs())
        w.call(f, w.t(4), torch.zeros(4))


@program
def a_pullback_lives_on(w):
    def f(x):
        out, pull = vjp(lambda t: t.sin() * t, x)
        return out, pull

    f = w.compile(f)
    for _ in range(2):
        out, pull = f(w.t(4))
        w.note(out, pull(torch.ones(4)), pull(out))


@program
def a_pullback_crosses_a_break(w):
    def f(x):
        out, pull = vjp(lambda t: t.sin() * t, x)
        if out.sum() > 0:
            return pull(out)
        return pull(torch.ones_like(out))

    f = w.compile(f)
    for k in (1, -1, 1, -1):
        w.call(f, w.t(4).abs() * k)


@program
def mapped_functions_that_change_what_is_outside(w):
    seen = []

    def f(x):
        def inner(a):
            seen.append(len(seen))
            return a * 2

        return vmap(inner)(x) + len(seen)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3, 2))
        w.note(seen)


@program
def mapped_functions_that_change_the_input(w):
    def f(x):
        vmap(lambda a: a.add_(1))(x)
        return x * 2

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3, 2))


@program
def results_of_maps_are_changed(w):
    def f(x):
        y = vmap(lambda a: a[1:])(x)
        y.mul_(2)
        return x, y

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3, 2))


@program
def transforms_that_raise(w):
    def sizes(x):
        return vmap(lambda a, b: a @ b)(x, x[:2])

    def no_scalar(x):
        return grad(lambda t: t.sin())(x)

    def random(x):
        return vmap(lambda a: a + torch.rand(a.shape))(x)

    def own(x):
        def inner(a):
            raise ValueError("mine")

        try:
            return vmap(inner)(x)
        except ValueError as e:
            return x * len(str(e))

    for f in (sizes, no_scalar, random, own):
        f = w.compile(f)
        for _ in range(2):
            w.call(f, w.t(3, 2))
        w.call(w.compile(vmap(torch.sin)), w.t(3))


@program
def data_decides_within_a_transform(w):
    def f(x):
        return grad(lambda t: t.sum() * (2 if x.sum() > 0 else 3))(x)

    f = w.compile(f)
    for k in (1, -1, 1):
        w.call(f, w.t(4).abs() * k)


class _Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


@program
def custom_functions_within_transforms(w):
    def f(x):
        return grad(lambda t: _Cube.apply(t).sum())(x) + x

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(4))


@program
def modes_around_transforms(w):
    weight = w.t(4, 3, grad=True)

    def f(x):
        with torch.no_grad():
            a = grad(lambda t: ((t @ weight) ** 2).sum())(x)
        with torch.autocast("cpu", torch.bfloat16):
            b = vmap(lambda row: row @ weight)(x)
        return a, b, torch.is_grad_enabled()

    _calls(w, f, (4,))


@program
def compiled_functions_within_transforms(w):
    scale = w.t(4)
    f = w.compile(lambda a: a.sin() * a.sum() * scale)
    x = w.t(5, 4)
    w.note(vmap(f)(x))
    w.call(f, x[0])
    w.note(vmap(f)(x), grad(lambda a: f(a).sum())(x[1]), jvp(f, (x[0],), (x[1],)))
    w.call(f, x[0])
    w.note(jacrev(f)(x[2]), vmap(grad(lambda a: f(a).sum()))(x))


@program
def compiled_functions_of_dual_tensors(w):
    f = w.compile(lambda a: a.sin() * a.sum())
    x, v = w.t(4), w.t(4)
    for _ in range(2):
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(f(forward_ad.make_dual(x, v)))
            w.note(out.primal, out.tangent)
        w.call(f, x)
