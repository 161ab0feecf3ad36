"""Branches of which one side raises: distributions' checks, assertions, losses not finite."""

import itertools
import warnings

import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal

from capture.harness import program

NAN = float("nan")


@program
def distributions_check_what_they_are_given(w):
    Distribution.set_default_validate_args(True)  # TorchDynamo turns it off, for good

    def f(mean, deviation):
        normal = Normal(mean, deviation.exp())
        drawn = normal.rsample()
        return drawn, normal.log_prob(drawn).sum(), normal.entropy()

    f = w.compile(f)
    for sizes in ((3, 4), (3, 4), (2, 4)):
        mean, deviation = w.t(*sizes, grad=True), w.t(*sizes, grad=True)
        w.backward(w.call(f, mean, deviation)[1], mean, deviation)
    w.call(f, torch.full((3, 4), NAN), w.t(3, 4))
    w.call(f, w.t(3, 4), w.t(3, 4))


@program
def categories_are_drawn_and_looked_up(w):
    Distribution.set_default_validate_args(True)  # TorchDynamo turns it off, for good
    policy = nn.Linear(4, 3)

    def act(state):
        chosen = Categorical(logits=policy(state))
        action = chosen.sample()
        return action, chosen.log_prob(action), chosen.entropy().mean()

    act = w.compile(act)
    for _ in range(3):
        _, likely, _ = w.call(act, w.t(5, 4))
        w.backward(likely.sum(), *policy.parameters())
    w.call(act, torch.full((5, 4), NAN))
    w.call(act, w.t(5, 4))


@program
def assertions_about_tensors(w):
    def f(x, limit):
        assert (x < limit).all(), f"an element of {tuple(x.shape)} is beyond {limit}"
        y = x.exp()
        if y.isnan().any() or y.isinf().any():
            raise ArithmeticError("not finite")
        if not y.max() > 0:
            raise ValueError
        return y * 2

    f = w.compile(f)
    for x, limit in ((1.0, 5), (2.0, 5), (6.0, 5), (NAN, 5), (3.0, 5), (-500.0, 5), (2.5, 5)):
        w.call(f, torch.full((3,), x), limit)


@program
def what_was_written_before_an_error_stays_written(w):
    def f(x, seen):
        x.add_(1)
        seen.append(x.sum())
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        x.mul_(2)
        return x + 1

    f = w.compile(f)
    for first in (1.0, 2.0, float("inf"), 3.0):
        x, seen = torch.tensor([first, 1.0]), []
        w.call(f, x, seen)
        w.note("after", x, seen)


@program
def errors_that_the_program_catches(w):
    def check(x):
        if x.min() < 0:
            raise ValueError(f"{len(x)} elements")
        return x.sqrt()

    def f(x):
        try:
            return check(x)
        except ValueError as error:
            return x.abs() + len(str(error))

    f = w.compile(f)
    for sign in (1, 1, -1, 1, -1):
        w.call(f, sign * torch.ones(4))


@program
def steps_whose_loss_must_be_finite(w):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if torch.isnan(loss):
            raise FloatingPointError("the loss is not a number")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach(), norm

    step = w.compile(step)
    for scale in (1, 1, 1, NAN, 1, 1e30, 1):
        w.call(step, scale * w.t(4, 3))
        # Sums that overflow are infinite or no number as their order has it.
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        w.note("model", *model.parameters(), *[g.nan_to_num(0.0, 0.0, 0.0) for g in gradients])


@program
def warnings_around_a_check(w):
    def f(x, early):
        if early:
            warnings.warn("early", stacklevel=1)
        if x.isnan().any():
            raise ValueError("not a number")
        if not early:
            warnings.warn("late", stacklevel=1)
        return x + 1

    f = w.compile(f)
    for early in (True, False):
        for x in (NAN, 1.0, NAN, 2.0):
            with warnings.catch_warnings(record=True) as shown:
                warnings.simplefilter("always")
                w.call(f, torch.full((2,), x), early)
            w.note([str(one.message) for one in shown])


@program
def gradients_that_a_function_refuses(w):
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            if grad.isnan().any():
                raise ValueError("a gradient is not a number")
            return grad * 2 + x

    f = w.compile(lambda x: Checked.apply(x).sin().sum())
    for scale in (1, 1, NAN, 1):
        x = w.t(3, grad=True)
        try:
            w.backward(w.call(f, x) * scale, x)
        except ValueError as error:
            w.note("refused", str(error))


@program
def unseen_calls_behind_a_check(w):  # found by fuzzing
    def f(x):
        if x.sum() > 0.3:
            raise KeyError("too large")
        return max([x, x * 2], key=lambda v: float(v.sum()))

    for values in ((1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)):
        g = w.compile(lambda x: f(x) + 1)
        for value in values:
            w.call(g, torch.full((2,), value))


@program
def iterators_that_wait_for_a_branch(w):
    def items(x, *rest, times=1, **more):
        yield x * times
        for y in rest:
            yield y + more["plus"]

    def f(x, flag):
        first = items(x, x + 1, times=2, plus=3)
        both = itertools.chain(first, (y * 2 for y in [x, x - 1]))
        if flag.sum() > 0:  # a break with both of them alive
            return sum(both)
        return sum(both) * 2

    f = w.compile(f)
    for flag in (1.0, -1.0, 1.0, -1.0, 1.0):
        w.call(f, w.t(3), torch.tensor([flag]))
