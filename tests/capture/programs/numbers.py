"""Floats and integers that change from call to call, wherever they come from."""

import math
import operator
import types

import torch

from capture.harness import program


@program
def floats_as_arguments(w):
    def f(x, a, b=0.5):
        c = (a - 2 * b) / (1 + a * a) + a**2 - b
        return x * a, x + c, x / a, a - x, x.mul(b), torch.add(x, x, alpha=c), c, -a, float(b)

    f = w.compile(f)
    for a, b in ((0.5, 0.25), (1.5, 0.75), (-2.5, 1.25), (3.0, -0.5), (1e-3, 7.0), (0.25, 0.0)):
        w.call(f, w.t(3), a, b)
        w.call(f, w.t(3), a)


@program
def floats_and_types(w):
    def f(x, a):
        return (
            x.half() * a,
            x.double() + a,
            x.long() * a,
            x.bfloat16() / a,
            x > a,
            x.clamp(min=-a, max=a),
            x**a,
            torch.where(x > 0, x, a),
            torch.full((2,), a),
            torch.tensor(a),
            (x > 0) * a,
            x.new_tensor(2) * a,
        )

    f = w.compile(f)
    for a in (0.5, 1.5, 2.5, 2.0, 0.1, 1e-30):
        w.call(f, w.t(4).abs(), a)


@program
def floats_decide(w):
    def f(x, a):
        if a > 1:
            return x * a
        if not a:
            return x, "nothing"
        if a == 0.5:
            return x - a, "half"
        return max(a, 0.75), min(a, 0.1), abs(a), x + min(a, 3)

    f = w.compile(f)
    for a in (0.25, 0.5, 2.0, 0.0, -0.0, 3.5, -1.5, 0.5, 0.7, 2.0, float("nan"), float("inf")):
        w.call(f, w.t(3), a)


@program
def floats_that_raise(w):
    def f(x, a):
        return x * (1 / a), x + math.sqrt(a), x + a**0.5, 2.0**a

    f = w.compile(f)
    for a in (1.0, 2.0, 0.0, 3.0, -1.0, 4.0, 5000.0, 6.0):
        w.call(f, w.t(3), a)


@program
def floats_become_something_else(w):
    def f(x, a):
        kinds = {a: "a"}
        return x * a, f"{a:.2f}", int(a), round(a, 1), kinds, str(a), a // 1, a % 0.3, divmod(a, 2)

    f = w.compile(f)
    for a in (0.5, 1.5, 2.25, 3.0, 0.5):
        w.call(f, w.t(3), a)


@program
def numbers_change_kind(w):
    f = w.compile(lambda x, a: (x * a, a + 1, a / 2, a > 2))
    for a in (2.5, 3.5, 3, 4.5, True, 5, 6, 5.5, None, 7.5):
        w.call(f, w.t(3), a)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.step, self.rates = 0.5, 0, [0.1, 0.2]
        self.config = {"rate": 0.25, "n": 2}
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        self.step += 1
        self.config["n"] += 2
        self.rates[0] = self.rates[0] * 0.5
        if self.step % 4 == 0:
            x = x - 1
        y = self.linear(x) * self.scale + self.config["rate"] * self.rates[0]
        return y / self.step, self.step, self.config["n"], self.rates[1]


@program
def numbers_of_a_module(w):
    module = Scaled()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(w.t(*p.shape))
    f = w.compile(module)
    for k in range(9):
        w.call(f, w.t(2, 3))
        w.note(module.step, module.config, module.rates, module.scale)
        module.scale *= 0.75
        module.config["rate"] = 0.25 + k
        if k == 5:
            module.__dict__ = dict(module.__dict__) | {"scale": 9.5}
        if k == 6:
            module.rates = [0.5, 0.75, 1.0]
    result = w.call(f, w.t(2, 3))
    if isinstance(result, tuple):
        w.backward(result[0], *module.parameters())


class Slotted:
    __slots__ = ("factor", "calls")

    def __init__(self):
        self.factor, self.calls = 1.5, 5

    def apply(self, x):
        self.calls += 3
        self.factor = self.factor / 2
        return x * self.factor + self.calls


@program
def numbers_in_slots_and_cells(w):
    thing = Slotted()
    count, rate = 3, 0.5

    def f(x):
        nonlocal count, rate
        count += 1
        rate = rate * 0.9 + 0.01
        return thing.apply(x) * rate, getattr(thing, "calls") - count, vars(holder)["rate"]

    class Holder:
        pass

    holder = Holder()
    holder.rate = 0.125
    f = w.compile(f)
    for k in range(8):
        w.call(f, w.t(3))
        w.note(thing.factor, thing.calls, count, rate)
        holder.rate += 1
        if k == 4:
            thing.factor = 16.0


@program
def numbers_of_what_comes_along(w):
    def f(x, options, history):
        options["used"] += 1
        history[0] += options["by"]
        return x * options["by"] + history[1], options["name"], sum(history), list(options.values())

    f = w.compile(f)
    options, history = {"by": 0.5, "used": 2, "name": "a"}, [1.0, 2.5]
    for k in range(7):
        w.call(f, w.t(3), options, history)
        options["by"] += 0.25
        history[1] *= 2
        if k == 4:
            options = {"by": 8.5, "used": 7, "name": "a"}


@program
def numbers_behind_breaks(w):
    def f(x, a, n):
        y = x * a
        if y.sum() > 0:
            return y + a * n, n
        return y - a / n, a

    f = w.compile(f)
    for k in range(8):
        w.call(f, w.t(4), 0.5 + k, 2 + k)


@program
def numbers_and_gradients(w):
    def f(x, a, n):
        return (x * a).sin() * a + torch.mul(x, a) / n

    f = w.compile(f)
    for k in range(6):
        x = w.t(3, grad=True)
        w.backward(w.call(f, x, 0.5 + k / 4, 3 + k), x)


def _train(w, make, schedule):
    parameters = [torch.nn.Parameter(w.t(4)), torch.nn.Parameter(w.t(2, 3))]
    optimizer = make(parameters)
    scheduler = schedule(optimizer)
    step = w.compile(optimizer.step)
    for _ in range(6):
        for p in parameters:
            p.grad = w.t(*p.shape)
        w.call(step)
        scheduler.step()
        w.note([p.detach().clone() for p in parameters], optimizer.param_groups[0]["lr"])


@program
def a_schedule_for_sgd(w):
    _train(
        w,
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    )


@program
def a_schedule_for_adamw(w):
    _train(
        w,
        lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    )


@program
def a_schedule_for_adam_in_lists(w):
    _train(
        w,
        lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=0.1, foreach=True),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    )


@program
def numbers_that_are_tensors_for_a_while(w):
    """No data decides them."""

    def halves(x):
        n = torch.div(x.size(1), 2, rounding_mode="trunc")
        y = x[:, : 2 * int(n)].view(x.size(0), n, 2)
        return y * (n > 1), n, n.item() + 1, float(n), "more" if n > 2 else "less", [1, 2, 3, 4][n]

    def written_to(x, k):
        n = torch.full((), k)
        m = n + 1
        m.view(1).add_(2)
        e = torch.tensor(5)
        alias = e[None]
        before = e.item()
        alias.mul_(2)
        drawn = torch.randint(3, ()).item()
        mixed = torch.zeros(3)
        mixed[1] = x[0]
        of_range = (torch.arange(4)[2] * 3).item()
        return x * m.item(), before, e.item(), drawn, mixed[1].item(), of_range

    def of_floats(x, s):
        n = torch.full((), s) * 2
        return x * n.item(), torch.sqrt(torch.tensor(s)).item(), 1 if torch.tensor(s) > 2 else 0

    def that_fail(x, k):
        try:
            return x * torch.div(torch.full((), k), 0, rounding_mode="trunc").item()
        except RuntimeError as e:
            return str(e)

    f = w.compile(halves)
    for m in (4, 4, 6, 7, 4):
        w.call(f, w.t(2, m))
    for function, values in ((written_to, (1, 1, 2, 3)), (of_floats, (1.5, 1.5, 2.5, 0.5)),
                             (that_fail, (1, 1, 2))):  # fmt: skip
        f = w.compile(function)
        for value in values:
            w.call(f, w.t(2), value)


@program
def numbers_that_change_behind_one_that_was_fixed(w):
    """They stay two, also where they were equal in a recording."""
    thing, table = types.SimpleNamespace(count=0), {"n": 2}

    def f(x, n):
        thing.count += 2
        table["n"] = table["n"] + 1
        return x, operator.mul(n, 2)

    f = w.compile(f)
    for n, m in ((3, 7), (2, 4), (-1, 4), (-1, 7), (5, 7)):
        w.call(f, w.t(m), n)
        w.note(thing.count, table)
