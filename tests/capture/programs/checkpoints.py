"""torch.utils.checkpoint: values, gradients, random numbers and effects are eager's."""

import contextlib
import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from capture.harness import program


class Block(nn.Module):
    def __init__(self, width, drop=0.0, norm=nn.LayerNorm):
        super().__init__()
        self.norm, self.drop = norm(width), nn.Dropout(drop)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, scale=1.0, mask=None):
        y = self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return x + y * scale if mask is None else x + y * mask


class Deep(nn.Module):
    def __init__(self, call, width=8, blocks=3, **of_blocks):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, **of_blocks) for _ in range(blocks))
        self.run = call

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x


def trained(w, model, *inputs, calls=3):
    """Forward, backward and the random state behind each."""
    f = w.compile(model)
    for _ in range(calls):
        model.zero_grad()
        given = [one() for one in inputs]
        out = w.call(f, *given)
        w.note(torch.get_rng_state().sum())
        w.backward(out, *[one for one in given if one.requires_grad], *model.parameters())
        w.note(torch.get_rng_state().sum())


@program
def layers_one_by_one(w):
    for reentrant in (False, True):
        for drop in (0.0, 0.3):
            call = functools.partial(checkpoint, use_reentrant=reentrant)
            trained(w, Deep(call, drop=drop), lambda: w.t(4, 8, grad=True))
    trained(w, Deep(functools.partial(checkpoint, use_reentrant=False)), lambda: w.t(4, 8))


@program
def random_numbers_that_are_not_kept(w):
    for reentrant in (False, True):
        for drop in (0.0, 0.4):
            call = functools.partial(checkpoint, use_reentrant=reentrant, preserve_rng_state=False)
            trained(w, Deep(call, drop=drop), lambda: w.t(4, 8, grad=True))


@program
def sequences(w):
    for reentrant in (False, True):
        layers = nn.Sequential(*(Block(8, drop=0.2) for _ in range(4)))

        class Whole(nn.Module):
            def __init__(self, layers=layers, reentrant=reentrant):
                super().__init__()
                self.layers, self.reentrant = layers, reentrant

            def forward(self, x):
                return checkpoint_sequential(self.layers, 2, x, use_reentrant=self.reentrant) * 2

        trained(w, Whole(), lambda: w.t(3, 8, grad=True))


@program
def arguments_of_all_kinds(w):
    block = Block(8)

    def f(x, mask, scale):
        a = checkpoint(block, x, scale=scale, use_reentrant=False)
        b = checkpoint(block, a, scale, mask, use_reentrant=False)
        c, n = checkpoint(
            lambda v, flag: (v.sin() if flag else v.cos(), 3), b, True, use_reentrant=False
        )
        d = checkpoint(lambda d: {"out": d["x"] * d["y"]}, {"x": c, "y": b}, use_reentrant=False)
        return d["out"] * n

    f = w.compile(f)
    for scale in (1.0, 0.5, 0.25):
        x, mask = w.t(4, 8, grad=True), w.t(4, 8)
        w.backward(w.call(f, x, mask, scale), x, *block.parameters())
        block.zero_grad()


@program
def one_within_another(w):
    inner, outer = Block(8, drop=0.2), Block(8)

    def both(x):
        y = checkpoint(inner, x, use_reentrant=False)
        return outer(y) + x

    f = w.compile(lambda x: checkpoint(both, x, use_reentrant=False).sin())
    for _ in range(3):
        x = w.t(4, 8, grad=True)
        w.backward(w.call(f, x), x, *inner.parameters(), *outer.parameters())
        w.note(torch.get_rng_state().sum())


@program
def under_autocast_and_without_gradients(w):
    model = Deep(functools.partial(checkpoint, use_reentrant=False))

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return y.bfloat16()

    f, g = w.compile(f), w.compile(model)
    for _ in range(3):
        x = w.t(4, 8, grad=True)
        with torch.no_grad():
            w.call(g, x)
        w.call(f, x).float().square().sum().backward()
        w.note(x.grad.bfloat16(), [p.grad.bfloat16() for p in model.parameters()])
        model.zero_grad()


@program
def effects_are_there_twice(w):
    log, state = [], {"calls": 0}

    def noted(x):
        log.append(x.shape[0])
        return x.sin() * 2

    def counted(x):
        state["calls"] += 1
        return x.cos() * state["calls"]

    def printed(x):
        print("in")
        return x.exp()

    def asked(x):
        return x * 2 if x.sum() > 0 else x * 3

    for function in (noted, counted, printed, asked):
        for reentrant in (False, True):
            f = w.compile(
                lambda x, function=function, reentrant=reentrant: checkpoint(
                    function, x * 2, use_reentrant=reentrant
                ).tanh()
            )
            for _ in range(3):
                x = w.t(5, grad=True)
                w.backward(w.call(f, x), x)
                w.note(log, state)


@program
def statistics_are_taken_twice(w):
    for reentrant in (False, True):
        model = Deep(functools.partial(checkpoint, use_reentrant=reentrant), norm=nn.BatchNorm1d)
        trained(w, model, lambda: w.t(6, 8, grad=True))
        w.note(
            [
                (b.running_mean, b.running_var, b.num_batches_tracked)
                for b in (block.norm for block in model.blocks)
            ]
        )
        model.eval()
        trained(w, model, lambda: w.t(6, 8, grad=True))

    def untracked(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    mean, var = torch.zeros(8), torch.ones(8)
    f = w.compile(lambda x: checkpoint(untracked, x.sin(), mean, var, use_reentrant=False))
    for _ in range(3):
        x = w.t(6, 8, grad=True)
        w.backward(w.call(f, x), x)
        w.note(mean, var)


@program
def what_is_given_changes_before_the_backward(w):
    block = Block(8)
    f = w.compile(lambda x, y: checkpoint(lambda a, b: block(a) * b, x, y, use_reentrant=False))
    for _ in range(3):
        x, y = w.t(4, 8, grad=True), w.t(4, 8)
        out = w.call(f, x, y)
        with torch.no_grad():
            block.up.weight.mul_(0.5)
        w.backward(out, x, *block.parameters())
        block.zero_grad()
        out = w.call(f, x, y)
        y.mul_(2)  # saved as an argument, so that this is an error
        w.backward(out, x)


@program
def contexts_of_its_own(w):
    entered = []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield

    def f(x):
        return checkpoint(
            torch.sin, x * 2, use_reentrant=False, context_fn=lambda: (noted("a"), noted("b"))
        )

    f = w.compile(f)
    for _ in range(3):
        x = w.t(4, grad=True)
        w.backward(w.call(f, x), x)
        w.note(entered)


@program
def the_reentrant_form_has_a_meaning_of_its_own(w):
    weight = nn.Parameter(torch.tensor([2.0, 3.0, 4.0]))

    def closure(x):
        h = (x * weight).sin()
        return checkpoint(lambda v: v * h, x * 3, use_reentrant=True)

    functions = (
        lambda x: checkpoint(lambda v: (v * weight, v.detach()), x * 3, use_reentrant=True),
        lambda x: checkpoint(lambda v: v, x * 3, use_reentrant=True),
        lambda x: checkpoint(lambda v: [v * 2], x * 3, use_reentrant=True),
        lambda x: checkpoint(lambda v: v * weight, x.detach(), use_reentrant=True),
        lambda x: checkpoint(lambda d: d["x"] * weight, {"x": x * 2}, use_reentrant=True),
        lambda x: checkpoint(
            lambda v: v * 2 if torch.is_grad_enabled() else v * 3, x * 2, use_reentrant=True
        ),
        lambda x: checkpoint(lambda v, n: (v * weight * n, n), x * 3, 2, use_reentrant=True),
        lambda x: checkpoint(lambda v: v * 2, x * 3),
    )
    for function in functions:
        f = w.compile(function)
        for _ in range(3):
            x = w.t(3, grad=True)
            out = w.call(f, x)
            w.note([type(one).__name__ for one in out] if isinstance(out, (list, tuple)) else 0)
    f = w.compile(closure)
    for _ in range(2):
        x = w.t(3, grad=True)
        out = w.call(f, x)
        try:
            out.sum().backward()
        except RuntimeError as error:
            w.note(str(error).splitlines()[0])
        w.note(x.grad)


@program
def errors_within(w):
    def wrong(x):
        return x @ x

    def raised(x, n):
        if n > 1:
            raise ValueError("no")
        return x * n

    def f(x, n):
        y = x * 2
        try:
            y = checkpoint(raised, y, n, use_reentrant=False)
        except ValueError as error:
            y = y + len(str(error))
        return y

    f, g = w.compile(f), w.compile(lambda x: checkpoint(wrong, x * 2, use_reentrant=False))
    for n in (1, 2, 1, 2):
        x = w.t(2, 3, grad=True)
        w.backward(w.call(f, x, n), x)
        w.call(g, x)
    w.call(w.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=True, wrong=1)), w.t(2))


@program
def whole_steps(w):
    for reentrant in (False, True):
        model = Deep(functools.partial(checkpoint, use_reentrant=reentrant), drop=0.2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = w.compile(step)
        for _ in range(4):
            w.call(step, w.t(4, 8, grad=True))
            w.note(list(model.parameters()), torch.get_rng_state().sum())


@program
def double_backwards_and_second_ones(w):
    block = Block(4)
    f = w.compile(lambda x: checkpoint(block, x, use_reentrant=False))
    for _ in range(2):
        x = w.t(3, 4, grad=True)
        out = w.call(f, x)
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        w.backward(first, x)
        out = w.call(f, x)
        w.note(torch.autograd.grad(out.sum(), x, retain_graph=True))
        w.note(torch.autograd.grad(out.sum(), x))


@program
def functions_of_the_programs_own(w):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 + x * 0

    def inner(v):
        return Twice.apply(v.sin()).cos()

    f = w.compile(lambda x: checkpoint(inner, x, use_reentrant=False))
    for _ in range(3):
        x = w.t(4, grad=True)
        w.backward(w.call(f, x), x)


@program
def sizes_that_change(w):
    model = Deep(functools.partial(checkpoint, use_reentrant=False))
    f = w.compile(model)
    for n in (3, 4, 5, 6, 3):
        x = w.t(n, 8, grad=True)
        w.backward(w.call(f, x), x, *model.parameters())
        model.zero_grad()
