"""Lists, dicts, sets, tuples, dataclasses, namedtuples, enums: read, built, changed, returned."""

import collections
import copy
import dataclasses
import enum
import operator
import types
import typing

import torch

from capture.harness import program


@program
def list_is_read_and_changed_between_calls(w):
    values = [1, 2, 3]

    def f(x):
        for value in values:
            x = x * value
        return x, len(values), values[-1]

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    values.append(4)
    w.call(f, w.t(2))
    values[0] = 2.5
    w.call(f, w.t(2))
    values.clear()
    w.call(f, w.t(2))


@program
def list_methods_on_an_outside_list(w):
    log = []

    def f(x):
        log.append(x * 2)
        log.extend([x, "text"])
        log.insert(0, x.shape[0])
        log.reverse()
        if len(log) > 5:
            log.pop()
            log.remove("text")
            del log[0]
        log[0:1] = [7, 8]
        return log.index(8, 0, 2), len(log)

    f = w.compile(f)
    for _ in range(4):
        w.call(f, w.t(2))
        w.note(log)


@program
def list_argument_is_changed(w):
    def f(xs, y):
        xs[0] = xs[0] + y
        xs.append(y * 2)
        xs += [y]
        return xs

    f = w.compile(f)
    for n in (1, 2, 1):
        xs = [w.t(2) for _ in range(n)]
        w.call(f, xs, w.t(2))
        w.call(f, xs, xs[0])


@program
def sorting_and_reductions(w):
    def f(values, x):
        ordered = sorted(values, key=lambda v: -v)
        mine = list(values)
        mine.sort(reverse=True)
        return x * max(values) + min(values), ordered, mine, sum(values), any(values), all(values)

    f = w.compile(f)
    for values in ([3, 1, 2], [3, 1, 2], [0, 5], []):
        w.call(f, values, w.t(2))


@program
def aliases_inside_containers(w):
    def f(x):
        inner = [x + 1]
        outer = {"a": inner, "b": inner, "x": x}
        inner.append(outer["a"][0])
        return outer, inner, (x, x)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


@program
def a_list_that_holds_itself(w):
    def f(x):
        loop = [x * 2]
        loop.append(loop)
        return loop

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def dict_is_read_and_changed(w):
    table = {"scale": 2.0, "shift": 1}

    def f(x):
        y = x * table["scale"] + table.get("shift", 0)
        if "extra" in table:
            y = y - table["extra"]
        table["calls"] = table.get("calls", 0) + 1
        return y, list(table), sorted(table.items(), key=str)

    f = w.compile(f)
    w.call(f, w.t(2))
    table["scale"] = 3.0
    w.call(f, w.t(2))
    table["extra"] = w.t(2)
    w.call(f, w.t(2))
    del table["shift"]
    w.call(f, w.t(2))
    w.note(table)


@program
def dict_methods(w):
    def f(d, x):
        d.update(a=x + 1, b=2)
        d.setdefault("c", []).append(x)
        popped = d.pop("gone", None)
        items = [(k, v) for k, v in d.items()]
        merged = d | {"z": 0}
        d |= {"y": 1}
        last = d.popitem()
        return popped, items, merged, last, dict.fromkeys("ab", 0), list(reversed(d))

    f = w.compile(f)
    for _ in range(3):
        w.call(f, {"gone": 1, "kept": w.t(1)}, w.t(2))
    w.call(f, {}, w.t(2))


@program
def a_missing_key(w):
    def f(d, x):
        try:
            return x * d["k"]
        except KeyError as error:
            return x, error.args
        finally:
            d["seen"] = True

    f = w.compile(f)
    for d in ({"k": 2}, {}, {"k": 3}, {"j": 1}):
        w.call(f, d, w.t(2))


@program
def keys_that_are_no_strings(w):
    def f(d, x):
        key = (x.shape[0], "n")
        d[key] = d.get(key, 0) + 1
        d[x.dtype] = x * 2
        return d[key], d[torch.float32], frozenset([1, 2]) in d

    f = w.compile(f)
    d = {frozenset([1, 2]): 0}
    for n in (2, 2, 3):
        w.call(f, d, w.t(n))


@program
def ordered_and_default_dicts_counters_deques(w):
    def f(x):
        groups = collections.defaultdict(list)
        for k in range(4):
            groups[k % 2].append(x + k)
        ordered = collections.OrderedDict(b=1, a=x)
        ordered.move_to_end("b")
        counter = collections.Counter("hello")
        queue = collections.deque([x, x * 2], maxlen=2)
        queue.appendleft(x * 3)
        chain = collections.ChainMap({"a": 1}, {"b": x})
        return groups, ordered, counter.most_common(1), queue, chain["b"], counter

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


@program
def an_outside_deque_is_a_window(w):
    window = collections.deque(maxlen=3)

    def f(x):
        window.append(x * 2)
        return sum(window), len(window)

    f = w.compile(f)
    for _ in range(5):
        w.call(f, w.t(2))
    w.note(window)


@program
def sets(w):
    seen = set()

    def f(x, tag):
        fresh = tag not in seen
        seen.add(tag)
        both = {1, 2, 3} & {2, 3, 4}
        seen.discard("never")
        return x + len(both) + len(seen), fresh, {1} | {2}, both - {2}, both <= {2, 3}

    f = w.compile(f)
    for tag in ("a", "a", "b", "a"):
        w.call(f, w.t(2), tag)
    w.note(seen)


@program
def tuples_and_slices(w):
    def f(t, x):
        a, *rest = t
        return t[::-1], t + (x,), t * 2, t.index(a), hash(t[:0]), (x,) < (), tuple(rest)

    f = w.compile(f)
    for t in ((1, 2, 3), (1,), ("a", 2.5)):
        w.call(f, t, w.t(2))


Pair = collections.namedtuple("Pair", ["left", "right"])


class Typed(typing.NamedTuple):
    x: torch.Tensor
    n: int = 3

    def scaled(self):
        return self.x * self.n


@program
def namedtuples(w):
    def f(pair):
        made = Typed(pair.left)
        return Pair(pair.right + 1, made.scaled()), made._replace(n=5), pair._asdict(), made.n

    f = w.compile(f)
    for _ in range(3):
        w.call(f, Pair(w.t(2), w.t(2)))
    w.call(f, Pair(left=w.t(3), right=1))


@program
def results_of_torch_that_are_named_tuples(w):
    def f(x):
        best = torch.max(x, dim=1)
        values, indices = x.topk(2)
        return best, best.indices, values.sum(), indices, torch.sort(x).values

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3, 4))


@dataclasses.dataclass
class Config:
    width: int = 2
    scale: float = 1.5
    extra: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.area = self.width * self.width


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    value: torch.Tensor
    config: Config | None = None


@program
def dataclasses_in_and_out(w):
    def f(x, config):
        config.extra.append(x.shape[0])
        made = Config(config.width + 1)
        made.extra = config.extra
        return Output(x * config.scale + config.area, dataclasses.replace(made, scale=9.0))

    f = w.compile(f)
    config = Config()
    w.call(f, w.t(2), config)
    w.call(f, w.t(2), config)
    config.scale = -1.0
    w.call(f, w.t(2), config)
    w.call(f, w.t(2), Config(5))


@program
def dataclass_protocols(w):
    def f(x):
        one, other = Config(1), Config(1)
        try:
            Output(x).value = x
        except dataclasses.FrozenInstanceError as error:
            text = str(error)
        names = [field.name for field in dataclasses.fields(one)]
        return one == other, repr(one), names, text, dataclasses.asdict(one), Output(x)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def factor(self):
        return self.value * 10


class Flags(enum.IntFlag):
    A = 1
    B = 2


@program
def enums(w):
    def f(x, color, flags):
        if color is Color.RED:
            x = x + 1
        elif color == Color.GREEN:
            x = x * color.factor
        if flags & Flags.B:
            x = -x
        return x, Color(1), Color["GREEN"].name, [c.value for c in Color], flags | Flags.A

    f = w.compile(f)
    for color, flags in ((Color.RED, Flags.A), (Color.GREEN, Flags.B), (Color.RED, Flags.A)):
        w.call(f, w.t(2), color, flags)


@program
def simple_namespaces_and_mapping_proxies(w):
    space = types.SimpleNamespace(scale=2.0)
    proxy = types.MappingProxyType({"k": 3})

    def f(x):
        space.last = x.shape[0]
        return x * space.scale + proxy["k"], types.SimpleNamespace(y=x)

    f = w.compile(f)
    w.call(f, w.t(2))
    space.scale = 4.0
    w.call(f, w.t(3))
    w.note(space)


@program
def zip_enumerate_map_filter(w):
    def f(xs, scales):
        out = [x * s for x, s in zip(xs, scales, strict=False)]
        for k, (x, s) in enumerate(zip(xs, reversed(scales)), start=2):
            out.append(x + s * k)
        big = list(filter(lambda s: s > 1, scales))
        return out, big, list(map(operator.add, scales, scales)), dict(zip("ab", xs, strict=False))

    f = w.compile(f)
    for scales in ([1, 2], [1, 2], [3, 0.5]):
        w.call(f, [w.t(2), w.t(2)], scales)


@program
def copies(w):
    def f(d):
        shallow, deep = copy.copy(d), copy.deepcopy({"n": [1, 2]})
        shallow["new"] = d["x"] + 1
        deep["n"].append(3)
        return shallow, d["list"] is shallow["list"], deep, d["list"][:], list(d)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, {"x": w.t(2), "list": [1]})


class Stack(list):
    def push(self, value):
        self.append(value)
        return self


class Table(dict):
    def __missing__(self, key):
        return key * 2


@program
def subclasses_of_containers(w):
    def f(x, stack):
        stack.push(x).push(x + 1)
        table = Table(a=1)
        return stack, table[3], table["a"], Stack([x]), type(stack).__name__

    f = w.compile(f)
    stack = Stack()
    for _ in range(3):
        w.call(f, w.t(2), stack)


@program
def nested_structures_are_rebuilt(w):
    def f(tree):
        if isinstance(tree, dict):
            return {k: f(v) for k, v in tree.items()}
        if isinstance(tree, (list, tuple)):
            return type(tree)(f(v) for v in tree)
        return tree * 2 if isinstance(tree, torch.Tensor) else tree

    g = w.compile(f)
    for _ in range(2):
        w.call(g, {"a": [w.t(2), (w.t(1), 3)], "b": {"c": w.t(2, 2), "d": "text"}})
    w.call(g, [])


@program
def membership_and_identity_of_tensors(w):
    def f(x, y, items):
        return (
            x is y,
            any(x is item for item in items),
            [item is not x for item in items],
            id(x) == id(y),
        )

    f = w.compile(f)
    x, y = w.t(2), w.t(2)
    w.call(f, x, y, [y, x])
    w.call(f, x, x, [y, y])
    w.call(f, y, x, [x])


@program
def the_same_tensor_twice(w):
    def f(a, b):
        a.add_(1)
        return a + b, a

    f = w.compile(f)
    x, y = w.t(2), w.t(2)
    w.call(f, x, y)
    w.call(f, x, x)
    w.call(f, y, x)


@program
def strings_and_bytes(w):
    def f(x, name):
        parts = name.split(".")
        joined = "/".join(reversed(parts)).upper().replace("A", "b")
        return x * len(parts), joined, name.encode(), name.startswith("a"), name[1:], "%" in name

    f = w.compile(f)
    for name in ("a.b.c", "a.b.c", "x"):
        w.call(f, w.t(2), name)


@program
def big_and_small_integers(w):
    def f(x, n):
        return x * (n % 7), n**2, n // 3, divmod(n, 5), n << 2, ~n, n.bit_length(), -n, abs(-n)

    f = w.compile(f)
    for n in (3, 10**20, -8, 3):
        w.call(f, w.t(2), n)


@program
def order_of_equal_sets(w):
    def f(x, names):
        return x * len(names), list(names), "a" in names

    f = w.compile(f)
    first = {"a", "b", "c"}
    second = {str(n) for n in range(100)} | first
    for n in range(100):
        second.discard(str(n))  # equal to the first, and larger inside
    for names in (first, second, first, set()):
        w.call(f, w.t(2), names)


@program
def sets_of_classes(w):
    known = {int, float}

    def f(x):
        for kind in (int, str):
            if kind in known:
                x = x + 1
        return x, len(known), {int: "int", str: "str"}.get(next(iter(known)), "other") != ""

    f = w.compile(f)
    for kind in (None, str, None):
        if kind is not None:
            known.add(kind)
        w.call(f, w.t(2))


@program
def deep_copies_of_settings(w):
    class Settings:
        def __init__(self):
            self.scale = 2.0
            self.more = {"shift": [1, 2]}

    settings = Settings()

    def f(x):
        mine = copy.deepcopy(settings)
        mine.scale += 1
        mine.more["shift"].append(3)
        return x * mine.scale + sum(mine.more["shift"]), mine.more

    f = w.compile(f)
    w.call(f, w.t(2))
    settings.more["shift"][0] = 10
    w.call(f, w.t(2))
    settings.scale = 5.0
    w.call(f, w.t(2))
    settings.extra = [1]
    w.call(f, w.t(2))
    w.note(settings)


@program
def the_order_of_an_ordered_dict_changes(w):
    table = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
    config = types.SimpleNamespace(table=table)

    def f(x):
        for value in table.values():
            x = x * 2 + value
        return x, next(iter(table)), [*config.table]

    def g(x, d):
        return x * len(d), [*d.items()], list(reversed(d)), d == table, {**d}

    def h(x, d):
        d["z"] = 9.0
        return x, list(d)

    f, g, h = w.compile(f), w.compile(g), w.compile(h)
    for key, last in (("b", True), ("a", True), ("a", False), ("c", False)):
        w.call(f, w.t(2))
        w.call(g, w.t(2), table)
        w.call(g, w.t(2), collections.OrderedDict(a=1.0, b=2.0, c=3.0))
        other = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
        other.move_to_end(key, last)
        table.move_to_end(key, last)
        w.call(f, w.t(2))
        w.call(g, w.t(2), table)
        w.call(g, w.t(2), other)
        w.call(h, w.t(2), other)
        w.note(list(other), list(table))


@program
def containers_from_outside_are_rearranged_inside(w):
    table = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
    names, lists = {"a", "b"}, collections.defaultdict(list)

    def f(x):
        table.move_to_end("a")
        return x + 1

    def g(x):
        names.__ixor__({"b", "c"})
        return x * len(names)

    def h(x, key):
        lists.__missing__(key).append(1)
        return x * len(lists)

    def again(x, values):
        values.__init__([3, 4])
        return x * sum(values)

    f, g, h, again = w.compile(f), w.compile(g), w.compile(h), w.compile(again)
    for n in range(3):
        w.call(f, w.t(2))
        w.call(g, w.t(2))
        w.call(h, w.t(2), str(n))
        values = [1, 2, 3]
        w.call(again, w.t(2), values)
        w.note(list(table), names, lists, values)
        table.move_to_end("b")
