"""What users of PyTorch write: the standard library's tools around tensors, and state of every kind
that changes between calls."""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import operator
import types
import typing

import torch
import torch.nn.functional as F
from torch import nn

from capture.harness import program


@dataclasses.dataclass
class Options:
    scale: float = 2.0
    names: list = dataclasses.field(default_factory=lambda: ["a"])
    cache: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        self.total = self.scale + len(self.names)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    k: int = 1


@dataclasses.dataclass(kw_only=True, order=True)
class Ranked:
    rank: int
    weight: float = 1.0


@program
def dataclasses_with_factories_and_replace(w):
    outside = Options(3.0)

    def f(x, n):
        o = Options(names=["b"] * n)
        o.cache["x"] = x * o.total
        p = dataclasses.replace(outside, scale=float(n))
        p.names.append("c")  # the list is shared with `outside`
        return o, p.total, p.names is outside.names, dataclasses.asdict(Options(n * 1.0))

    def g(x, frozen):
        other = dataclasses.replace(frozen, k=frozen.k + 1)
        try:
            frozen.k = 3
        except dataclasses.FrozenInstanceError as error:
            return other.x * other.k, str(error)

    def h(x, ranks):
        best = max(Ranked(rank=r, weight=x.shape[0]) for r in ranks)
        return x * best.rank, sorted([Ranked(rank=2), Ranked(rank=1)])[0], best > Ranked(rank=2)

    f, g, h = w.compile(f), w.compile(g), w.compile(h)
    for n in (1, 1, 2, 1):
        w.call(f, w.t(2), n)
        w.note(outside)
        w.call(g, w.t(2), Frozen(w.t(2), n))
        w.call(h, w.t(2), [n, 2, 1])


@program
def exit_stacks(w):
    log = []

    @contextlib.contextmanager
    def scaled(x, k):
        log.append(("enter", k))
        try:
            yield x * k
        finally:
            log.append(("exit", k))

    def f(x, n, fail):
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "callback")
            stack.push(lambda kind, error, trace: kind is ValueError)
            total = 0
            for k in range(n):
                total = total + stack.enter_context(scaled(x, k))
            if fail:
                raise ValueError("in the stack")
            later = stack.pop_all()
        log.append("out")
        if not fail:
            later.close()
        return total

    def g(x):
        with contextlib.nullcontext(x * 2) as y, contextlib.suppress(KeyError), torch.no_grad():
            {}[1]
        with contextlib.closing(types.SimpleNamespace(close=lambda: log.append("closed"))):
            return y

    f, g = w.compile(f), w.compile(g)
    for n, fail in ((1, False), (2, False), (2, True), (1, False), (2, False)):
        w.call(f, w.t(2), n, fail)
        w.call(g, w.t(2, grad=True))
        w.note(list(log))


@program
def chain_maps_and_defaults_of_tensors(w):
    low, high = {"a": w.t(2), "b": 2.0}, {"b": 3.0}
    chain = collections.ChainMap(high, low)
    sums = collections.defaultdict(lambda: torch.zeros(2))
    counts = collections.Counter("abca")

    def f(x, key):
        inner = chain.new_child({"c": x})
        chain["d"] = x * 2
        sums[key] += x
        counts[key] += 1
        counts.update({"a": 2})
        return inner["a"] * inner["b"] + inner["c"], list(inner), counts.most_common(1), len(chain)

    def g(x):
        total = collections.Counter()
        for name in "xyx":
            total[name] = total[name] + x
        both = counts + collections.Counter(a=1)
        return dict(total), both["a"], list((counts & both).elements()), +counts

    f, g = w.compile(f), w.compile(g)
    for key in ("a", "z", "a", "a"):
        w.call(f, w.t(2), key)
        w.call(g, w.t(2))
        w.note(dict(sums), dict(counts), high)
        low["b"] = 5.0
        high.pop("b", None)


class Mode(enum.Flag):
    SCALE = enum.auto()
    SHIFT = enum.auto()
    SQUARE = enum.auto()
    BOTH = SCALE | SHIFT


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Kind(str, enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    def apply(self, x):
        return getattr(torch, self.value)(x)


@program
def flags_and_kinds_decide(w):
    def f(x, mode, level, kind):
        if mode & Mode.SCALE:
            x = x * level
        if Mode.SHIFT in mode:
            x = x + level.value
        if (mode ^ Mode.BOTH) == Mode.SQUARE | Mode.BOTH:
            x = x**2
        if level >= Level.HIGH:
            x = -x
        return kind.apply(x), mode | Mode.SQUARE, kind == "relu", ~mode, Kind(kind.value) is kind

    f = w.compile(f)
    for mode in (Mode.SCALE, Mode.BOTH, Mode.SQUARE, Mode(0), Mode.SCALE):
        for level in Level:
            w.call(f, w.t(2), mode, level, Kind.TANH if level == 1 else Kind.RELU)


class Batch(typing.NamedTuple):
    x: torch.Tensor
    mask: torch.Tensor
    name: str = "batch"

    @property
    def size(self):
        return self.x.shape[0]

    def to(self, dtype):
        return self._replace(x=self.x.to(dtype), mask=self.mask.to(dtype))

    def __add__(self, other):
        return Batch(self.x + other.x, self.mask * other.mask, self.name + other.name)


@program
def named_tuples_with_methods(w):
    def f(batch):
        wide = batch.to(torch.float64)
        both = batch + Batch._make((batch.x, batch.mask, "c"))
        x, mask, name = both
        return wide, both._asdict(), x.masked_fill(mask > 0, batch.size), name, Batch._fields

    f = w.compile(f)
    for name in ("a", "a", "b"):
        w.call(f, Batch(w.t(3), w.t(3), name))
    w.call(f, Batch(w.t(4), w.t(4)))


class Forwarding(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.calls = 0

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.weight.sum() + self.in_features


@program
def modules_that_forward_attributes(w):
    torch.manual_seed(3)
    module = Forwarding(nn.Linear(2, 2))
    f = w.compile(module)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    module.inner = nn.Linear(2, 3)
    w.call(f, w.t(2))
    module.in_features = 7
    w.call(f, w.t(2))
    w.backward(w.call(f, w.t(2)), *module.parameters())
    w.note(module.calls)


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self._gain = 1.0
        self.log = []
        self.weight = nn.Parameter(torch.ones(2))

    @property
    def gain(self):
        return self._gain * 2

    @gain.setter
    def gain(self, value):
        self.log.append(value)
        self._gain = value

    @gain.deleter
    def gain(self):
        self._gain = 1.0

    def forward(self, x):
        self.gain = self.gain + 1
        if self._gain > 40:
            del self.gain
        return x * self.weight * self.gain


@program
def properties_with_setters_on_modules(w):
    module = Gain()
    f = w.compile(module)
    for i in range(6):
        y = w.call(f, w.t(2))
        w.backward(y, module.weight)
        w.note(module._gain, module.log)
        if i == 3:
            module.gain = 0.5


class Typed:
    """A descriptor that knows its name and checks what it is given."""

    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name = "_" + name
        owner.fields = (*getattr(owner, "fields", ()), name)

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, self.kind())

    def __set__(self, instance, value):
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name[1:]} is no {self.kind.__name__}")
        setattr(instance, self.name, value)


class Checked:
    scale = Typed(float)
    steps = Typed(int)


class Registered(type):
    made: typing.ClassVar[list] = []

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        cls.made.append(cls.__name__)
        return made

    def __len__(cls):
        return len(cls.made)

    def __getitem__(cls, k):
        return functools.partial(cls, k)


class Scaled(metaclass=Registered):
    def __init__(self, k, more=0):
        self.k, self.more = k, more

    def __call__(self, x):
        return x * self.k + self.more


@program
def descriptors_metaclasses_and_callables(w):
    Registered.made.clear()
    checked = Checked()

    def f(x, value):
        try:
            checked.scale = value
        except TypeError as error:
            return x, str(error)
        checked.steps = checked.steps + 1
        return x * checked.scale + checked.steps, Checked.fields, type(Checked.scale).__name__

    def g(x, k):
        return Scaled(k)(Scaled[2](more=1)(x)), len(Scaled), list(map(Scaled(3), [x, 1]))

    f, g = w.compile(f), w.compile(g)
    for value in (1.5, 1.5, 2, 2.5, 1.5):
        w.call(f, w.t(2), value)
        w.call(g, w.t(2), 3)
        w.note(vars(checked), list(Registered.made))


@program
def functions_of_the_operator_module(w):
    def f(x, y, box):
        operator.setitem(box, "z", operator.add(x, y))
        box["n"] = operator.iadd(box["n"], 1)
        total = functools.reduce(operator.mul, [x, y, 2])
        pair = operator.itemgetter("z", "n")(box)
        shape = operator.attrgetter("shape", "dtype")(x)
        return (total, pair, shape, operator.methodcaller("sum", dim=0)(x), operator.index(3),
                operator.not_(box), operator.contains(box, "z"), operator.length_hint([1, 2]),
                operator.matmul(x, y), operator.neg(x), operator.is_(x, x))  # fmt: skip

    f = w.compile(f)
    for n in (1, 1, 2):
        w.call(f, w.t(3), w.t(3), {"n": n})
    in_place = w.compile(lambda x, y: (operator.imul(x, y), operator.isub(x, 1))[0])
    for _ in range(2):
        w.call(in_place, w.t(3), w.t(3))


@program
def tools_of_itertools(w):
    def f(x, names):
        groups = {k: list(g) for k, g in itertools.groupby(sorted(names, key=len), key=len)}
        sums = list(itertools.accumulate([x, x * 2, x * 3], lambda a, b: a + b))
        pairs = [b - a for a, b in itertools.pairwise([x, x * 2, x * 4])]
        first, second = itertools.tee(iter([x, x + 1]))
        tail = list(itertools.compress([x, 1, 2], [0, 1, 1]))
        return (groups, sums, pairs, list(first), next(second), tail,
                list(itertools.filterfalse(len, names)),
                [i * x for i, x in zip(itertools.count(1), [x, x], strict=False)])  # fmt: skip

    def strict(x, items):
        try:
            return [a * b for a, b in zip(x.unbind(), items, strict=True)]
        except ValueError as error:
            return str(error)

    f, strict = w.compile(f), w.compile(strict)
    for names in (["a", "bb", "c"], ["a", "bb", "c"], ["dd", ""]):
        w.call(f, w.t(2), names)
        w.call(strict, w.t(2), names)
        w.call(strict, w.t(3), [1, 2, 3])


@program
def walrus_in_comprehensions(w):
    def f(x, ns):
        kept = [last := x * n for n in ns if (m := n % 3)]
        found = any((hit := n) > 2 for n in ns)
        table = {k: (y := x + k) for k in ns}
        return kept, last, m, found, hit, table, y

    f = w.compile(f)
    for ns in ([1, 2, 3], [1, 2, 3], [4, 5], [1, 1], [3]):
        w.call(f, w.t(2), ns)


@program
def generators_that_are_sent_to(w):
    log = []

    def averages(x):
        total, n = x * 0, 0
        try:
            while True:
                given = yield total / max(n, 1)
                if given is None:
                    return "nothing"
                total, n = total + given, n + 1
        except KeyError as error:
            log.append(str(error))
            yield x - 1
        finally:
            log.append("finally")

    def outer(x):
        result = yield from averages(x)
        log.append(result)
        yield x * 100

    def f(x, how):
        g = outer(x)
        out = [next(g), g.send(x), g.send(x * 3)]
        if how == "throw":
            out.append(g.throw(KeyError("thrown")))
        elif how == "close":
            g.close()
        elif how == "end":
            out.append(g.send(None))
        else:
            try:
                g.throw(ValueError("passes"))
            except ValueError as error:
                out.append(str(error))
        return out

    f = w.compile(f)
    for how in ("throw", "close", "end", "else", "throw", "close"):
        w.call(f, w.t(2), how)
        w.note(list(log))


@program
def async_generators(w):
    async def numbers(x, n):
        for i in range(n):
            yield x * i
            await asyncio.sleep(0)

    async def gather(x, n):
        parts = [y async for y in numbers(x, n) if y.shape[0]]
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(parts.append, x)
        return sum(parts)

    f = w.compile(lambda x, n: asyncio.run(gather(x, n)))
    for n in (2, 2, 3):
        w.call(f, w.t(2), n)


@program
def groups_of_exceptions(w):
    def f(x, kinds):
        seen = []
        try:
            raise ExceptionGroup("several", [kind(str(i)) for i, kind in enumerate(kinds)])
        except* ValueError as group:
            seen.append(len(group.exceptions))
            x = x + 1
        except* (KeyError, TypeError) as group:
            seen.append(repr(group))
            x = x * 2
        finally:
            seen.append("finally")
        return x, seen

    f = w.compile(f)
    for kinds in (
        [ValueError],
        [ValueError, KeyError],
        [TypeError, TypeError],
        [OSError],
        [ValueError],
    ):
        w.call(f, w.t(2), kinds)


@program
def finally_that_returns(w):
    def f(x, how):
        for i in range(3):
            try:
                if how == "raise":
                    raise ValueError
                if how == "return":
                    return x
                if how == "continue":
                    continue
            finally:
                x = x + 1
                if i == 1:
                    if how == "continue":
                        break
                    return x * 10  # noqa: B012
        else:
            return x - 1
        return x - 2

    f = w.compile(f)
    for how in ("raise", "return", "continue", "fall", "raise", "return"):
        w.call(f, w.t(2), how)


@program
def star_expressions_over_tensors(w):
    def f(x):
        first, *rest, last = x
        (a, b), *more = x[:3, :2]
        head, *_ = {**{"k": first}, "last": last}.values()
        return (
            torch.stack([first, *rest]),
            last,
            [*x.unbind(1)],
            a * b,
            more,
            head,
            (*x.shape, *"ab"),
        )

    f = w.compile(f)
    for n in (3, 3, 4):
        w.call(f, w.t(n, 3))
    w.call(f, w.t(1, 3))


@program
def in_place_on_views_of_inputs(w):
    def f(x, y):
        x[1:].add_(1)
        x.t()[0] *= 2
        v = x.view(-1)[::2]
        v.copy_(y[: v.numel()])
        x.diagonal().zero_()
        y.unsqueeze(0).clamp_(min=0)
        x.select(0, 0)[1:].fill_(7)
        x.narrow(1, 0, 1).squeeze().neg_()
        a, b = x.chunk(2)
        a.add_(b)
        return x.sum(), v

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(4, 4), w.t(9))
    both = w.t(9)
    w.call(f, both[:4].view(2, 2).repeat(2, 2), both)


class Rows(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "i": i, "name": f"row {i}"}


@program
def batches_of_data_loaders(w):
    loader = torch.utils.data.DataLoader(Rows(w.t(5, 2)), batch_size=2)

    def step(batch, scale):
        x, i = batch["x"], batch["i"]
        return {"y": x * scale + i[:, None], "names": [n.upper() for n in batch["name"]]}

    def all_of_it(x):
        total = x
        for batch in loader:
            total = total + batch["x"].sum() * len(batch["name"])
        return total

    step, all_of_it = w.compile(step), w.compile(all_of_it)
    for _ in range(2):
        for batch in loader:
            w.call(step, batch, 2.0)
    w.call(all_of_it, w.t(2))
    w.call(all_of_it, w.t(2))
    collate = w.compile(lambda *rows: torch.utils.data.default_collate(list(rows)))
    for _ in range(2):
        w.call(collate, {"a": w.t(2), "b": 1}, {"a": w.t(2), "b": 2})


class Dictionaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(2) * 2})
        self.layers = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Tanh()})
        self.shifts = nn.ParameterList([torch.zeros(2), torch.ones(2)])

    def forward(self, x, name=None):
        for weight in self.weights.values():
            x = x * weight
        for key, layer in self.layers.items():
            if key != name:
                x = layer(x)
        if "c" in self.weights:
            x = x + self.weights["c"]
        return x + sum(self.shifts) * len(self.layers), list(self.weights.keys())


@program
def dictionaries_of_modules_and_parameters_change(w):
    torch.manual_seed(5)
    module = Dictionaries()
    f = w.compile(module)
    w.call(f, w.t(2))
    w.call(f, w.t(2), "two")
    module.layers["three"] = nn.Sigmoid()
    w.call(f, w.t(2))
    module.weights["c"] = nn.Parameter(torch.ones(2) * 3)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    module.layers.pop("two")
    y, _ = w.call(f, w.t(2))
    w.backward(y, *module.parameters())
    module.weights.update({"a": nn.Parameter(torch.ones(2) * 4)})
    module.shifts.append(nn.Parameter(torch.ones(2) * 5))
    w.call(f, w.t(2))
    module.layers["one"] = nn.Identity()
    del module.weights["b"]
    w.call(f, w.t(2), "one")


@program
def lazy_and_normed_layers(w):
    torch.manual_seed(2)
    lazy = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d())
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))

    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).T

    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.Sequential(lazy, spectral, orthogonal, normed)

        def forward(self, x):
            return self.parts(x)

    module = All()
    f = w.compile(module)
    for _ in range(2):
        y = w.call(f, w.t(4, 5))
        w.backward(y, *module.parameters())
    nn.utils.parametrize.register_parametrization(orthogonal, "bias", nn.Tanh())
    w.call(f, w.t(4, 5))
    nn.utils.parametrize.remove_parametrizations(normed, "weight")
    nn.utils.parametrize.register_parametrization(spectral, "weight", Symmetric())
    w.call(f, w.t(4, 5))
    with nn.utils.parametrize.cached():
        w.call(f, w.t(4, 5))
    module.eval()
    w.call(f, w.t(4, 5))
    w.note([k for k, _ in module.named_parameters()])


@program
def packed_sequences(w):
    torch.manual_seed(4)
    rnn = nn.GRU(2, 3, batch_first=True)

    def f(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        out, h = rnn(packed)
        padded, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded, sizes, h, out.batch_sizes

    def g(parts):
        return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1.0)

    f, g = w.compile(f), w.compile(g)
    for lengths in ([3, 2], [3, 2], [1, 3], [2, 2]):
        w.call(f, w.t(2, 3, 2), torch.tensor(lengths))
        w.call(g, [w.t(n, 2) for n in lengths])


@program
def moving_averages_of_weights(w):
    torch.manual_seed(1)
    model, ema = nn.Linear(2, 2), nn.Linear(2, 2)
    shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(decay):
        for a, b in zip(ema.parameters(), model.parameters(), strict=True):
            a.lerp_(b, 1 - decay)
        for k, v in model.state_dict().items():
            shadow[k].copy_(shadow[k] * decay + v * (1 - decay))
        return decay

    def reset():
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters(), strict=True):
                a.copy_(b)

    update, reset = w.compile(update), w.compile(reset)
    for decay in (0.9, 0.9, 0.5, 0.99):
        w.call(update, decay)
        w.note(list(ema.parameters()), shadow)
        with torch.no_grad():
            model.weight.add_(1)
    w.call(reset)
    w.note(list(ema.parameters()), ema.weight.requires_grad)


SCALE = 2.0
HELPER = torch.sin


def helper(x, k=3.0, *, shift=1.0):
    return x * k + shift


@program
def everything_is_bound_anew_between_calls(w):
    class Model(nn.Module):
        factor = 2.0

        def __init__(self):
            super().__init__()
            self.shift = 1.0

        def part(self, x):
            return x * self.factor

        def forward(self, x):
            return self.part(x) + self.shift

    class Sub(Model):
        def part(self, x):
            return super().part(x) * 3

    cell = 1.0
    model, sub = Model(), Sub()

    def f(x):
        return HELPER(x) * SCALE + cell + helper(x), model(x), sub(x)

    f = w.compile(f)

    def call():
        w.call(f, w.t(2))
        w.call(f, w.t(2))

    try:
        call()
        globals()["SCALE"] = 3.0
        call()
        globals()["HELPER"] = torch.cos
        call()
        cell = w.t(2)
        call()
        helper.__defaults__ = (4.0,)
        call()
        helper.__kwdefaults__ = {"shift": 2.0}
        call()
        helper.__kwdefaults__["shift"] = 5.0
        call()
        model.shift = w.t(2)
        call()
        Model.factor = 4.0
        call()
        model.factor = 5.0
        call()
        model.part = lambda x: x - 1
        call()
        del model.part
        call()
        Model.part = lambda self, x: x - 2
        call()
        Sub.part = Model.part
        call()
        model.forward = types.MethodType(lambda self, x: x + self.factor, model)
        call()
        sub.__class__ = Model
        call()
        Model.__call__ = lambda self, x: "called"
        call()
    finally:
        globals().update(SCALE=2.0, HELPER=torch.sin)
        helper.__defaults__, helper.__kwdefaults__ = (3.0,), {"shift": 1.0}


@program
def torch_is_patched_between_calls(w):
    def f(x):
        return F.relu(x) + torch.sin(x) + nn.functional.gelu(x)

    f = w.compile(f)
    w.call(f, w.t(3))
    old = F.relu, torch.sin
    try:
        F.relu = lambda x: x * 100
        w.call(f, w.t(3))
        w.call(f, w.t(3))
        torch.sin = lambda x: x * 7
        w.call(f, w.t(3))
    finally:
        F.relu, torch.sin = old
    w.call(f, w.t(3))


@program
def registries_and_dispatch_tables(w):
    table = {}

    def register(name):
        def add(function):
            table[name] = function
            return function

        return add

    @register("double")
    def double(x):
        return x * 2

    register("neg")(torch.neg)

    @functools.singledispatch
    def size(value):
        return 0

    @size.register
    def _(value: torch.Tensor):
        return value.sum()

    @size.register(list)
    @size.register(tuple)
    def _(value):
        return sum(size(v) for v in value)

    class Visitor:
        def visit(self, node):
            return getattr(self, "visit_" + type(node).__name__.lower(), self.other)(node)

        def visit_tensor(self, node):
            return node * 2

        def visit_list(self, node):
            return [self.visit(n) for n in node]

        def other(self, node):
            return node

    visitor = Visitor()

    def f(x, names):
        for name in names:
            x = table.get(name, lambda x: x - 1)(x)
        return x, size([x, (x, 1)]), visitor.visit([x, [x, "a"], 3])

    f = w.compile(f)
    w.call(f, w.t(2), ["double", "neg"])
    w.call(f, w.t(2), ["double", "neg"])
    register("double")(lambda x: x * 20)
    w.call(f, w.t(2), ["double", "other"])
    size.register(int)(lambda value: value * 100)
    w.call(f, w.t(2), ["double", "neg"])
    Visitor.visit_int = lambda self, node: node + 0.5
    w.call(f, w.t(2), ["double", "neg"])
    visitor.visit_str = str.upper
    w.call(f, w.t(2), ["neg"])


@program
def copies_and_pickles_of_states(w):
    state = {"step": 1, "x": w.t(2), "nested": [{"k": (1, 2)}]}

    def f(x):
        mine = copy.copy(state)
        mine["step"] += 1
        deep = copy.deepcopy({k: v for k, v in state.items() if k != "x"})
        deep["nested"][0]["k"] = x
        return mine, deep, state["nested"][0]

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    state["nested"].append({"n": 1})
    w.call(f, w.t(2))
    state["step"] = 5
    w.call(f, w.t(2))
    w.note(state)


@program
def texts_made_of_shapes_and_numbers(w):
    def f(x, name, lr):
        key = f"{name:>6}|{x.shape[-1]:03d}|{lr:.3e}|{x.dtype!s:*^16}|{tuple(x.shape)!r}"
        parts = "%s-%d-%5.2f" % (name, len(x), lr)
        joined = ",".join(str(n) for n in x.size())
        return (
            x * len(key),
            key,
            parts,
            joined,
            "{0}{1:+d}{n[a]}".format(name, 3, n={"a": lr}),
            (name.partition("_"), name.title().encode(), f"{name=}", f"{lr:{len(name)}.1f}"),
        )

    f = w.compile(f)
    for name, lr in (("a_b", 0.1), ("a_b", 0.1), ("c", 0.1), ("c", 0.25)):
        w.call(f, w.t(2, 3), name, lr)
    w.call(f, w.t(4, 3), "c", 0.25)


class Vector:
    """A value type with all the arithmetic of its own."""

    __slots__ = ("parts",)

    def __init__(self, *parts):
        self.parts = parts

    def __iter__(self):
        return iter(self.parts)

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self, other, strict=True)))

    def __rmul__(self, k):
        return Vector(*(k * a for a in self))

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self, other, strict=True))

    def __getitem__(self, i):
        return Vector(*self.parts[i]) if isinstance(i, slice) else self.parts[i]

    def __len__(self):
        return len(self.parts)

    def __bool__(self):
        return len(self.parts) > 1

    def __contains__(self, item):
        return any(p is item for p in self.parts)

    def __eq__(self, other):
        return isinstance(other, Vector) and len(self) == len(other)

    def __hash__(self):
        return len(self)

    def __iadd__(self, other):
        self.parts = (*self.parts, other)
        return self

    def __reversed__(self):
        return Vector(*self.parts[::-1])

    def __radd__(self, other):
        return NotImplemented

    def __torch_function__(self, *args, **kwargs):
        raise RuntimeError("never asked")


@program
def values_with_arithmetic_of_their_own(w):
    outside = Vector(w.t(2), w.t(2))

    def f(x, v):
        u = 2 * (v + outside)
        u += x
        try:
            3 + u
        except TypeError as error:
            text = str(error)
        return (u @ Vector(x, x, x), u[1:], x in u, bool(u[:1]), {u: 1}[Vector(1, 2, 3)],
                u == v, reversed(u), text)  # fmt: skip

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2), Vector(w.t(2), w.t(2)))
    outside.parts = (w.t(2), 3.0)
    w.call(f, w.t(2), Vector(w.t(2), 2.0))
    outside.parts = (w.t(2),)
    w.call(f, w.t(2), Vector(w.t(2), w.t(2)))


@program
def masks_padding_and_positions(w):
    def f(ids, lengths):
        n = ids.shape[1]
        mask = torch.arange(n)[None] < lengths[:, None]
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        both = mask[:, None] & causal
        scores = torch.zeros(ids.shape[0], n, n).masked_fill(~both, float("-inf"))
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        last = ids.gather(1, (lengths - 1)[:, None]).squeeze(1)
        return scores.softmax(-1).nan_to_num(), positions, last, F.one_hot(ids % 3, 3), mask.all(1)

    f = w.compile(f)
    for n in (4, 4, 5, 1):
        w.call(f, torch.arange(2 * n).view(2, n), torch.tensor([n, max(n - 1, 1)]))


@program
def beams_and_samples(w):
    torch.manual_seed(0)

    def step(scores, beams, k):
        total = scores + beams[:, None]
        best, at = total.flatten().topk(k)
        rows = torch.div(at, scores.shape[1], rounding_mode="floor")
        return best, rows, at % scores.shape[1], [int(r) for r in rows]

    def sample(logits, temperature, top):
        logits = logits / temperature
        limit = logits.topk(top).values[..., -1, None]
        return torch.multinomial(logits.where(logits >= limit, -1e9).softmax(-1), 1)

    step, sample = w.compile(step), w.compile(sample)
    for k in (2, 2, 3):
        w.call(step, w.t(k, 4), w.t(k), k)
        w.call(sample, w.t(2, 6), 0.7, k)


@program
def accumulating_steps_with_clipping(w):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
    seen = {"losses": [], "norms": []}

    def step(i, x, y):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=i % 4 == 1)
            seen["norms"].append(norm.detach())
        seen["losses"].append(loss.detach())
        return len(seen["losses"])

    step = w.compile(step)
    for i in range(6):
        w.call(step, i, w.t(4, 2), w.t(4, 1))
        if i % 2:
            schedule.step()
    w.note(seen, list(model.parameters()))


@program
def layers_frozen_and_thawed(w):
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    f = w.compile(model)
    for frozen in ((), (0,), (0, 2), (), (2,)):
        for i, layer in enumerate(model):
            layer.requires_grad_(i not in frozen)
            layer.train(i not in frozen)
        for _ in range(2):
            w.backward(w.call(f, w.t(3, 2)), *model.parameters())
    with torch.no_grad():
        w.call(f, w.t(3, 2))
    w.note(model[1].running_mean, model[1].num_batches_tracked)


@program
def weights_that_are_tied_and_untied(w):
    torch.manual_seed(9)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids)), self.head.weight is self.embedding.weight

    model = Tied()
    f = w.compile(model)
    ids = torch.tensor([1, 4, 2])
    for _ in range(2):
        y, _ = w.call(f, ids)
        w.backward(y, *model.parameters())
    model.head.weight = nn.Parameter(model.head.weight.detach() * 2)
    for _ in range(2):
        y, _ = w.call(f, ids)
        w.backward(y, *model.parameters())
    model.embedding.weight = model.head.weight
    y, _ = w.call(f, ids)
    w.backward(y, *model.parameters())


@program
def caches_of_keys_and_values(w):
    class Cache:
        def __init__(self):
            self.keys, self.values, self.seen = [], [], 0

        def update(self, k, v, layer):
            if layer == 0:
                self.seen += k.shape[-2]
            if len(self.keys) <= layer:
                self.keys.append(k)
                self.values.append(v)
            else:
                self.keys[layer] = torch.cat([self.keys[layer], k], -2)
                self.values[layer] = torch.cat([self.values[layer], v], -2)
            return self.keys[layer], self.values[layer]

        def crop(self, n):
            self.keys = [k[..., :n, :] for k in self.keys]
            self.values = [v[..., :n, :] for v in self.values]
            self.seen = n

    def f(x, cache=None):
        cache = cache or Cache()
        for layer in range(2):
            k, v = cache.update(x, x * 2, layer)
            x = F.scaled_dot_product_attention(x, k, v)
        return x, cache

    f = w.compile(f)
    _, cache = w.call(f, w.t(1, 3, 4))
    for _ in range(4):
        w.call(f, w.t(1, 1, 4), cache)
    cache.crop(2)
    w.call(f, w.t(1, 1, 4), cache)


@program
def functions_wrapped_in_many_ways(w):
    log = []

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            log.append(function.__name__)
            return function(*args, **kwargs)

        return wrapper

    def repeat(n):
        return lambda function: lambda x: functools.reduce(lambda y, _: function(y), range(n), x)

    class Memo:
        def __init__(self, function):
            functools.update_wrapper(self, function)
            self.function, self.hits = function, {}

        def __call__(self, x):
            key = tuple(x.shape)
            self.hits[key] = self.hits.get(key, 0) + 1
            return self.function(x)

        def __get__(self, instance, owner):
            return functools.partial(self, instance) if instance is not None else self

    @logged
    @repeat(3)
    def f(x):
        return x * 2 + 1

    @Memo
    @logged
    def g(x):
        """Halves."""
        return x / 2

    class Owner:
        g = Memo(lambda self: self.x * 3)

        def __init__(self, x):
            self.x = x
            self.shape = x.shape

        run = functools.partialmethod(lambda self, k, x: x * k, 4)

        @functools.singledispatchmethod
        def take(self, value):
            return "?"

        @take.register
        def _(self, value: int):
            return self.x * value

    def h(x, value):
        owner = Owner(x)
        return f(x), g(x), g.__doc__, g.__name__, owner.g(), owner.run(x), owner.take(value)

    h = w.compile(h)
    for value in (1, 2, "s", 2):
        w.call(h, w.t(2), value)
        w.note(log, g.hits, Owner.g.hits)


@program
def slots_weak_dicts_and_class_getitem(w):
    class Node:
        __slots__ = ("__dict__", "left", "right", "value")

        def __init__(self, value, left=None, right=None):
            self.value, self.left, self.right = value, left, right

        def __class_getitem__(cls, item):
            return (cls.__name__, item)

        def walk(self):
            if self.left is not None:
                yield from self.left.walk()
            yield self
            if self.right is not None:
                yield from self.right.walk()

    tree = Node(w.t(2), Node(2.0), Node(3.0, Node(w.t(2))))

    def f(x):
        for depth, node in enumerate(tree.walk()):
            x = x * node.value + depth
            node.seen = getattr(node, "seen", 0) + 1
        tree.left = Node(x.detach(), tree.left)
        return x, Node[int], tree.left.left is not None

    f = w.compile(f)
    for i in range(4):
        w.call(f, w.t(2))
        tree.left = tree.left.left
        if i == 1:
            tree.right.value = w.t(2)
    w.note(tree.seen, tree.right.seen)


@program
def loops_that_change_what_they_run_over(w):
    def f(x, items):
        for item in items:
            if item > 2:
                items.remove(item)
            elif len(items) < 6:
                items.append(item + 1)
            x = x * item
        for i, item in enumerate(list(items)):
            items[i] = item * 2
        while items and items[-1] > 4:
            x = x - items.pop()
        return x

    def g(x, table):
        try:
            for key in table:
                table[key + "!"] = x
        except RuntimeError as error:
            return str(error), table
        return x

    f, g = w.compile(f), w.compile(g)
    for items in ([1, 2, 3], [1, 2, 3], [5], [], [2, 2]):
        w.call(f, w.t(2), list(items))
        w.call(g, w.t(2), {"a": 1})
        w.call(g, w.t(2), {})


@program
def arguments_of_every_kind(w):
    def f(x, /, y=None, *more, scale: float = 1.0, **options):
        y = x if y is None else y
        for z in more:
            x = x + z
        return x * scale, y, sorted(options), {**options, "x": x}

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2), w.t(2), w.t(2), scale=2.0)
    w.call(f, w.t(2), w.t(2), w.t(2), w.t(2), scale=2.0, a=w.t(2), b=1)
    w.call(f, w.t(2), y=3.0, x=w.t(2))
    w.call(f, x=w.t(2))
    w.call(f, w.t(2), None, w.t(2), b=1, a=2)
    w.call(f, w.t(2), None, w.t(2), a=2, b=1)
    w.call(f, *[w.t(2)] * 3, **{"scale": 3.0})


@program
def results_that_share_and_nest(w):
    kept = []

    def f(x):
        view = x[1:]
        pair = [view, view]
        out = {"a": pair, "b": pair, "x": x, "n": (pair, x.detach(), x.T)}
        out["self"] = out
        kept.append(pair)
        return out

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3, 2))
        kept[-1][0].add_(1)
        w.note(kept)


@program
def classes_that_check_and_convert(w):
    class Positive(float):
        def __new__(cls, value):
            if value <= 0:
                raise ValueError(f"{value} is not positive")
            return super().__new__(cls, value)

        @property
        def half(self):
            return Positive(self / 2)

    class Names(list):
        def append(self, item):
            super().append(item.strip())

    class Strict(dict):
        def __setitem__(self, key, value):
            if key in self:
                raise KeyError(f"{key} is set")
            super().__setitem__(key, value)

        def __getattr__(self, name):
            return self[name]

    def f(x, value, name):
        names, strict = Names(), Strict(x=x)
        names.append(name)
        strict["y"] = x * Positive(value).half
        try:
            strict["x"] = 1
        except KeyError as error:
            names.append(f" {error.args[0]} ")
        return strict.y, names, strict, Positive(value) + 1

    f = w.compile(f)
    for value in (1.0, 1.0, 2.0, -1.0, 3.0):
        w.call(f, w.t(2), value, " name ")


@program
def callbacks_that_stop(w):
    class Stopper:
        def __init__(self, patience):
            self.patience, self.best, self.bad = patience, None, 0

        def __call__(self, loss):
            if self.best is None or loss < self.best:
                self.best, self.bad = loss, 0
            else:
                self.bad += 1
            return self.bad >= self.patience

    stopper = Stopper(2)

    def step(x):
        y = (x * 2).tanh()
        loss = y.square().mean().item()
        return y, stopper(round(loss, 3))

    step = w.compile(step)
    for scale in (3, 1, 2, 2, 0.1, 5, 5):
        w.call(step, torch.full((3,), float(scale)))
        w.note(stopper)


@program
def switches_of_the_process_change(w):
    def f(x):
        made = torch.empty(2).fill_(1.5) + torch.tensor(0.1)
        return x @ x.T, made.dtype, torch.is_grad_enabled(), torch.get_default_dtype()

    f = w.compile(f)
    w.call(f, w.t(2, 2))
    torch.set_default_dtype(torch.float64)
    w.call(f, w.t(2, 2))
    w.call(f, w.t(2, 2))
    torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        w.call(f, w.t(2, 2))
        with torch.autocast("cpu", enabled=False):
            w.call(f, w.t(2, 2))
    x = w.t(2, 2)
    with torch.no_grad(), torch.device("cpu"):
        w.call(f, x)
    w.call(f, w.t(2, 2))


@program
def numbers_at_their_edges(w):
    def ints(x, n, m):
        out = [n // m, n % m, -n // m, n - m, n * m, n**2, n << 2, n >> 1, n & 6, n | 1, n ^ m, ~n,
               n == 1.0, n < m, abs(-n), n / m, max(n, m), min(n, 3), bool(n), -n, +n,
               (n, m) < (m, n), n in (2, 3), [n, m][n % 2], n if n > m else m]  # fmt: skip
        return x * n + m, x.expand(abs(n) + 1, *x.shape).shape, out, n * 2**62, n**m

    def floats(x, r, s):
        out = [r + s, r - s, r * s, -r, abs(r), r < s, r == s, r != r, r % 2.0, r // 2.0, r**2,
               int(r) if abs(r) < 1e9 else 0, round(r) if abs(r) < 1e9 else 0, bool(r), max(r, s),
               r.hex(), str(r), r if r > 0 else s, (r, s) == (s, r)]  # fmt: skip
        return x * r + s, x.clamp(max=r), x / r if r else x, torch.tensor([r, s]), out, r * len(x)

    def divides(x, n, r):
        try:
            return x * (n / r), n // int(r), n % int(r), 1 << n
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            return x, type(error).__name__, str(error)

    ints, floats, divides = w.compile(ints), w.compile(floats), w.compile(divides)
    for n, m in ((3, 2), (4, 2), (5, 3), (-5, 3), (0, 7), (1, 1), (2**40, 5), (7, -2), (True, 2)):
        if abs(n) < 100:
            w.call(ints, w.t(2), n, m)
        else:
            w.call(divides, w.t(2), 2, float(n))
    big, tiny = 1e300, 5e-324
    for r, s in (
        (1.5, 2.5),
        (2.5, 2.5),
        (-0.0, 0.0),
        (0.0, -0.0),
        (big, 10.0),
        (tiny, 1.0),
        (-3.5, 1e-9),
    ):
        w.call(floats, w.t(2), r, s)
    for n, r in ((3, 2.0), (4, 2.0), (4, 0.0), (5, 0.5), (-1, 2.0), (6, 3.0)):
        w.call(divides, w.t(2), n, r)


class Switching(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.forward = self.one
        self.log = []

    def __setattr__(self, name, value):
        if name == "log_it":
            self.log.append(value)
            return
        super().__setattr__(name, value)

    def __call__(self, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__(*args, **kwargs)

    def one(self, x):
        self.log_it = x.shape[0]
        self.forward = self.other
        return x * self.weight

    def other(self, x):
        self.kept = nn.Identity()
        self.bias = nn.Parameter(torch.zeros(2)) if not hasattr(self, "bias") else self.bias
        self.forward = self.one
        return x + self.weight + self.bias


@program
def modules_that_switch_their_forward(w):
    module = Switching()
    f = w.compile(lambda x: module(x))
    for i in range(6):
        y = w.call(f, w.t(2))
        w.backward(y, *module.parameters())
        w.note(module.calls, module.log, [n for n, _ in module.named_modules()])
        if i == 3:
            module.forward = lambda x: x - 1


@program
def tensors_with_attributes_of_their_own(w):
    weight = nn.Parameter(w.t(2))
    weight.decay, weight.tags = 0.5, ["a"]

    def f(x):
        x.scale = getattr(x, "scale", 1.0) + 1
        y = x * weight.decay
        y.note = "made"
        weight.tags.append(len(weight.tags))
        weight.seen = True
        return y, y.note, x.scale, hasattr(y, "scale"), sorted(vars(weight))

    f = w.compile(f)
    x = w.t(2)
    for i in range(4):
        w.call(f, x)
        w.note(weight.tags, x.scale)
        if i == 1:
            weight.decay = 0.25


@program
def steps_written_by_hand(w):
    weights = [w.t(2, 2, grad=True), w.t(2, grad=True)]
    velocity = [torch.zeros_like(p) for p in weights]
    state = {"step": 0, "lr": 0.1, "best": float("inf")}

    def step(x, y):
        state["step"] += 1
        loss = (x @ weights[0] + weights[1] - y).square().mean()
        loss.backward()
        with torch.no_grad():
            for p, v in zip(weights, velocity, strict=True):
                v.mul_(0.9).add_(p.grad)
                p -= state["lr"] * v
                p.grad.zero_()
        if state["step"] % 3 == 0:
            state["lr"] *= 0.5
        value = loss.item()
        if value < state["best"]:
            state["best"] = value
        return loss.detach()

    step = w.compile(step)
    for _ in range(7):
        w.call(step, w.t(3, 2), w.t(3, 2))
        w.note(weights, velocity, state["step"], state["lr"])


@program
def functions_that_share_their_state(w):
    shared = {"n": 0, "x": w.t(2)}

    def write(x):
        shared["n"] += 1
        shared["x"] = shared["x"] + x
        shared.setdefault("log", []).append(shared["n"])
        return x

    def read(x):
        return x * shared["n"] + shared["x"], len(shared.get("log", ()))

    def both(x):
        write(x)
        first = read(x)
        del shared["log"][:-2]
        return first, write(x)

    write_, read_, both_ = w.compile(write), w.compile(read), w.compile(both)
    for i in range(4):
        for f in (write_, read_, both_, read_):
            w.call(f, w.t(2))
        w.note(shared)
        if i == 2:
            shared["n"] = 0


@program
def views_of_parameters_and_buffers(w):
    torch.manual_seed(21)
    layer = nn.Linear(4, 2)
    half = layer.weight.detach()[:1]
    flat = torch.cat([p.detach().view(-1) for p in layer.parameters()])

    def f(x):
        with torch.no_grad():
            half.mul_(0.5)
            layer.bias.data.add_(1)
            layer.weight[0].clamp_(-1, 1)
            flat[:2].copy_(layer.weight[0, :2])
        return layer(x), half.sum(), flat.view(2, 5)[0]

    f = w.compile(f)
    for i in range(4):
        y, _, _ = w.call(f, w.t(3, 4))
        w.backward(y, *layer.parameters())
        w.note(half, flat, layer.weight)
        if i == 1:
            layer.weight.data = torch.ones(2, 4)
