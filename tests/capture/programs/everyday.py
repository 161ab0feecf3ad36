"""Everyday programs around models: layers, losses, loops of training, scripts with state."""

import abc
import collections
import contextlib
import contextvars
import dataclasses
import functools
import heapq
import itertools
import math
import string
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from capture.harness import program


class Rotary(nn.Module):
    def __init__(self, width, most=8):
        super().__init__()
        inverse = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
        self.register_buffer("inverse", inverse, persistent=False)
        self._build(most)

    def _build(self, n):
        self.most = n
        angles = torch.outer(torch.arange(n).float(), self.inverse)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        n = x.shape[-2]
        if n > self.most:
            self._build(2 * n)
        a, b = x[..., ::2], x[..., 1::2]
        cos, sin = self.cos[:n], self.sin[:n]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


@program
def tables_that_grow_with_the_input(w):
    module = Rotary(4, 3)
    f = w.compile(module)
    for n in (2, 3, 4, 5, 9, 2):
        w.call(f, w.t(1, n, 4))
        w.note(module.most, module.cos.shape)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.used = collections.Counter()

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            self.used[i] += int(rows.numel())
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


@program
def experts_that_are_chosen_by_data(w):
    torch.manual_seed(12)
    module = Experts()
    f = w.compile(module)
    for n in (4, 4, 2, 4):
        y = w.call(f, w.t(n, 4))
        w.backward(y, *module.parameters())
        w.note(dict(module.used))


@program
def losses_with_many_parts(w):
    class Criterion(nn.Module):
        def __init__(self, **weights):
            super().__init__()
            self.weights = weights
            self.history = collections.defaultdict(list)

        def forward(self, outputs, targets):
            losses = {}
            for name, weight in self.weights.items():
                loss = getattr(self, f"loss_{name}")(outputs, targets)
                losses[name] = weight * loss
                self.history[name].append(loss.detach())
            return sum(losses.values()), losses

        def loss_class(self, outputs, targets):
            return F.cross_entropy(outputs["logits"], targets["labels"], label_smoothing=0.1)

        def loss_box(self, outputs, targets):
            return F.smooth_l1_loss(outputs["boxes"], targets["boxes"], reduction="none").mean()

    criterion = Criterion(**{"class": 1.0, "box": 5.0})
    f = w.compile(criterion)
    for i in range(4):
        logits, boxes = w.t(3, 4, grad=True), w.t(3, 4, grad=True)
        outputs = {"logits": logits, "boxes": boxes}
        targets = {"labels": torch.tensor([0, 1, 2]), "boxes": w.t(3, 4)}
        loss, _ = w.call(f, outputs, targets)
        w.backward(loss, logits, boxes)
        w.note(criterion.history)
        if i == 1:
            criterion.weights["box"] = 2.0
        if i == 2:
            del criterion.weights["class"]


@program
def meters_and_logs(w):
    @dataclasses.dataclass
    class Meter:
        name: str
        total: float = 0.0
        count: int = 0
        values: collections.deque = dataclasses.field(
            default_factory=lambda: collections.deque(maxlen=2)
        )

        def update(self, value, n=1):
            self.total += value * n
            self.count += n
            self.values.append(value)

        @property
        def mean(self):
            return self.total / max(self.count, 1)

        def __str__(self):
            return f"{self.name}: {self.mean:.4f} ({len(self.values)})"

    meters = {"loss": Meter("loss"), "n": Meter("n")}

    def step(x, lr):
        y = (x * lr).sum()
        meters["loss"].update(y.detach(), x.shape[0])
        meters["n"].update(x.shape[0])
        meters.setdefault("lr", Meter("lr")).update(lr)
        return y, str(meters["n"]), " ".join(sorted(meters))

    step = w.compile(step)
    for n, lr in ((2, 0.1), (2, 0.1), (2, 0.2), (3, 0.2), (4, 0.3)):
        w.call(step, w.t(n), lr)
        w.note(meters)


@program
def features_taken_by_hooks(w):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    features = {}

    def keep(name):
        def hook(module, given, result):
            features[name] = result
            return result * 2 if name == "2" else None

        return hook

    handles = [m.register_forward_hook(keep(n)) for n, m in model.named_children()]
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def f(x):
        features.clear()
        y = model(x)
        return y, {k: v.mean() for k, v in features.items()}

    f = w.compile(f)
    for i in range(5):
        w.call(f, w.t(2, 3))
        w.note(features)
        if i == 1:
            handles[1].remove()
        if i == 2:
            handles[2].remove()
            handles.append(model[0].register_forward_hook(keep("again"), prepend=True))


@program
def settings_overridden_for_a_while(w):
    class Settings(types.SimpleNamespace):
        @contextlib.contextmanager
        def override(self, **changes):
            old = {k: getattr(self, k) for k in changes}
            self.__dict__.update(changes)
            try:
                yield self
            finally:
                self.__dict__.update(old)

    settings = Settings(scale=2.0, bias=None, depth=1)

    def block(x):
        x = x * settings.scale
        return x if settings.bias is None else x + settings.bias

    def f(x, depth):
        with settings.override(depth=depth, bias=x):
            for _ in range(settings.depth):
                x = block(x)
            with settings.override(scale=0.5):
                x = block(x)
        return block(x)

    f = w.compile(f)
    for depth in (1, 1, 2, 1):
        w.call(f, w.t(2), depth)
        w.note(settings)
    settings.scale = 4.0
    w.call(f, w.t(2), 1)
    with settings.override(bias=w.t(2)):
        w.call(f, w.t(2), 1)


current = contextvars.ContextVar("current", default=1.0)


@program
def variables_of_the_context(w):
    def f(x):
        token = current.set(current.get() + 1)
        try:
            return x * current.get()
        finally:
            current.reset(token)

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    token = current.set(5.0)
    w.call(f, w.t(2))
    current.reset(token)
    w.call(f, w.t(2))


class Layered(MutableMapping):
    """A mapping of its own, with a parent."""

    def __init__(self, parent=None, **items):
        self.items_, self.parent = dict(items), parent

    def __getitem__(self, key):
        if key in self.items_:
            return self.items_[key]
        if self.parent is None:
            raise KeyError(key)
        return self.parent[key]

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __iter__(self) -> Iterator:
        yield from self.items_
        yield from (k for k in self.parent or () if k not in self.items_)

    def __len__(self):
        return sum(1 for _ in self)


class Window(Sequence):
    def __init__(self, items, start, stop):
        self.items, self.start, self.stop = items, start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.items[self.start + i]


@program
def abstract_containers_of_ones_own(w):
    base = Layered(a=w.t(2), b=2.0)

    def f(x, items):
        scope = Layered(base, c=x)
        scope["b"] = scope["b"] + 1
        scope.update(d=x * 2)
        scope.setdefault("e", 1)
        popped = scope.pop("d", None)
        window = Window(items, 1, 3)
        return (dict(scope), popped, scope.get("q", x), "a" in scope, len(scope), list(window),
                window.index(items[2]), window.count(5), list(reversed(window)),
                isinstance(scope, Mapping), scope == {"a": 1})  # fmt: skip

    f = w.compile(f)
    for i in range(4):
        w.call(f, w.t(2), [1, 2, i])
        base["b"] = i + 3.0
        w.note(base)


@program
def trees_of_modules_visited(w):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))

    def f(x):
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
        norms = torch.stack([p.norm() for p in model.parameters()])
        depth = max(n.count(".") for n, _ in model.named_modules())
        kinds = [type(m).__name__ for m in model.modules()]
        total = sum(p.numel() for p in model.parameters())
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        for m in model.modules():
            m.training = False
        return (
            model(x),
            shapes,
            norms,
            depth,
            kinds,
            total,
            linear[-1](x),
            len(list(model.buffers())),
        )

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    model.train()
    model.append(nn.Linear(2, 1))
    w.call(f, w.t(2))
    model[0].requires_grad_(False)
    w.call(f, w.t(2))
    model[1].register_buffer("b", w.t(1))
    model[1].extra = nn.Identity()
    w.call(f, w.t(2))
    w.note([m.training for m in model.modules()])


class Shape(abc.ABC):
    registry: typing.ClassVar[dict] = {}

    def __init_subclass__(cls, /, name=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.registry[name or cls.__name__.lower()] = cls

    @abc.abstractmethod
    def area(self, x): ...

    @classmethod
    def make(cls, name, *args):
        return cls.registry[name](*args)


class Square(Shape):
    def area(self, x):
        return x**2


class Circle(Shape, name="round"):
    def __init__(self, pi=math.pi):
        self.pi = pi

    def area(self, x):
        return self.pi * x * x


@program
def factories_and_registries(w):
    def f(x, name, *args):
        try:
            shape = Shape.make(name, *args)
        except (KeyError, TypeError) as error:
            return type(error).__name__, str(error)
        return shape.area(x), isinstance(shape, Shape), type(shape).__mro__[0].__name__

    f = w.compile(f)
    for name, *args in (
        ("square",),
        ("round",),
        ("round", 3.0),
        ("none",),
        ("square", 1),
        ("square",),
    ):
        w.call(f, w.t(2), name, *args)
    Shape.registry["square"] = Circle
    w.call(f, w.t(2), "square", 2.0)
    del Shape.registry["square"]
    w.call(f, w.t(2), "square")
    Shape.registry["square"] = Square


@program
def pipelines_of_functions(w):
    def compose(*functions: Callable):
        return functools.reduce(lambda f, g: lambda x: g(f(x)), functions, lambda x: x)

    steps = [torch.relu, lambda x: x + 1, functools.partial(torch.mul, other=2.0)]
    pipe = compose(*steps)

    class Pipe:
        def __init__(self, *functions):
            self.functions = functions

        def __or__(self, other):
            return Pipe(*self.functions, other)

        def __ror__(self, x):
            for function in self.functions:
                x = function(x)
            return x

    outside = Pipe(torch.sin) | torch.neg

    def f(x):
        return pipe(x), [*map(pipe, [x, x + 1])], (x | (outside | (lambda y: y * 3)))

    f = w.compile(f)
    w.call(f, w.t(3))
    w.call(f, w.t(3))
    outside.functions = (torch.cos,)
    w.call(f, w.t(3))


@program
def queues_of_priorities(w):
    def f(x, costs):
        queue = [(c, i) for i, c in enumerate(costs)]
        heapq.heapify(queue)
        heapq.heappush(queue, (2, -1))
        order = []
        while queue:
            cost, i = heapq.heappop(queue)
            order.append(i)
            x = x * (cost + 1)
        best = heapq.nsmallest(2, costs, key=lambda c: -c)
        return x, order, best, list(heapq.merge([1, 4], [2, 3]))

    f = w.compile(f)
    for costs in ([3, 1, 2], [3, 1, 2], [2, 2], [5]):
        w.call(f, w.t(2), costs)


@program
def numbers_of_all_kinds(w):
    def f(x, n, r, c):
        a = n // 3 + n % 3 - (-n >> 1) ^ 5 & ~n | 8
        b = divmod(n, 4)
        d = math.ceil(r) + math.floor(-r) + math.trunc(r) + round(r, 1) + round(r)
        e = math.prod([n, 2]) + math.comb(n + 4, 2) + math.gcd(n, 6) + n.bit_length()
        g = r.is_integer(), r.as_integer_ratio(), float("inf") > r, math.isclose(r, r + 1e-12)
        return x * a + b[0] * x - d + e, g, c * 2 + complex(n, r), abs(c), int(n / 2), n**2, 2**-n

    f = w.compile(f)
    for n, r, c in ((5, 1.5, 1j), (5, 1.5, 1j), (7, 1.5, 2 + 1j), (7, 2.0, 1j), (-3, -0.5, 1j)):
        w.call(f, w.t(2), n, r, c)


@program
def texts_that_name_things(w):
    template = string.Template("$name has $n")

    def f(x, name, pattern):
        parts = name.split("-")
        label = "".join(p.capitalize() for p in parts).replace("A", "B")
        table = str.maketrans("ab", "xy")
        lines = textwrap.dedent("""\
            one
              two""").splitlines()
        match pattern.split("/"):
            case ["scale", n] if n.isdigit():
                x = x * int(n)
            case ["shift", *rest]:
                x = x + len(rest)
            case _:
                x = -x
        return (x, label, name.translate(table), lines, template.substitute(name=name, n=x.dim()),
                name.removeprefix("a-"), name.zfill(6), name.startswith(("a", "b")), name[::-1],
                "b" in name, sorted(name, key=str.lower), "{:>{}}".format(name, 8))  # fmt: skip

    f = w.compile(f)
    for name, pattern in (("a-b", "scale/3"), ("a-b", "scale/3"), ("c", "shift/1/2"), ("c", "x")):
        w.call(f, w.t(2), name, pattern)


@program
def sizes_that_steer(w):
    def f(x):
        batch, *rest = x.shape
        if batch > 3 and len(rest) == 1:
            x = x[: batch // 2]
        pad = -x.shape[-1] % 4
        x = F.pad(x, (0, pad))
        chunks = x.split(max(1, x.shape[0] // 2))
        y = torch.cat([c * i for i, c in enumerate(chunks)])
        blocks = y.unflatten(-1, (-1, 4)).transpose(-1, -2).reshape(-1, y.shape[-1] // 4)
        return (
            blocks,
            torch.zeros(x.shape[0] + 1, *rest),
            math.sqrt(x.shape[-1]),
            x.numel() % 2 == 0,
        )

    f = w.compile(f)
    for sizes in ((2, 3), (2, 3), (4, 3), (5, 6), (2, 8), (1, 1), (7, 5)):
        w.call(f, w.t(*sizes))


@program
def gradients_reversed_scaled_and_stopped(w):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -ctx.k * grad, None

    def f(x, y, k):
        z = Reverse.apply(x, k) * y
        hard = (z > 0).float()
        soft = torch.sigmoid(z)
        straight = hard + soft - soft.detach()
        with torch.no_grad():
            weight = y.abs() / y.abs().sum()
        with torch.enable_grad():
            extra = (x * 2).sum()
        return (straight * weight).sum() + extra, z.detach()

    f = w.compile(f)
    for k in (1.0, 1.0, 2.0, 0.5):
        x, y = w.t(3, grad=True), w.t(3, grad=True)
        loss, _ = w.call(f, x, y, k)
        w.backward(loss, x, y)
        loss, _ = w.call(f, x, y.detach(), k)
        w.backward(loss, x)


@program
def states_saved_and_restored(w):
    torch.manual_seed(7)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = w.compile(step)
    x = w.t(3, 2)
    w.call(step, x)
    saved = {k: v.clone() for k, v in model.state_dict().items()}
    state = optimizer.state_dict()
    for _ in range(2):
        w.call(step, x)
    model.load_state_dict(saved)
    optimizer.load_state_dict(state)
    w.call(step, x)
    model.load_state_dict({k: v * 2 for k, v in saved.items()}, assign=True)
    w.call(step, x)
    w.note(list(model.parameters()))
    optimizer.add_param_group({"params": [nn.Parameter(w.t(2))], "lr": 0.5})
    optimizer.param_groups[0]["lr"] = 0.01
    w.call(step, x)
    w.note(list(model.parameters()), len(optimizer.state))


@program
def modules_made_and_changed_in_the_call(w):
    torch.manual_seed(11)

    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList()
            self.seen = {}

        def forward(self, x):
            if x.shape[-1] not in self.seen:
                layer = nn.Linear(x.shape[-1], 2)
                self.seen[x.shape[-1]] = len(self.layers)
                self.layers.append(layer)
            return self.layers[self.seen[x.shape[-1]]](x)

    model = Growing()
    f = w.compile(model)
    for n in (2, 2, 3, 2, 3, 4):
        w.call(f, w.t(2, n))
        w.note(len(model.layers), model.seen)


@program
def buffers_that_are_counted_and_filled(w):
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 2))
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))
            self.register_buffer("mean", None)
            self.n = 0

        @torch.no_grad()
        def forward(self, x):
            k = int(self.at)
            self.rows[k : k + x.shape[0]] = x
            self.at[0] = (k + x.shape[0]) % 4
            if self.mean is None:
                self.mean = x.mean(0)
            else:
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.n += 1
            return self.rows.sum(0), self.mean

    queue = Queue()
    f = w.compile(queue)
    for i in range(5):
        w.call(f, w.t(2, 2))
        w.note(queue.rows, queue.at, queue.mean, queue.n)
        if i == 3:
            queue.mean = None


@program
def recursion_over_nested_batches(w):
    def move(value, dtype):
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, Mapping):
            return type(value)((k, move(v, dtype)) for k, v in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(move(v, dtype) for v in value))
        if isinstance(value, (list, tuple, set)):
            return type(value)(move(v, dtype) for v in value)
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(
                value,
                **{f.name: move(getattr(value, f.name), dtype) for f in dataclasses.fields(value)},
            )
        return value

    Pair = collections.namedtuple("Pair", "a b")

    @dataclasses.dataclass
    class Item:
        x: torch.Tensor
        tag: str

    f = w.compile(move)
    for dtype in (torch.float64, torch.float64, torch.float16):
        batch = {"x": w.t(2), "l": [w.t(2), Pair(w.t(2), torch.tensor(1))], "i": Item(w.t(2), "t"),
                 "o": collections.OrderedDict(p=(w.t(1),)), "s": {1}, "n": None}  # fmt: skip
        w.call(f, batch, dtype)


@program
def random_choices_and_schedules(w):
    def f(x, step, total):
        warm = min(1.0, (step + 1) / 3)
        lr = 0.5 * (1 + math.cos(math.pi * step / total)) * warm
        keep = 1 - 0.2 * step / total
        mask = torch.bernoulli(torch.full_like(x, keep))
        noise = torch.randn_like(x) * lr
        order = torch.randperm(x.shape[0])
        return F.dropout(x * mask, 0.1, training=step > 0) + noise, order, lr

    f = w.compile(f)
    for step in range(6):
        w.call(f, w.t(4), step, 5)


@program
def attributes_that_come_and_go(w):
    class Box:
        limit = 3

    box = Box()

    def f(x):
        if hasattr(box, "scale"):
            x = x * box.scale
            del box.scale
        else:
            box.scale = 2.0
        box.__dict__.setdefault("log", []).append(len(vars(box)))
        try:
            x = x + box.missing
        except AttributeError as error:
            return x, str(error), getattr(box, "limit", None), error.name
        return x, dict(vars(box))

    f = w.compile(f)
    for i in range(7):
        w.call(f, w.t(2))
        w.note(vars(box))
        if i == 3:
            box.missing = w.t(2)
        if i == 4:
            box.limit = 4
            del box.missing
        if i == 5:
            Box.missing = property(lambda self: 1.5)


@program
def closures_in_loops_and_late_bindings(w):
    def f(x, n):
        late = [lambda y: y * i for i in range(n)]
        early = [lambda y, i=i: y * i for i in range(n)]
        counter = itertools.count()

        def tick():
            nonlocal x
            x = x + next(counter)
            return x

        ticks = [tick() for _ in range(n)]
        return [g(x) for g in late], [g(x) for g in early], ticks, (lambda: x)()

    f = w.compile(f)
    for n in (2, 2, 3, 1):
        w.call(f, w.t(2), n)


@program
def comparisons_sorts_and_truths(w):
    @functools.total_ordering
    class Scored:
        def __init__(self, score, x):
            self.score, self.x = score, x

        def __eq__(self, other):
            return self.score == other.score

        def __lt__(self, other):
            return self.score < other.score

        def __hash__(self):
            return hash(self.score)

        def __len__(self):
            return self.score

    def f(x, scores):
        items = [Scored(s, x * s) for s in scores]
        best = max(items)
        ranked = sorted(items, reverse=True)
        unique = list({i: i.x for i in items}.values())
        low, high = min(items, key=lambda i: -i.score), best >= items[0] > ranked[-1]
        some = [i.score for i in items if i]
        return best.x, [r.score for r in ranked], unique, low.score, high, some, all(items)

    f = w.compile(f)
    for scores in ([2, 1, 3], [2, 1, 3], [1, 1], [0, 2]):
        w.call(f, w.t(2), scores)


@program
def dropped_and_late_gradients(w):
    torch.manual_seed(4)
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)

    def f(x, which):
        h = a(x)
        if which == "first":
            return h
        y = b(h.detach() if which == "detached" else h)
        return y if which != "both" else y + h

    f = w.compile(f)
    for which in ("first", "both", "detached", "all", "both", "first", "detached"):
        y = w.call(f, w.t(3, 2), which)
        w.backward(y, *a.parameters(), *b.parameters())


@program
def convolutions_with_skips_and_norms(w):
    torch.manual_seed(13)

    class Block(nn.Module):
        def __init__(self, n, m, stride=1):
            super().__init__()
            self.conv1 = nn.Conv2d(n, m, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(m)
            self.conv2 = nn.Conv2d(m, m, 3, 1, 1, groups=m)
            self.norm2 = nn.GroupNorm(2, m)
            self.skip = nn.Conv2d(n, m, 1, stride) if stride != 1 or n != m else None

        def forward(self, x):
            y = F.silu(self.norm1(self.conv1(x)), inplace=True)
            y = self.norm2(self.conv2(y))
            x = x if self.skip is None else self.skip(x)
            return F.relu_(y + x)

    model = nn.Sequential(Block(2, 4, 2), Block(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
    f = w.compile(model)
    for size in (6, 6, 5):
        y = w.call(f, w.t(2, 2, size, size))
        w.backward(y, *model.parameters())
    model.eval()
    w.call(f, w.t(1, 2, 6, 6))
    w.note(model[0].norm1.running_mean)
