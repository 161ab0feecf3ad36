"""A backward within the program: gradients added, freed graphs, hooks, whole training steps."""

import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from capture.harness import program


def _network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def _state(w, module):
    w.note([p.detach().clone() for p in module.parameters()])
    w.note([p.grad for p in module.parameters()])


@program
def gradients_are_added(w):
    a, b = w.t(3, grad=True), w.t(3, grad=True)

    def f(x):
        loss = (a * x).sum() + (b * b).sum()
        loss.backward()
        return loss.detach()

    f = w.compile(f)
    for i in range(6):
        before = a.grad
        w.call(f, w.t(3))
        w.note(a.grad, b.grad, a.grad is before)
        if i == 2:
            a.grad = None
        if i == 3:
            b.grad.zero_()


@program
def a_loss_whose_graph_was_freed(w):
    module = _network()

    def f(x):
        out = module(x)
        loss = out.square().mean()
        loss.backward()
        return loss, out, x.sum() * 2

    f = w.compile(f)
    for _ in range(3):
        loss, out, _ = w.call(f, w.t(4, 3))
        _state(w, module)
        for result in (loss, out.sum()):
            w.call(lambda r=result: r.backward())


@program
def a_graph_that_keeps_nothing_may_go_again(w):
    a = w.t(3, grad=True)

    def f(x):
        out = (a + x).sum()
        out.backward()
        return out

    f = w.compile(f)
    for _ in range(3):
        out = w.call(f, w.t(3))
        w.call(lambda r=out: r.backward())
        w.note(a.grad)


@program
def a_graph_that_is_kept(w):
    a = w.t(3, grad=True)

    def f(x):
        loss = (a * a * x).sum()
        loss.backward(retain_graph=True)
        loss.backward(torch.tensor(2.0))
        return a.grad.clone()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3))
        w.note(a.grad)


@program
def a_kept_graph_that_is_returned(w):
    a = w.t(3, grad=True)

    def f(x):
        loss = (a * a * x).sum()
        loss.backward(retain_graph=True)
        return loss

    f = w.compile(f)
    for _ in range(3):
        loss = w.call(f, w.t(3))
        w.call(lambda r=loss: r.backward())
        w.note(a.grad)


@program
def twice_through_a_freed_graph(w):
    a = w.t(3, grad=True)

    def f(x):
        loss = (a * a * x).sum()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError as error:
            return str(error)[:40]
        return "no error"

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3))
        w.note(a.grad)


@program
def gradients_of_some(w):
    a, b = w.t(3, grad=True), w.t(3, grad=True)

    def f(x, mode):
        loss = (a * x * b).sum()
        if mode == "inputs":
            loss.backward(inputs=[a])
            return None
        if mode == "grad":
            return torch.autograd.grad(loss, (a, b))
        if mode == "unused":
            return torch.autograd.grad((a * x).sum(), [a, b], allow_unused=True)
        if mode == "zeros":
            return torch.autograd.grad(
                (a * x).sum(), [a, b], allow_unused=True, materialize_grads=True
            )
        if mode == "refused":
            return torch.autograd.grad((a * x).sum(), [a, b])
        return torch.autograd.grad([a * x, b * 2], [a, b], [x, x + 1])

    f = w.compile(f)
    for mode in ("inputs", "grad", "unused", "zeros", "refused", "many") * 2:
        w.call(f, w.t(3), mode)
        w.note(a.grad, b.grad)


@program
def a_penalty_on_gradients(w):
    module = _network()

    def f(x, y):
        mixed = (x + y).requires_grad_()
        return mixed

    def penalty(x):
        out = module(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.mean() + (g.norm(dim=1) - 1).square().mean()
        loss.backward()
        return loss.detach(), g

    f, penalty = w.compile(f), w.compile(penalty)
    for _ in range(3):
        x = w.call(f, w.t(4, 3), w.t(4, 3))
        w.call(penalty, x.detach().requires_grad_())
        _state(w, module)


@program
def a_gradient_that_is_returned(w):
    a = w.t(3, grad=True)

    def f(x):
        (g,) = torch.autograd.grad((a.sin() * x).sum(), a, create_graph=True)
        return g

    f = w.compile(f)
    for _ in range(3):
        g = w.call(f, w.t(3))
        w.backward(g, a)


@program
def a_history_from_outside(w):
    a = w.t(3, grad=True)

    def f(x):
        loss = (x * 3).sum()
        loss.backward()
        return loss.detach()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, a * a)
        w.note(a.grad)

    def g(loss):
        loss.backward()
        return a.grad * 2

    g = w.compile(g)
    for _ in range(2):
        w.call(g, (a * a).sum())
        w.note(a.grad)


@program
def hooks_of_parameters(w):
    a, b = w.t(3, grad=True), w.t(3, grad=True)
    seen = []

    def f(x):
        loss = (a * x * b).sum()
        loss.backward()
        return a.grad + 1

    f = w.compile(f)
    w.call(f, w.t(3))
    first = a.register_hook(lambda g: g * 2)
    w.call(f, w.t(3))
    second = b.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    w.call(f, w.t(3))
    first.remove()
    w.call(f, w.t(3))
    second.remove()
    w.call(f, w.t(3))
    w.note(a.grad, b.grad, seen)


@program
def gradients_that_share_memory(w):
    a, b = w.t(3, grad=True), w.t(3, grad=True)
    flat = torch.zeros(6)
    a.grad, b.grad = flat[:3], flat[3:]

    def f(x):
        (a * x + b).sum().backward()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3))
        w.note(flat, a.grad, b.grad)


@program
def the_data_of_a_loss(w):
    module = _network()

    def f(x):
        loss = module(x).square().mean()
        number = loss.item()
        loss.backward()
        after = [p.grad.sum().item() for p in module.parameters()]
        return number, after

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(4, 3))
        _state(w, module)


@program
def an_exception_behind_a_backward(w):
    module = _network()

    def f(x, fails):
        module(x).square().mean().backward()
        if fails:
            raise ValueError("behind the backward")
        return next(module.parameters()).grad

    f = w.compile(f)
    for fails in (False, True, False, True):
        w.call(f, w.t(4, 3), fails)
        _state(w, module)


@program
def a_whole_step(w):
    module = _network()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        return loss, norm

    step = w.compile(step)
    for _ in range(5):
        w.call(step, w.t(4, 3), w.t(4, 2))
        _state(w, module)


@program
def steps_of_several_parts(w):
    module = _network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def step(parts):
        total = 0
        for x, y in parts:
            loss = nn.functional.mse_loss(module(x), y) / len(parts)
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_value_(module.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total

    step = w.compile(step)
    for count in (2, 2, 2, 3, 1):
        w.call(step, [(w.t(4, 3), w.t(4, 2)) for _ in range(count)])
        _state(w, module)


@program
def other_sizes_in_a_whole_step(w):
    module = _network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def step(x, y):
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = w.compile(step)
    for batch in (4, 6, 5, 7, 4, 9, 3, 2):
        w.call(step, w.t(batch, 3), w.t(batch, 2))
        _state(w, module)


@program
def what_needs_gradients_changes_between_steps(w):
    module = _network()

    def step(x):
        loss = module(x).square().mean()
        loss.backward()
        return loss.detach()

    step = w.compile(step)
    for i in range(5):
        module[0].weight.requires_grad_(i % 2 == 0)
        w.call(step, w.t(4, 3))
        _state(w, module)
        module.zero_grad()


@program
def a_moving_average_in_the_step(w):
    module, average = _network(), _network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def step(x):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(module.parameters(), average.parameters(), strict=True):
                q.lerp_(p, 0.1)

    step = w.compile(step)
    for _ in range(4):
        w.call(step, w.t(4, 3))
        _state(w, module)
        w.note([q.detach().clone() for q in average.parameters()])


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * ctx.scale, None


@program
def a_function_of_ones_own_in_the_step(w):
    module = _network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def step(x):
        optimizer.zero_grad()
        loss = _Scaled.apply(module(x), 0.5).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = w.compile(step)
    for _ in range(4):
        w.call(step, w.t(4, 3))
        _state(w, module)


@program
def checkpoints_in_the_step(w):
    module = _network()

    def step(x, reentrant):
        module.zero_grad()
        out = checkpoint(module, x, use_reentrant=reentrant)
        loss = out.square().mean()
        loss.backward()
        return loss.detach()

    step = w.compile(step)
    for reentrant in (False, True, False, True):
        w.call(step, w.t(4, 3, grad=True), reentrant)
        _state(w, module)


@program
def operators_that_fail_beside_a_backward(w):
    weight, bias = nn.Parameter(w.t(3)), nn.Parameter(w.t(3))
    table = w.t(8, 3)
    optimizer = torch.optim.SGD([weight, bias], lr=0.1, momentum=0.5)

    def loss(x):
        return (weight * x + bias).sin().sum()

    def before(x, k, log):
        loss(x).backward()
        return table[k]

    def behind(x, k, log):
        y = table[k]
        loss(x).backward()
        return y

    def between(x, k, log):
        weight.grad = None
        loss(x).backward()
        y = table[k]
        bias.grad = None
        loss(x * 2).backward()
        return y

    def caught(x, k, log):
        try:
            y = table[k]
            loss(x).backward()
        except IndexError:
            return x, "caught"
        return y, "fine"

    def in_a_step(x, k, log):
        optimizer.zero_grad()
        loss(x * table[k]).backward()
        optimizer.step()

    def behind_a_break(x, k, log):
        loss(x).backward()
        print(len(log))
        y = table[k]
        loss(x).backward()
        return y

    def behind_a_warning(x, k, log):
        warnings.warn("noted", stacklevel=1)
        y = table[k]
        weight.grad = None
        loss(x).backward()
        return y

    def cleared_behind_a_warning(x, k, log):
        warnings.warn("noted", stacklevel=1)
        weight.grad = None
        bias.grad = None
        y = table[k]
        loss(x).backward()
        return y

    behind_it = (behind_a_break, behind_a_warning, cleared_behind_a_warning)
    for f in (before, behind, between, caught, in_a_step, *behind_it):
        f = w.compile(f)
        weight.grad, bias.grad = None, w.t(3)
        for k in (9, 9, 1, 9, 2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                w.call(f, w.t(3), torch.tensor([0, k]), [])
            w.note(weight, weight.grad, bias, bias.grad)


@program
def gradients_that_are_cleared_around_an_operator_that_fails(w):
    weight, bias = nn.Parameter(w.t(3)), nn.Parameter(w.t(3))
    table, both = w.t(8, 3), {"all": [weight, bias]}
    optimizer = torch.optim.SGD(both["all"], lr=0.1)

    def loss(x):
        return (weight * x + bias).sin().sum()

    def before_it(x, k):
        y = x * 2
        weight.grad = None
        y = y + table[k]
        loss(x).backward()
        return y

    def behind_it(x, k):
        y = table[k]
        weight.grad = None
        return y * 2

    def twice(x, k):
        weight.grad = None
        loss(x).backward()
        both["all"][0].grad = None
        y = table[k]
        loss(x).backward()
        return y

    def first_and_behind_it(x, k):
        weight.grad = None
        loss(x).backward()
        y = table[k]
        both["all"][0].grad = None
        loss(x).backward()
        return y

    def in_the_loss(x, k):
        y = loss(x)
        for p in both["all"]:
            p.grad = None
        (y + table[k].sum()).backward()
        return y

    def of_a_loss_from_before(x, k):
        y, z = loss(x), table[k]
        for p in both["all"]:
            p.grad = None
        y.backward()
        optimizer.zero_grad()
        return z

    def kept(x, k):
        loss(x).backward()
        gradient = weight.grad
        weight.grad = None
        return gradient, table[k]

    def in_three_steps(x, k):
        bias.grad = None
        loss(x).backward()
        weight.grad = None
        loss(x).backward()
        y = table[k]
        weight.grad = None
        loss(x * 2).backward()
        return y

    def before_a_step(x, k):
        weight.grad = None
        loss(x).backward()
        y = table[k]
        loss(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        return y

    around = (before_it, behind_it, twice, first_and_behind_it, in_the_loss)
    for inner in (*around, of_a_loss_from_before, kept, in_three_steps, before_a_step):

        def f(x, k, inner=inner):
            warnings.warn("noted", stacklevel=1)  # it cannot begin again
            return inner(x, k)

        f = w.compile(f)
        weight.grad, bias.grad = None, w.t(3)
        for k in (9, 9, 1, 9, 2, 9):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                w.call(f, w.t(3), torch.tensor([0, k]))
            w.note(weight, weight.grad, bias, bias.grad)


@program
def backwards_into_inputs_of_changing_sizes(w):
    weight = nn.Parameter(w.t(3))

    def added(x):
        (x * weight).sin().sum().backward()

    def read(x):
        x.grad = None
        (x * weight).sin().sum().backward()
        return x.grad * 2

    def behind_a_gradient(x):
        (g,) = torch.autograd.grad((x * weight).sin().sum(), x, create_graph=True)
        (g.square().sum() + x.sum()).backward()

    def twice(x):
        (x * weight).sin().sum().backward()
        (x * 2).sum().backward()
        return x.grad.mean(), x.shape[0]

    def to_it_alone(x):
        (x * weight).sin().sum().backward(inputs=[x])
        return x.sum()

    def of_a_view(x):
        (x.view(-1) * 2).sin().sum().backward()
        print(end="")
        (x * weight).sum().backward()
        return x.grad.mean()

    def stepped(x):
        loss = (x * weight).sin().sum()
        loss.backward()
        with torch.no_grad():
            x -= 0.1 * x.grad
            x.grad = None
        return loss.detach()

    for f in (added, read, behind_a_gradient, twice, to_it_alone, of_a_view, stepped):
        f = w.compile(f)
        for n in (3, 4, 5, 6, 6, 2, 1, 3):
            x = w.t(n, 3, grad=True)
            for _ in range(2):
                w.call(f, x)
                w.note(x.grad, weight.grad)


@program
def backwards_into_inputs_with_hooks_and_changing_sizes(w):
    def f(x):
        (x * x).sin().sum().backward()

    def to_it(x):
        return torch.autograd.grad((x * x).sin().sum(), x)[0] * 2

    for function in (f, to_it):
        compiled = w.compile(function)
        for n in (3, 4, 5, 6):
            x = w.t(n, grad=True)
            w.call(compiled, x)
            x.register_hook(lambda g: g * 2)
            w.call(compiled, x)
            if function is to_it:
                y = x * 2
                w.call(compiled, y)
                y.retain_grad()
                w.call(compiled, y)
                w.note(y.grad)
                y.register_hook(lambda g: g * 3)
                w.call(compiled, y)
                w.note(y.grad)
            w.note(x.grad)


@program
def hooks_that_are_added_between_backwards(w):
    weight = nn.Parameter(w.t(3))

    def f(x):
        loss = (weight * x).sin().sum()
        loss.backward()
        return loss.detach()

    f = w.compile(f)
    log = []
    for register in (
        lambda: weight.register_hook(lambda g: g * 2),
        lambda: weight.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum())),
        lambda: (
            weight.view_as(weight)
            .grad_fn.next_functions[0][0]
            .register_hook(lambda *_: log.append("accumulated"))
        ),
    ):
        weight.grad = None
        for _ in range(3):
            w.call(f, w.t(3))
        handle = register()
        w.call(f, w.t(3))
        handle.remove()
        w.call(f, w.t(3))
        w.note(weight.grad, log)


@program
def writes_to_expanded_results_behind_a_break(w):
    def of_a_product(x):
        t = (x * 2).expand(4, 4)
        print(end="")
        t[0] = 1.0
        return t

    def refused_while_recording(x):
        t = x.sum(0, keepdim=True).expand(x.shape[0])
        t[0] = -0.5
        return t * x

    def scaled(x):
        t = x[:1].sin().expand(4)
        print(end="")
        t[0].mul_(3)
        return t * x

    for f in (of_a_product, refused_while_recording, scaled):
        f = w.compile(f)
        for _ in range(3):
            x = w.t(4, grad=True)
            w.backward(w.call(f, x), x)


@program
def views_without_a_history_whose_base_is_written_to(w):
    """PyTorch raises where somebody asks such a view for its history, and nowhere else."""
    weight = nn.Parameter(w.t(4))

    def f(x, kind):
        with torch.no_grad():
            view = x.view(-1)
            view[::2] = 1
        if kind == "gradients":
            grad = torch.autograd.grad((weight * x.detach()).sin().sum(), weight)[0]
            print(end="")
            return grad, view.detach()
        (weight * x.detach()).sin().sum().backward()
        if kind == "raises":
            raise ValueError(kind)
        view.mul_(2)

    f = w.compile(f)
    for kind in ("gradients", "raises", "writes") * 2:
        w.call(f, w.t(4, grad=True), kind)
        w.note(weight.grad)
