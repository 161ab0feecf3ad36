"""Objects that C code holds or that are values by themselves: bound methods, views of dicts,
iterators, slices, numbers of NumPy, random numbers."""

import abc
import bisect
import collections
import contextvars
import functools
import heapq
import itertools
import operator
import random
import types
import typing

import numpy as np
import torch

from capture.harness import program


def _calls(w, f, arguments, change=None, state=None):
    """Calls `f` once for each tuple of arguments; `change` and `state` run behind each call."""
    f = w.compile(f)
    for i, rest in enumerate(arguments):
        w.call(f, w.t(3), *rest)
        if change is not None:
            change(i)
        if state is not None:
            w.note(state())


@program
def random_numbers_of_python(w):
    random.seed(7)
    _calls(w, lambda x: x * random.random() + random.randint(0, 10), [()] * 5, state=random.random)


@program
def a_bound_method_of_c(w):
    log = []
    append = log.append

    def f(x):
        append(len(log))
        return x * len(log)

    _calls(w, f, [()] * 4, state=lambda: log)


@program
def a_bound_method_of_c_is_an_argument(w):
    log = []

    def f(x, append):
        append(x.shape[0])
        return x * 2

    _calls(w, f, [(log.append,)] * 4, state=lambda: log)


class Counter:
    def __init__(self, count):
        self.count = count

    def step(self, x):
        self.count += 1
        return x * self.count


@program
def bound_methods_from_outside(w):
    a, b = Counter(1), Counter(10)
    step = types.MethodType(Counter.step, a)
    _calls(w, lambda x: step(x), [()] * 4, state=lambda: a.count)
    _calls(w, lambda x, g: g(x), [(a.step,), (a.step,), (b.step,), (a.step,)],
           state=lambda: (a.count, b.count))  # fmt: skip


@program
def a_bound_method_leads_to_a_break(w):
    class Source(random.Random):
        def number(self, low, high):
            return low + self.getrandbits(4) % high

    source = Source(3)
    number = source.number
    _calls(w, lambda x: x + number(0, 7), [()] * 6, state=source.getstate)


@program
def views_of_an_outside_dict(w):
    d = {"a": 1}
    keys, values, items, proxy = d.keys(), d.values(), d.items(), types.MappingProxyType(d)

    def f(x):
        return x * len(keys) + sum(values) + len(list(items)), proxy["a"], proxy.get("1", 0)

    def change(i):
        d["a"] = i
        d[str(i)] = i

    _calls(w, f, [()] * 4, change)


@program
def iterators_from_outside(w):
    pairs, mapped = zip(range(9), range(9), strict=True), map(abs, range(9))
    count, numbers = itertools.count(), iter(range(9))

    def f(x):
        for n in numbers:
            x = x + n
            if n % 2:
                break
        return x * next(pairs)[0] + next(mapped) + next(count)

    _calls(w, f, [()] * 4, state=lambda: next(count))


@program
def heaps_and_sorted_lists(w):
    heap, ordered, items = [5, 3, 8], [1, 9], {}
    heapq.heapify(heap)

    def f(x, n):
        heapq.heappush(heap, n)
        bisect.insort(ordered, n)
        operator.setitem(items, n, len(ordered))
        return x * heapq.heappop(heap) + len(operator.iadd(ordered, [n]))

    _calls(w, f, [(4,), (4,), (4,), (1,)], state=lambda: (heap, ordered, items))


@program
def heaps_and_lists_that_are_set_back(w):
    heap, ordered, items, seen = [], [], {}, collections.Counter()

    def f(x, n):
        heapq.heappush(heap, n)
        bisect.insort(ordered, n)
        operator.setitem(items, "n", n)
        operator.iadd(ordered, [n])
        seen.update("ab")
        return x * heap[0] + len(ordered), operator.iadd(x[:1], n), operator.setitem(x, 0, n)

    f = w.compile(f)
    for n in (4, 4, 4, 1, 1):
        heap[:], ordered[:] = [3, 8, 5], [1, 9]
        items.clear(), seen.clear()
        w.call(f, w.t(3), n)
        w.note(heap, ordered, items, dict(seen))


@program
def texts_of_nested_containers(w):
    deep = [[[1]], {"a": [[2]]}]

    def f(x):
        texts = str(deep), repr(deep), ascii([deep]), f"{deep}"
        return x * 2, texts, "%s %s" % (deep, 1), "{} {!r}".format(deep, deep)  # noqa: UP031, UP032

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
        deep[0][0][0] += 1
        w.call(f, w.t(2))
        deep[1]["a"][0].append(3)


@program
def nested_containers_are_compared(w):
    rows = [[[[2]], 1], [[[1]], 2], [[[3]], 3]]

    def f(x):
        mine = list(rows)
        mine.sort()
        mine.remove([[[3]], 3])
        return x * sorted(rows)[0][1], min(rows)[1], max(rows)[1], [row[1] for row in mine]

    def in_place(x):
        rows.sort()
        return x * rows[0][1]

    f, in_place = w.compile(f), w.compile(in_place)
    for value in (2, 2, 0, 5, 0):
        rows[0][0][0][0] = value
        w.call(f, w.t(2))
        w.call(in_place, w.t(2))
        w.note(rows)


@program
def counters_and_deques(w):
    seen, last, groups = (
        collections.Counter(),
        collections.deque(maxlen=2),
        collections.defaultdict(list),
    )

    def f(x, key):
        seen[key] += 1
        seen.update([key, "z"])
        last.append(key)
        groups[key].append(len(last))
        return x * seen[key] + len(groups[key])

    _calls(w, f, [("a",), ("a",), ("b",), ("a",)], state=lambda: (seen, last, groups))


@program
def slices_and_ranges_are_values(w):
    def f(x, part, steps):
        for n in steps:
            x = x + n
        return x[part], len(steps)

    _calls(w, f, [(slice(0, 2), range(2)), (slice(0, 2), range(2)), (slice(1, 3), range(2)),
                  (slice(0, 2), range(1, 3)), (slice(None, None, 2), range(0)),
                  ((slice(0, 1),), range(2))])  # fmt: skip


@program
def numbers_of_numpy_are_values(w):
    array = np.array([1.0, 2.0])

    def f(x, n):
        return x * n + float(array[0]), array.sum()

    def change(i):
        array[0] = i

    numbers = [np.float64(2), np.float64(3), np.int64(3), np.float64(2)]
    _calls(w, f, [(n,) for n in numbers], change)


@program
def devices_and_numbers_with_classes(w):
    class Size(int):
        extra = 1

    size = Size(3)

    def f(x, device, n):
        return torch.ones(2, device=device) + n * n.extra, device.type, type(n + 1)

    def change(i):
        size.extra = i

    cpu = torch.device("cpu")
    _calls(w, f, [(cpu, size), (cpu, size), (cpu, Size(4)), (torch.device("cpu", 0), size)], change)


@program
def text_of_deep_containers(w):
    deep = [[[[1]]]]

    def f(x):
        return x, repr(deep), str(deep), f"{deep}", "{}".format(deep), "%s" % deep  # noqa: UP031,UP032

    def change(i):
        deep[0][0][0][0] = i

    _calls(w, f, [()] * 4, change)


@program
def order_of_deep_containers(w):
    def f(x, pair):
        return x * sorted(pair)[0][0][0][0], max(pair)[0][0][0]

    def deep(a, b):
        return ([(((a,),),), (((b,),),)],)

    _calls(w, f, [deep(3, 1), deep(3, 1), deep(3, 5), deep(9, 5)])


@program
def class_and_dict_are_exchanged(w):
    class A:
        def factor(self):
            return self.n

    class B:
        def factor(self):
            return -self.n

    a = A()
    a.n = 2

    def change(i):
        a.__class__ = B if i % 2 else A
        a.__dict__ = {"n": i}

    _calls(w, lambda x: x * a.factor(), [()] * 5, change)


@program
def context_variables_are_read_and_set(w):
    variable = contextvars.ContextVar("variable", default=1)

    def f(x):
        n = variable.get()
        variable.set(n + 1)
        return x * n

    _calls(w, f, [()] * 4, state=variable.get)


@program
def dispatch_by_class(w):
    @functools.singledispatch
    def factor(value):
        return 1

    @factor.register
    def _(value: int):
        return 2

    def change(i):
        if i == 1:
            factor.register(str, lambda value: 5)

    _calls(w, lambda x, v: x * factor(v), [(1,), ("s",), ("s",), (1,)], change)


@program
def cached_properties_are_dropped(w):
    class A:
        n = 0

        @functools.cached_property
        def value(self):
            self.n += 1
            return self.n

    holder = types.SimpleNamespace(a=A())

    def change(i):
        if i == 1:
            holder.a = A()
            holder.a.n = 5
        if i == 2:
            del holder.a.__dict__["value"]

    _calls(w, lambda x: x * holder.a.value, [()] * 5, change, lambda: holder.a.n)


@program
def generators_of_random_tensors(w):
    generator = torch.Generator()
    generator.manual_seed(3)
    _calls(w, lambda x: x + torch.rand(3, generator=generator), [()] * 4,
           state=lambda: torch.rand(2, generator=generator))  # fmt: skip


@program
def classes_registered_with_an_abstract_base_class_later(w):
    class Base(abc.ABC):
        pass

    class A:
        pass

    a = A()

    def change(i):
        if i == 1:
            Base.register(A)

    _calls(w, lambda x: x * 2 if isinstance(a, Base) else x + 1, [()] * 4, change)


@program
def registering_with_an_abstract_base_class(w):
    class Base(abc.ABC):
        pass

    def f(x, cls):
        Base.register(cls)
        return x * 2 if issubclass(cls, Base) else x + 1

    classes = [type(f"C{i}", (), {}) for i in range(4)]
    _calls(w, f, [(cls,) for cls in classes],
           state=lambda: [issubclass(cls, Base) for cls in classes])  # fmt: skip


@program
def unions_of_types(w):
    wanted = int | None

    def f(x, kind):
        args = typing.get_args(wanted) + typing.get_args(kind)
        return x * len(args) if str in args else x + len(args)

    _calls(w, f, [(int | str,), (int | str | float,), (int | bytes,), (int | str,)])


@program
def compiled_methods_of_classes(w):
    class A:
        def __init__(self, n):
            self.n = n

        def __call__(self, x, y=1):
            return self.scaled(x, y=y) + self.scaled(*(x,), **{"y": 2})

        def scaled(self, x, y):
            return x * self.n * y

    A.scaled = w.compile(A.scaled)
    A.__call__ = w.compile(A.__call__)
    a, b = A(2), A(3)
    for one in (a, b, a):
        w.call(one, w.t(3))
        w.call(one, w.t(3), y=4)
        one.n += 1


@program
def functions_that_c_code_calls_change(w):
    Point = collections.namedtuple("Point", "a b", defaults=(2.0,))
    scale = 3.0

    class Holder:
        value = property(lambda self, by=2.0: by * scale)

        def _set(self, value, by=1.0):
            self.kept = value * by * scale

        stored = property(None, _set)

        def __new__(cls, *, by=1.0):
            made = super().__new__(cls)
            made.by = by * scale
            return made

        @staticmethod
        def fixed(x, by=1.0):
            return x * by * scale

        @classmethod
        def of_class(cls, x, by=1.0):
            return x * by * scale

    def f(x):
        point = Point(x)
        return point.a * point.b, point

    def g(x, holder):
        holder.stored = 2.0
        return x * holder.value * holder.kept

    def h(x):
        return x * Holder().by, Holder.fixed(x), Holder.of_class(x)

    f, g, h = w.compile(f), w.compile(g), w.compile(h)
    changes = (
        lambda: setattr(Point.__new__, "__defaults__", (5.0,)),
        lambda: setattr(Holder.value.fget, "__defaults__", (6.0,)),
        lambda: setattr(Holder.stored.fset, "__defaults__", (7.0,)),
        lambda: setattr(Holder.__new__, "__kwdefaults__", {"by": 8.0}),
        lambda: setattr(Holder.fixed, "__defaults__", (9.0,)),
        lambda: setattr(Holder.of_class.__func__, "__defaults__", (10.0,)),
    )
    for change in (*changes, lambda: None):
        for _ in range(2):
            w.call(f, w.t(2))
            w.call(g, w.t(2), Holder())
            w.call(h, w.t(2))
            scale = scale + 1.0  # a cell of theirs
        change()


class Doubled(Counter):
    def step(self, x):
        return super().step(x) * 2


@program
def bound_methods_come_in_and_lead_to_others(w):
    a, b, c = Counter(1), Counter(10), Doubled(5)

    def f(x, step, counter):
        counter.count += 1
        return step(x), step.__self__ is counter, step.__name__

    f, g = w.compile(f), w.compile(lambda x, step: sum(map(step, [x, x + 1])))
    for one, other in ((a, a), (a, a), (b, a), (a, b), (c, a), (c, c), (b, b)):
        w.call(f, w.t(3), one.step, other)
        w.call(g, w.t(3), one.step)
        w.call(g, w.t(3), types.MethodType(Counter.step, other))
        w.note(a.count, b.count, c.count)


@program
def partial_functions_come_in(w):
    def scaled(x, by, plus=0):
        return x * by + plus

    def forms(n):
        return (functools.partial(scaled, by=n), functools.partial(scaled, plus=n, by=1.5),
                functools.partial(torch.mul, n), functools.partial(torch.add, w.t(3)),
                functools.partial(functools.partial(scaled, plus=n), by=2))  # fmt: skip

    f = w.compile(lambda x, p: (p(x), p.args))
    for form in range(5):
        for n in (1, 1, 2, 3):
            w.call(f, w.t(3), forms(n)[form])
    changed = functools.partial(scaled, by=2)
    w.call(f, w.t(3), changed)
    changed.keywords["by"] = 5
    w.call(f, w.t(3), changed)
    changed.__setstate__((scaled, (3,), {}, {}))
    w.call(f, w.t(3), changed)


@program
def functions_of_numpy_over_plain_numbers(w):
    class Angles(torch.nn.Module):
        base = 10000.0

        @torch.no_grad()
        def forward(self, x, n):
            step = -(np.log(float(self.base)) / (n - 1))
            return x * torch.exp(torch.arange(3) * step) + np.sqrt(n)

    angles = Angles()
    f = w.compile(angles)
    for n in (2, 2, 3, 4):
        w.call(f, w.t(3), n)
    angles.base = 500.0
    w.call(f, w.t(3), 3)

    made = []
    own = np.frompyfunc(lambda a: made.append(a) or a, 1, 1)
    g = w.compile(lambda x, s: (x * 2, np.log(s), np.exp(-s * s), np.maximum(s, 1.5), own(s)))
    with np.errstate(all="ignore"):
        for s in (2.0, 2.0, 3.0, 0.0, -1.0, 27.0, 40.0):
            w.call(g, w.t(3), s)
            w.note(list(made))
    with np.errstate(divide="raise", under="raise"):
        for s in (0.0, 2.0, 27.0, 40.0):
            w.call(g, w.t(3), s)
