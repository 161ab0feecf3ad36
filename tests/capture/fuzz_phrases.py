"""What random programs are made of: the code around them, and phrases by kind.

In a phrase `{t}` and `{u}` are names of tensors, `{a}` is a tensor's expression, `{n}` a number's
and `{c}` a condition. A compound phrase is a list of (header, body) as in `fuzz_writer.Compound`,
in which a body "..." stands for random statements.
"""

from __future__ import annotations

HEAD = """
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
from typing import Any, NamedTuple

import torch
from torch import nn


class Mode(enum.Flag):
    A = 1
    B = 2
    C = 4


class Kind(enum.Enum):
    ADD = "add"
    MUL = "mul"


class Pair(NamedTuple):
    left: Any
    right: Any = 1


@dataclasses.dataclass
class State:
    value: Any
    step: int = 0
    history: list = dataclasses.field(default_factory=list)

    def advance(self, x):
        return dataclasses.replace(self, value=self.value * 0.5 + x, step=self.step + 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.active = 1.0, True
        self.register_buffer("mean", torch.zeros(()))
        self.inner = nn.Identity()

    def forward(self, x, *, shift=0):
        if self.training and self.active:
            with torch.no_grad():
                self.mean.lerp_(x.detach().mean(), 0.25)
        return self.inner(x) * self.gain + self.mean + shift


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        ctx.how = how
        ctx.save_for_backward(x)
        return x * 0.5 + how

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 0.5 * torch.cos(x) * ctx.how, None


class Thing:
    kinds = {}

    def __init__(self, value):
        self.value, self.scale, self.count, self.log = value, 2.0, 0, []

    def bump(self, x):
        self.count += 1
        self.last = x * self.scale
        return self.last + self.value

    @property
    def twice(self):
        return self.value * 2

    @property
    def size(self):
        return self.count % 4

    @size.setter
    def size(self, value):
        self.count = self.count // 4 * 4 + int(value) % 4

    @classmethod
    def made(cls, value):
        return cls(value)

    def __getattr__(self, name):
        if name.startswith("virtual"):
            return self.value * len(name)
        raise AttributeError(name)

    def __len__(self):
        return self.count

    def __iter__(self):
        yield self.value
        yield self.value * self.scale

    def __eq__(self, other):
        return isinstance(other, Thing) and self.count == other.count

    __hash__ = object.__hash__


class Scope:
    def __init__(self, thing, swallow):
        self.thing, self.swallow = thing, swallow

    def __enter__(self):
        self.thing.log.append("in")
        return self.thing.count

    def __exit__(self, kind, value, trace):
        self.thing.log.append(kind.__name__ if kind else "out")
        return self.swallow and kind is ValueError


def build(w):
    thing, net, state, mode = Thing(w.t(4)), Net(), State(w.t(4)), Mode.A
    items = [w.t(4), w.t(4)]
    table = {"a": w.t(4), "n": 2}
    scale, count = 1.5, 0
    weight = nn.Parameter(w.t(4))

    def helper(a, b=None, *rest, k=1):
        a = torch.tanh(a) * k
        return a if b is None else a + b + len(rest)

    def parts(a, n):
        for k in range(n):
            a = a * 0.5 + k
            yield a

    def walk(a):
        try:
            while True:
                got = yield a
                a = a * 0.5 + (1 if got is None else got)
        finally:
            thing.log.append("closed")

    def both(a, n):
        total = yield from parts(a, n)
        yield a + (0 if total is None else total)

    def counted(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            thing.count += 1
            return function(*args, **kwargs)

        return inner

    @contextlib.contextmanager
    def scaled(by):
        before = thing.scale
        thing.scale = by
        try:
            yield before
        finally:
            thing.scale = before
"""

# What happens between calls.
CHANGES = (
    "thing.scale = thing.scale + 1",
    "thing.value = w.t(4)",
    "items.append(w.t(4))",
    "items[:] = items[:2]",
    "table['a'] = w.t(4)",
    "table['n'] += 1",
    "scale = scale * 0.5",
    "thing.scale *= 0.75",
    "table['n'] = 0.5 * table['n']",
    "count += 10",
    "thing.value.add_(1)",
    "Thing.bump, thing.extra = Thing.bump, 1",
    "net.gain = net.gain * 0.5",
    "net.eval()",
    "net.train()",
    "net.active = not net.active",
    "net.inner = nn.Tanh()",
    "net.mean = w.t()",
    "net.register_forward_hook(lambda module, given, out: out * 0.5)",
    "mode ^= Mode.B",
    "mode = Mode.A | Mode.C",
    "state.step += 1",
    "state.value = w.t(4)",
    "state = State(w.t(4), 3)",
    "weight.data.mul_(0.5)",
    "weight.grad = None",
    "weight.requires_grad_(not weight.requires_grad)",
    "Thing.kinds['k'] = len(Thing.kinds)",
    "table['b'] = w.t(4)",
    "table.pop('c', None)",
    "helper.__kwdefaults__ = {'k': 2}",
    "items.extend([w.t(4)] * 2)",
    "thing.log.clear()",
    "del thing.value; thing.value = w.t(4)",
    "weight.grad = w.t(4)",
    "state = dataclasses.replace(state, history=[1])",
)

STATEMENTS = (
    # dataclasses, named tuples, enums
    "state = state.advance({a})",
    "state.history.append({n})",
    "state = dataclasses.replace(state, step={n}, history=[])",
    "{t} = {t} + state.value",
    "{t} = dataclasses.astuple(state)[0] - {t}",
    "pair = Pair({a}, {n}); {t} = pair.left * pair.right",
    "{t} = Pair({a})._replace(right={a}).right",
    "left, right = Pair({a}, {u}); {t} = left - right * 0.5",
    "mode |= Mode.B",
    "mode ^= Mode.A",
    "{t} = {t} + {{Mode.A: 1, Mode.B: 2}}.get(mode, 0.5)",
    "{t} = {{Kind.ADD: lambda v: v + 1, Kind.MUL: lambda v: v * 2}}[list(Kind)[count % 2]]({t})",
    # generators, closures, functions
    "steps = walk({a}); next(steps); {t} = steps.send({n}); steps.close()",
    "steps = walk({a}); {t} = next(steps) + next(steps)",
    "{t} = [*both({a}, 2)][-1]",
    "{t} = sum(v * k for k, v in enumerate(both({a}, 2)))",
    "{t} = functools.reduce(lambda a, b: a * 0.5 + b, items[:3])",
    "{t} = functools.partial(helper, k={n})({a})",
    "{t} = counted(helper)({a}, {u})",
    "{t} = [lambda v, j=j: v + j for j in range(3)][n % 3]({t})",
    "{t} = [(lambda v: v + j) for j in range(2)][0]({t})",
    "{t} = dict(zip('pq', items))['q'] + {t}",
    "{t} = next((v for v in items if v is not {t}), {t})",
    "{t} = (lambda *a, **k: a[-1] * k.get('by', 1))({t}, {u}, by={n})",
    "{t} = next(filter(lambda v: v.dim() == 1, items)) + {t}",
    "*_, {t} = map(torch.tanh, [{a}, {u}])",
    # classes and modules
    "{t} = net({a}, shift={n})",
    "{t} = net({a})",
    "net.gain = {n}",
    "net.active = {c}",
    "net.train(flag)",
    "net.mean = net.mean * 0.5",
    "{t} = {t} + thing.virtual",
    "thing.size = {n}",
    "thing.size += 1",
    "{t} = sum(thing) + {t}",
    "other = Thing.made({t}); thing.log.append(other == thing); {t} = other.twice",
    "{t} = getattr(thing, 'made2', {t}) * 2",
    "thing.__dict__.update(made2={a})",
    "{t} = {t} + len(Thing.kinds)",
    "del thing.log[1:]",
    # views and places
    "{t}.unsqueeze(0)[:, 1:].add_({u}[1:])",
    "view = {t}.view(-1); view[{n} > 1 :: 2] = {n}",
    "{t}.narrow(0, 1, 1).fill_({n})",
    "head, tail = {t}[:1], {t}[1:]; head.copy_(tail[:1]); {t} = torch.cat([tail, head])",
    "{t} = {t}.clone(); {t}[:1].zero_()",
    "{t}.masked_fill_({t} > 1, {n})",
    "{t}[{t} > 0.5] = 0.25",
    "{t} = torch.cat([{t}, {t}[1:]])[: {t}.shape[0]]",
    "{t} = {t}.unsqueeze(1).expand(-1, 3).sum(1) * 0.3",
    "{t} = ({t}.unsqueeze(0) * {u}.unsqueeze(1)).t()[0]",
    "{t} = torch.arange({t}.shape[0]) * 0.1 + {t}",
    "{t} = {t}.new_full(({t}.shape[0],), {n}) + {t}",
    "{t} = {t}.view(2, -1).t().reshape(-1) if {t}.shape[0] % 2 == 0 else {t}",
    "{t} = {t}.as_strided({t}.shape, {t}.stride()) * 0.5",
    "{t} = torch.add({t}, {n}, out=torch.empty_like({t}))",
    "{t} = torch.zeros_like({t}).index_add_(0, torch.tensor([1, 0]), {t}[:2])",
    "{t} = {t}.scatter(0, torch.tensor([0]), {u}[:1])",
    # types
    "{t} = ({t}.double() * {n} + {u}).float()",
    "{t} = ({t} > 0) + {t}",
    "{t} = {t} + torch.ones({t}.shape[0], dtype=torch.int64) * (n > 1)",
    "{t} = {t} * torch.tensor({n})",
    "{t} = torch.where({t} > 0, {n}, {t})",
    "{t} = ({t} > 0).to({u}.dtype) - {t}",
    "{t} = {t}.bool().long() * 0.5 + {u}",
    # gradients inside
    "{t} = Halved.apply({a}, {n})",
    "weight.grad = None",
    "{t} = {t} + weight.detach()",
    "{t} = {t} * weight",
    "{t} = {t}.detach()",
    # errors and formats
    'thing.log.append(f"{{({n}):.3f}} {{count!r:>4}}")',
    "thing.log.append(math.floor({n}))",
    "thing.log.append(str(mode))",
    "thing.log += sorted({{str(k): 1 for k in table}}, key=len)[:1]",
    "if (total := len(items) + n) > 3: thing.log.append(total)",
    'thing.log.append(f"{{tuple({t}.shape)}} {{{t}.dtype}} {{{t}.ndim:>3}}")',
    "thing.log.append('{{:.2f}}|{{}}'.format({n}, {t}.shape))",
    "thing.log.append(str({t}.shape) + repr({t}.dtype))",
    "thing.log.append('%s %d' % (flag, count))",
    "thing.log.append(Kind('add').name + Kind['MUL'].value)",
    "thing.log.append(Pair._fields + tuple(Pair({n})._asdict()))",
    "thing.log.append([one.name for one in dataclasses.fields(state)])",
    "{t} = {t} * [k.value for k in Kind].index('mul')",
    "assert isinstance({t}, torch.Tensor), f'{{n}}'",
    # views of dicts, iterators, collections
    "{t} = {t} + sum(len(k) for k in table.keys())",
    "{t} = {t} * (('b' in table.keys()) + len(table.items()))",
    "thing.log += sorted(table.keys() - {{'a'}})[:1]",
    "thing.log.append([k for k in reversed(table)])",
    "{t} = {t} + len([v for v in table.values() if isinstance(v, torch.Tensor)])",
    "{t} = sum(itertools.chain(items, [{a}])) * 0.2",
    "{t} = [*itertools.islice(itertools.cycle(items), 3)][-1]",
    "{t} = {t} + sum(a * b for a, b in itertools.product((1, 2), (n, 0.5)))",
    "{t} = list(itertools.accumulate(items[:3], lambda a, b: a * 0.5 + b))[-1]",
    "{t} = {t} + sum(k for k, _ in itertools.groupby(sorted([n, 1, n])))",
    "{t} = dict(itertools.zip_longest('ab', items[:2], fillvalue={t}))['b'] * 0.5",
    "{t} = [a - b for a, b in itertools.pairwise(items)][0]",
    "{t} = collections.deque(items, maxlen=2)[-1] * 0.5",
    "{t} = {t} * collections.Counter('abca')['a']",
    "groups = collections.defaultdict(list); groups[n].append({t}); {t} = groups[n][0] * 0.5",
    "{t} = operator.add({t}, {n})",
    "(first, *_), last = items, {t}; {t} = first * 0.5 + last",
    "{t} = {t} if {c} else {u}",
    "Thing.kinds.setdefault('j', 3)",
    # operators that index, sort, put together
    "{t} = torch.einsum('i,j->i', {a}, {u}) * 0.2",
    "{t} = torch.einsum('i,i->', {a}, {t}) * 0.1 + {t}",
    "{t} = {t}.gather(0, torch.tensor([1, 0])).sum() * 0.1 + {t}",
    "{t} = {t}.index_select(0, torch.tensor([0, 1])).mean() + {u}",
    "{t} = {t}.clone(); {t}.scatter_add_(0, torch.tensor([0, 0]), {u}[:2])",
    "{t} = {t}.sort().values",
    "{t} = {t} + {t}.topk(2).values.sum() * 0.1",
    "{t} = {t}.roll(1, 0)",
    "{t} = nn.functional.pad({t}[1:], (1, 0), value=0.5)",
    "{t} = nn.functional.one_hot(torch.tensor([0, 1]), 3).float().sum() * 0.1 + {t}",
    "{t} = {t}.unfold(0, 2, 1).sum(-1).sum() * 0.1 + {t}",
    "{t} = torch.stack([{t}, {u}], 1).flatten()[: {t}.shape[0]]",
    "{t} = torch.meshgrid({t}, {u}, indexing='ij')[0][:, 0] * 0.5",
    "{t} = torch.nan_to_num({t} / 0, posinf=1.0, neginf=-1.0, nan=0.5)",
    "a, b = {t}.chunk(2); {t} = torch.cat([b, a])",
    "{t}, _ = torch.max(torch.stack([{t}, {u}]), 0)",
    "{t} = torch.std({t}) * 0.1 + {u}",
    "{t}[..., -1] += {n}",
    "{t}[torch.tensor([0, 1])] = {u}[:2].clone()",
    "{t}[torch.tensor([1, 0])] += 0.5",
    "{t} = {t}[torch.tensor([0, -1])].sum() * 0.1 + {t}",
    "{t}.select(0, 0).copy_({u}[-1])",
    "{t}[{t}.argmax()] = {n}",
    # nobody reads it
    "{t}[torch.tensor([0, 1])]",
    "torch.gather({t}, 0, torch.tensor([0]))",
)

COMPOUNDS = (
    [("with contextlib.suppress(ValueError, LookupError):", "...")],
    [("with scaled({n}) as before:", "...")],
    [("with contextlib.ExitStack() as stack:", ["stack.enter_context(Scope(thing, True))", "..."])],
    [("with torch.enable_grad():",
      ["{t} = torch.autograd.grad((weight * {u}.detach()).sin().sum(), weight)[0]"])],
    [("with torch.enable_grad():",
      ["(helper(weight) * {u}.detach()).sum().backward()", "{t} = {t} + weight.grad"])],
    [("match (list(Kind)[count % 2], {n}, n):", [
        [("case (Kind.ADD, k, _) if k > 1:", "..."), ("case (_, 0 | 0.5, _):", "..."),
         ("case (Kind.MUL, _, int(j)):", ["thing.count += j", "..."]), ("case _:", "...")]])],
    [("match state:", [
        [("case State(step=0):", "..."), ("case State(value=v, step=k) if k < 3:",
                                          ["{t} = {t} + v * k"]),
         ("case _:", ["state = State({t})"])]])],
    [("match items:", [
        [("case [a, b]:", ["{t} = a - b"]), ("case [a, *_, b]:", ["{t} = a + b"])]])],
    [("try:", ["try:\n    raise KeyError({n})\nexcept KeyError as first:\n"
               "    raise ValueError('planned', n) from first"]),
     ("except ValueError as error:",
      ["thing.log.append((error.args, type(error.__cause__).__name__))", "..."]),
     ("else:", "...")],
    [("for {t}, k in ((v, j) for j, v in enumerate(items) if j < 2):", "...")],
    [("for leaf in list(thing):", ["{t} = {t} * 0.5 + leaf", "..."])],
    [("try:", ["...", "if {c}: raise RuntimeError('planned')"]),
     ("except (ValueError, RuntimeError) as error:", ["thing.log.append(str(error)[:7])"]),
     ("finally:", ["thing.count += 1", "..."])],
    [("for k in range(3):", [
        [("try:", ["if k == n: continue", "..."]), ("finally:", ["count += 1"])]])],
    [("for _ in itertools.repeat(None, 4):", [
        "count += 1", "...", [("if count % 3 == 0:", ["break"])]])],
    [("match table:", [
        [("case {{'n': int(k), **rest}} if k > 2:", ["{t} = {t} * k + len(rest)"]),
         ("case {{'b': torch.Tensor() as b}}:", ["{t} = {t} + b"]), ("case _:", "...")]])],
    [("match {t}.shape:", [
        [("case (4,):", "..."), ("case (k,):", ["{t} = {t} * k"]), ("case _:", "...")]])],
    [("for name, value in list(table.items()):", [
        [("if isinstance(value, torch.Tensor):", ["table[name] = value * 0.5", "..."])]])],
    [("for k, (a, b) in enumerate(zip(items, items[1:])):", ["{t} = {t} + a * b * k", "..."])],
    [("with torch.no_grad():", ["weight.mul_(0.5)", "..."])],
)  # fmt: skip

TENSORS = (
    "state.value",
    "net({a})",
    "Pair({a}, {t}).left",
    "({a} if (k := {n}) else {t} * 2)",
    "({a}.double() * {t}).to({t}.dtype)",
    "torch.stack([{a}, {t}]).amax(0)",
    "next(parts({a}, 1))",
    "{a}.lerp({t}, 0.25)",
    "torch.addcmul({a}, {t}, {t}, value={n})",
    "torch.add({a}, {t}, alpha={n})",
    "({a} ** 2)",
    "({a} / (2 + n * n))",
    "({n} - {a})",
    "{a}.sum(0, keepdim=True).expand({t}.shape[0])",
    "torch.softmax({a}, 0)",
    "{a}.cumsum(0).tanh()",
    "[{a}, {t}][n % 2]",
    "counted(torch.sin)({a})",
    "(weight * 0.5 + {a}).detach()",
    "torch.einsum('i,i->i', {a}, {t})",
    "torch.where({t} > 0, {a}, {n})",
    "{a}.scatter(0, torch.tensor([1]), 0.5)",
    "{a}.cumprod(0).tanh()",
    "torch.cat([{a}, {t}])[: {t}.shape[0]]",
    "functools.partial(torch.mul, {t})({a})",
    "(lambda *, k: k * 2)(k={a})",
    "nn.functional.gelu({a})",
    "nn.functional.layer_norm({a}, {a}.shape)",
    "(torch.logsumexp({a}, 0) + {t})",
)

NUMBERS = (
    "state.step",
    "net.gain",
    "sum(k for k in range(max(n, 0)))",
    "len([*range(abs(n))])",
    "mode.value",
    "math.sqrt(abs(s))",
    "round(s, 1)",
    "divmod(count, 3)[1]",
    "int(s * 3)",
    "x.numel()",
    "x.stride(0)",
    "len(thing)",
    "thing.size",
    "max(len(items), n, key=lambda k: -k)",
    "(n << 1)",
    "(n if flag else s)",
    "float(n)",
    "len(state.history)",
    "sum([s, n, 1])",
    "abs(n - 2)",
    "(x.shape[0] * 0.5)",
    "(lambda k=n: k + 1)()",
    "{{0: 1, 1: s}}.get(n, 0.5)",
    "len(table.keys())",
    "next(itertools.count(n))",
    "len(f'{{n}}')",
    "{t}.ndim",
    "{t}.numel()",
    "list(table).index('n')",
    "(isinstance(s, float) + 1)",
    "operator.mul(n, 2)",
    "sum(map(int, '12'))",
    "pow(n, 2)",
    "math.floor(s)",
    "-(-n // 2)",
)

CONDITIONS = (
    "Mode.B in mode",
    "mode is Mode.A",
    "state.step % 2",
    "net.training",
    "any(k > 1 for k in (n, count))",
    "all(v.dim() == 1 for v in items)",
    "hasattr(thing, 'made2')",
    "state == State(state.value, 0, [])",
    "isinstance({t}, torch.Tensor) and n",
    "(n, flag) in ((2, True), (3, False))",
    "{t}.shape == {u}.shape",
    "{t}.requires_grad",
    "bool(state.history) != flag",
    "{n} in (1, 2, 0.5)",
    "thing == Thing({t})",
    "{t}.is_contiguous()",
    "torch.is_grad_enabled()",
    "table.keys() >= {{'a', 'n'}}",
    "n in range(1, 3)",
    "type(thing).__name__ == 'Thing'",
    "{t}.dtype is torch.float32",
    "len({{n, 1, 2}}) == 3",
    "table.get('b') is None",
    "any(isinstance(v, list) for v in table.values())",
    "str(n) > '1'",
)
