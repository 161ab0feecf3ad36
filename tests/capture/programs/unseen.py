"""C code that reads, calls or writes what is outside on behalf of the program."""

import collections
import functools
import itertools
import operator
import types

import torch

from capture.harness import program


class Scored:
    def __init__(self, score, name=""):
        self.score, self.name = score, name


@program
def attributes_that_c_code_reads(w):
    items = [Scored(1.0, "a"), Scored(3.0, "b"), Scored(2.0, "c")]
    by_score = operator.attrgetter("score")

    def f(x):
        best = max(items, key=by_score)
        ranked = sorted(items, key=operator.attrgetter("score", "name"), reverse=True)
        total = sum(map(by_score, items))
        names = [*map(getattr, items, itertools.repeat("name"))]
        held = list(map(vars, items))[0]["score"]
        return x * best.score, [r.name for r in ranked], total, names, held

    def g(x, given):
        given.sort(key=operator.attrgetter("score"))
        groups = [(k, len(list(v))) for k, v in itertools.groupby(given, by_score)]
        return x * min(given, key=by_score).score, [i.name for i in given], groups

    f, g = w.compile(f), w.compile(g)
    for score in (1.0, 1.0, 5.0, 2.0, 2.5):
        items[0].score = score
        w.call(f, w.t(2))
        w.call(g, w.t(2), [Scored(2.0, "p"), Scored(score, "q")])
        w.note(items)


@program
def methods_that_c_code_calls_read_containers(w):
    order = {"a": 2, "b": 1, "c": 3}
    names = ["c", "a", "b"]
    rows = [1.0, 2.0, 3.0]
    nested = {"k": [{"n": [1.0]}]}

    def f(x):
        return (sorted(["a", "b", "c"], key=order.get), max("abc", key=order.__getitem__),
                sorted("abc", key=names.index), [*map(rows.__getitem__, [0, 1])],
                x * functools.reduce(operator.getitem, ["k", 0, "n", 0], nested),
                list(filter(order.__contains__, "xa")), [*itertools.starmap(order.get, [("a", 0)])],
                sum(map(functools.partial(order.get, "b"), [0])))  # fmt: skip

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    order["a"] = 0
    w.call(f, w.t(2))
    names.sort()
    w.call(f, w.t(2))
    rows[1] = 7.0
    w.call(f, w.t(2))
    nested["k"][0]["n"][0] = 4.0
    w.call(f, w.t(2))
    order["x"] = 1
    del order["b"]
    w.call(f, w.t(2))


@program
def methods_that_c_code_calls_write(w):
    log, seen, stack, table = [], set(), [], {}
    counts = collections.Counter()

    def f(x, n):
        list(map(log.append, range(n)))
        any(map(seen.add, range(n)))
        collections.deque(map(table.setdefault, "ab", [n, n]), maxlen=0)
        list(map(print, range(n)))
        taken = list(iter(stack.pop, 0))
        fresh = []
        list(map(fresh.append, [x, n]))
        list(map(counts.update, ["aa", "b"]))
        list(map(setattr, [holder] * 2, ["p", "q"], [x, n]))
        return x * n, taken, fresh

    holder = types.SimpleNamespace()
    f = w.compile(f)
    for n in (2, 2, 3, 2):
        stack[:] = [0, 5, n]
        w.call(f, w.t(2), n)
        w.note(log, sorted(seen), table, stack, counts, holder)
        table.clear()


@program
def values_that_c_code_makes_of_what_comes_in(w):
    point = collections.namedtuple("Point", "a b")
    outside, texts, config = [1.0, 2.0], ["p", ["q"]], {"k": [1]}

    class Meters(float):
        pass

    class Clipped(float):
        def __new__(cls, value):
            return super().__new__(cls, min(value, 2.5))

    class Label(str):
        def __new__(cls, parts):
            return super().__new__(cls, parts)

    class Numbers(list):
        def __init__(self):
            super().__init__(outside)

    class Table(dict):
        def __init__(self, **more):
            super().__init__(config, **more)

    class Names(frozenset):
        pass

    class Step(int):
        def __add__(self, other):
            return Step(int(self) + other)

    def f(x, value, n):
        p = point._make(outside)
        return (
            x * p.a + p.b,
            Meters(value) + 1,
            Clipped(value),
            Label(texts),
            Numbers(),
            Table(z=n),
            sorted(Names([n, 1])),
            Step(n) + 1,
            x * Step(n),
            tuple.__new__(point, outside),
            complex(value, n),
            Meters(value).hex(),
            x * Clipped(value),
        )

    def g(x):
        return x * Meters(x.sum() * 0 + 2), Step(x.sum().long() * 0 + 3)

    f, g = w.compile(f), w.compile(g)
    for value, n in ((1.0, 2), (1.0, 2), (2.0, 3), (3.0, 4), (0.5, 5)):
        w.call(f, w.t(2), value, n)
        w.call(g, w.t(2))
        if n == 3:
            outside[0] = 5.0
        if n == 4:
            texts[1][0] = "r"
            config["k"] = [2]
    w.call(f, w.t(2), 0.5, 5)
    config["k"].append(3)
    w.call(f, w.t(2), 0.5, 5)


@program
def texts_and_orders_of_what_is_deep_within(w):
    deep = {"a": [[3]], "b": [[2]]}
    other = {"a": [[3]], "b": [[2]]}

    def f(x):
        try:
            raise ValueError(deep["a"])
        except ValueError as error:
            text = str(error)
        space = types.SimpleNamespace(inner=deep)
        return (
            x,
            text,
            repr(space),
            space == types.SimpleNamespace(inner=other),
            deep.items() == other.items(),
            ("a", [[3]]) in deep.items(),
            sorted(deep.items(), key=operator.itemgetter(1)),
            max(deep.values()),
            str(deep.values()),
            [[2]] in deep.values(),
            dict(deep) == other,
            deep.keys() & other.keys() == {"a", "b"},
            "%s" % (deep,),
            repr([deep["b"]]),
        )

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    for change in (4, 1, 2, 3):
        deep["b"][0][0] = change
        w.call(f, w.t(2))
        other["b"][0][0] = change
        w.call(f, w.t(2))
    deep["a"][0].append(1)
    w.call(f, w.t(2))


@program
def objects_that_are_found_or_not(w):
    one, two = Scored(1), Scored(2)
    pool = [one]

    def f(x, item, items):
        found = item in items
        known = item in pool
        same = (item, 1) == (items[0], 1)
        try:
            at = items.index(item)
        except ValueError:
            at = -1
        return x * (2 if found else 3), known, at, items.count(item), [item] == items[:1], same

    def g(x, item, items):
        if item not in items:
            items.append(item)
        else:
            items.remove(item)
        return x * len(items)

    f, g = w.compile(f), w.compile(g)
    for item, items in ((one, [two]), (one, [one]), (two, [one, two]), (one, [two, two]),
                        (Scored(1), [one]), (two, [two])):  # fmt: skip
        w.call(f, w.t(2), item, items)
        w.call(g, w.t(2), item, list(items))
    pool.append(two)
    w.call(f, w.t(2), two, [two])


@program
def classes_and_functions_mapped(w):
    def f(x, rows, names):
        return (
            [*map(str, rows)],
            [*map(len, rows)],
            [*map(tuple, rows)],
            [*map(sum, rows)],
            [*map(float, x.unbind())],
            [*map(torch.sin, x.unbind())],
            [*map(type, rows)],
            dict(zip(names, map(sorted, rows), strict=True)),
            "".join(map(str.upper, names)),
            [*map(operator.mul, x.unbind(), rows[0])],
            [*map(isinstance, rows, [list, tuple])],
            [*map(max, rows, [[0], [9]])],
            list(itertools.chain.from_iterable(rows)),
            functools.reduce(lambda a, b: a + b, rows),
            [*map(id, rows)] == [*map(id, rows)],
        )

    f = w.compile(f)
    rows = [[1, 2], [4, 3]]
    w.call(f, w.t(2), rows, ["a", "b"])
    w.call(f, w.t(2), rows, ["a", "b"])
    rows[1][0] = 7
    w.call(f, w.t(2), rows, ["a", "b"])
    rows[0] = [2, 2]
    w.call(f, w.t(2), rows, ["a", "c"])
    w.call(f, w.t(2), [[1, 2], [[3], [1]]], ["a", "c"])


@program
def caches_that_c_code_calls(w):
    calls = []

    @functools.lru_cache
    def cached(n):
        calls.append(n)
        return n * 2

    def f(x, ns):
        return x * sum(map(cached, ns)), sorted(ns, key=cached)

    f = w.compile(f)
    for ns in ((1, 2), (1, 2), (2, 1), (3, 1)):
        w.call(f, w.t(2), ns)
        w.note(list(calls), cached.cache_info().hits)
    cached.cache_clear()
    w.call(f, w.t(2), (1, 2))
    w.note(list(calls), cached.cache_info().hits)


@program
def proxies_and_formats_of_what_is_outside(w):
    config, settings = {"k": 1.0, "n": [1]}, types.SimpleNamespace(scale=2.0, name="a", d={"q": 1})
    scored = Scored(1.5, "s")

    def f(x):
        proxy = types.MappingProxyType(config)
        text = "{0.score:.1f} {0.name} {1[k]} {2.d[q]}".format(scored, config, settings)
        return (
            x * proxy["k"],
            proxy.get("n"),
            list(proxy),
            len(proxy),
            "z" in proxy,
            text,
            dict(proxy),
            proxy == {"k": 1.0, "n": [1]},
            proxy | {"m": 1},
            functools.reduce(getattr, ["scored", "score"], types.SimpleNamespace(scored=scored)),
            "{k} {n[0]}".format_map(config),
            [*proxy.items()],
            str(proxy),
        )

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    config["k"] = 2.0
    w.call(f, w.t(2))
    scored.score = 3.0
    w.call(f, w.t(2))
    settings.d["q"] = 2
    w.call(f, w.t(2))
    config["n"].append(4)
    w.call(f, w.t(2))
    config["z"] = None
    w.call(f, w.t(2))


@program
def tensors_made_of_deep_lists(w):
    deep = [[[[[[1.0], [2.0]]]]]]

    def f(x, given):
        return x + torch.tensor(deep).sum(), torch.tensor(given), x.new_tensor(deep).shape

    f = w.compile(f)
    w.call(f, w.t(2), [[[[[1]]]]])
    w.call(f, w.t(2), [[[[[1]]]]])
    deep[0][0][0][0][0][0] = 5.0
    w.call(f, w.t(2), [[[[[1]]]]])
    w.call(f, w.t(2), [[[[[2]]]]])
    deep[0][0][0][0].append([3.0])
    w.call(f, w.t(2), [[[[[2]]]]])


@program
def targets_of_all_kinds(w):
    box = types.SimpleNamespace(i=0, rest=None, row=[0, 1, 2], d={"n": 1})

    def f(x, items):
        first, *box.rest = items
        box.row[0], box.row[1] = box.row[1], box.row[0]
        for box.i in range(3):
            x = x + box.i
        for box.d["last"], box.row[2] in zip("ab", items, strict=False):
            pass
        box.d["n"] += 1
        box.row[-1] *= 2
        box.d |= {"m": x}
        box.row[1:2] = items
        (box.a, [box.b]) = 1, [x]
        del box.a, box.row[0]
        with torch.no_grad() as box.context:
            box.x: torch.Tensor = x * first
        return box.x, (last := box.rest), last is box.rest

    f = w.compile(f)
    for items in ([1, 2], [1, 2], [3, 4, 5], [3, 4]):
        box.row = [0, 1, 2]
        w.call(f, w.t(2), items)
        w.note(box)


class Countdown:
    """An iterator whose state C code moves."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration
        return self.n

    def __length_hint__(self):
        return self.n

    def __index__(self):
        return self.n

    def __float__(self):
        return self.n / 2

    def __format__(self, specification):
        return f"<{self.n}{specification}>"

    def __missing__(self, key):
        return key


@program
def special_methods_that_c_code_calls(w):
    outside, steps = Countdown(4), Countdown(2)

    class Lazy(dict):
        def __missing__(self, key):
            self[key] = len(self)
            return self[key]

    lazy = Lazy()

    def f(x, n):
        fresh = Countdown(n)
        taken = next(iter(outside), None)
        row = x[steps], x * float(steps), torch.zeros(steps), [5, 6, 7][steps]
        text = f"{steps:>3}", "{:x}".format(steps), "%d" % steps.n
        return (
            row,
            taken,
            list(fresh),
            text,
            lazy[n],
            sum(Countdown(n)),
            range(steps)[-1],
            dict.get(lazy, n),
            max(Countdown(n + 1)),
            tuple(zip(Countdown(n), "ab", strict=False)),
            2 in Countdown(4),
            [*map(lazy.__getitem__, ["p", n])],
            "ab"[steps:],
        )

    f = w.compile(f)
    for n in (2, 2, 3, 2, 1):
        w.call(f, w.t(4), n)
        w.note(outside.n, lazy)
        if n == 3:
            steps.n = 1


@program
def numbers_that_change_in_what_c_code_makes(w):
    class Ratio(float):
        __slots__ = ()

    class Size(int):
        def __new__(cls, n):
            return int.__new__(cls, n * 2)

    class Tags(set):
        pass

    class Key(str):
        pass

    pair = collections.namedtuple("Pair", "n r", defaults=[0.5])

    def f(x, n, r):
        ratio, size, tags, key = Ratio(r), Size(n), Tags([n, 2, n]), Key(n)
        both = pair(n, ratio)
        made = pair._make([n, r])._replace(n=n + 1)
        return (
            x * ratio,
            x * size,
            sorted(tags),
            key,
            both,
            made,
            x * both.n,
            hash(key) == hash(str(n)),
            slice(n, None, size),
            complex(r, n),
            bytes([n]),
            divmod(n, 3),
            pow(n, 2, 5),
            int(str(n)),
            float(f"{r}"),
            bool(n - 3),
            range(n),
            (n).to_bytes(2, "big"),
            frozenset([n, r]),
            {n: r},
            types.SimpleNamespace(n=n),
            x[: size // 4],
        )

    f = w.compile(f)
    for n, r in ((2, 1.5), (2, 1.5), (3, 1.5), (4, 2.5), (5, 2.5), (6, 3.5)):
        w.call(f, w.t(8), n, r)


@program
def results_of_operators_that_go_through_c_code(w):
    def f(x, k):
        parts = list(map(torch.Tensor.sum, x.split(k)))
        best = max(x.shape), min(x.shape, default=0), sum(x.shape), sorted(x.stride())
        stacked = torch.stack(tuple(map(x.new_full, itertools.repeat((2,)), [1, k])))
        chained = functools.reduce(torch.add, map(torch.abs, x))
        table = dict(zip("abc", x.unbind(), strict=False))
        swapped = {v.shape: n for n, v in table.items()}
        picked = list(itertools.compress(x, [k, 0, 1]))
        first = next(filter(torch.is_tensor, [k, x, 2]))
        return parts, best, stacked, chained, table, swapped, picked, first, [*zip(*x, strict=True)]

    f = w.compile(f)
    for n, k in ((3, 1), (3, 1), (3, 2), (4, 2), (5, 2)):
        w.call(f, w.t(n, 2), k)


@program
def exceptions_that_live_outside(w):
    known = [ValueError("kept", 1)]
    errors, log = collections.deque(maxlen=2), []

    def f(x, how):
        try:
            if how == "again":
                raise known[0]
            if how == "chain":
                try:
                    {}["missing"]
                except KeyError as error:
                    raise RuntimeError("while") from error
            if how == "note":
                error = TypeError("noted")
                error.add_note("a note")
                raise error
        except (ValueError, RuntimeError, TypeError) as error:
            log.append((type(error).__name__, str(error), getattr(error, "__notes__", None)))
            log.append(repr(error.__cause__))
            errors.append(str(error))
            x = x * len(error.args)
        else:
            log.clear()
        return x, list(errors)

    f = w.compile(f)
    for how in ("again", "again", "chain", "note", "none", "chain", "again"):
        w.call(f, w.t(2), how)
        w.note(list(log), list(errors))
    known[0] = ValueError("another")
    w.call(f, w.t(2), "again")
    known[0].args = ("changed", 2, 3)
    w.call(f, w.t(2), "again")
    w.note(list(log))


@program
def tuples_that_are_keys(w):
    table = {(1, 2): 2.0, (1, (2, (3,))): 3.0}

    def f(x, key, other):
        mine = {(1, 2): 4.0, (1, (2, (3,))): 5.0, frozenset([1]): 6.0}
        both = {key: "key", other: "other"}
        filled = {}
        filled[key] = 1
        filled.setdefault(other, 2)
        return (
            x * mine.get(key, 1.0),
            key in mine,
            len(both),
            both,
            filled,
            len({key, other}),
            table.get(key),
            mine.pop(other, None),
            key in {(1, 2)},
            hash(key) == hash((1, 2)),
            {**both} == {(1, 2): "key"},
            dict([(key, 0), (other, 1)]),
            [*both][0] == (1, 2),
        )

    f = w.compile(f)
    a, b, c = (1, 2), (1, (2, (3,))), (1, (2, (4,)))
    for key, other in ((a, b), (a, b), (b, a), (c, a), (a, a), ((2, 1), a), (b, c), (c, c), (b, b)):
        w.call(f, w.t(2), key, other)
    g = w.compile(lambda x, key: x * {frozenset([1]): 2.0}.get(key, 3.0))
    for key in (frozenset([1]), frozenset([2]), frozenset([1])):
        w.call(g, w.t(2), key)


@program
def tuples_that_are_keys_one_way_each(w):
    ways = (
        lambda x, key: x * {(1, 2): 4.0}.get(key, 1.0),
        lambda x, key: x * (2 if key in {(1, 2): 4.0} else 3),
        lambda x, key: x * len({key: 1, (1, 2): 2}),
        lambda x, key: x * len({key, (1, 2)}),
        lambda x, key: x * len({k: 1 for k in [key, (1, 2)]}),
        lambda x, key: x * len(dict.fromkeys([key, (1, 2)])),
        lambda x, key: x * (hash(key) == hash((1, (2, (3,))))),
        lambda x, key: x * {(1, 2): 4.0}.setdefault(key, 1.0),
        lambda x, key: x * {(1, (2, (3,))): 4.0}.pop(key, 1.0),
        lambda x, key: (operator.setitem(d := {(1, 2): 1}, key, 2), x * len(d))[1],
        lambda x, key: x * collections.Counter([key, (1, 2)])[1, 2],
        lambda x, key: x * len({(1, 2)} | {key}),
        lambda x, key: x * len({(1, 2)}.union([key])),
        lambda x, key: x * ({(1, 2): 3.0} | {key: 4.0})[1, 2],
    )
    for way in ways:
        f = w.compile(way)
        for key in ((1, 2), (1, 2), (2, 1), (1, (2, (3,))), (1, (2, (4,))), (1, 2)):
            w.call(f, w.t(2), key)


@program
def items_that_slices_take_over(w):
    outside, rows = [1.0, 2.0], [[1], [2]]

    def f(x, given):
        mine = [0]
        mine[:] = outside
        mine[1:1] = given
        operator.setitem(mine, slice(0, 1), rows[0])
        mine.__setitem__(slice(0, 0), rows[1])
        return x * sum(mine), mine

    f = w.compile(f)
    for i in range(6):
        w.call(f, w.t(2), [i // 2])
        if i == 1:
            outside[0] = 5.0
        if i == 3:
            rows[0][0] = 7
            outside.append(1.0)
        if i == 4:
            rows[1][0] = 9


@program
def objects_that_are_keys(w):
    one, two = Scored(1), Scored(2)

    def f(x, a, b):
        table = {a: "a", b: "b"}
        grown = {}
        grown[a] = 1
        grown[b] = 2
        members = {a}
        members.add(b)
        return (
            x * len(table),
            table.get(one, "none"),
            two in table,
            len({a, b}),
            len(grown),
            len({o: 1 for o in (a, b)}),
            len(members),
            len(set([a, b])),
            one in {a},
            grown.setdefault(one, 3),
            len(dict.fromkeys([a, b, one])),
            len(members | {one}),
        )

    f = w.compile(f)
    for a, b in ((one, two), (one, two), (one, one), (two, two), (two, one), (Scored(1), two)):
        w.call(f, w.t(2), a, b)
    both = w.compile(lambda x, a, b: x * len({a, b}) + len({a: 1} | {b: 2}))
    tensors = w.t(2), w.t(2)
    for i, j in ((0, 1), (0, 1), (0, 0), (1, 1)):
        w.call(both, w.t(2), tensors[i], tensors[j])


HOLDERS = {
    "partial": lambda i: str(functools.partial(max, i)),
    "slice": lambda i: (repr(slice(i)), slice(i) == slice([1, [2]])),
    "chain map": lambda i: repr(collections.ChainMap({"k": i})),
    "exception": lambda i: (repr(ValueError(i)), str(ValueError(i, 1))),
    "namespace": lambda i: repr(types.SimpleNamespace(a=[i])),
    "equal namespace": lambda i: types.SimpleNamespace(a=i) == types.SimpleNamespace(a=[1, [2]]),
    "ordered": lambda i: repr(collections.OrderedDict(k=i)),
    "equal ordered": lambda i: collections.OrderedDict(k=i) == {"k": [1, [2]]},
    "default": lambda i: repr(collections.defaultdict(int, k=i)),
    "proxy": lambda i: repr(types.MappingProxyType({"k": i})),
    "deque": lambda i: collections.deque([i]) == collections.deque([[1, [2]]]),
    "in a deque": lambda i: [1, [2]] in collections.deque([i]),
    "values": lambda i: [1, [2]] in {"k": i}.values(),
    "items": lambda i: (("k", [1, [2]]) in {"k": i}.items(), max({"k": i}.items())),
    "named tuple": lambda i: collections.namedtuple("P", "a")(i) == ([1, [2]],),
    "generator": lambda i: sorted(r for r in [i, [0]]),
    "map": lambda i: list(map(lambda r: r, [i])) == [[1, [2]]],
    "least": lambda i: min([i, [9]]),
    "text": lambda i: (f"{[i]}", "{0[k]}".format({"k": i}), "%r" % [i]),
    "sum": lambda i: sum([i[1], [5]], []),
}


@program
def what_is_made_holds_what_is_outside(w):
    for way in HOLDERS.values():
        inner = [1, [2]]

        def f(x, way=way, inner=inner):
            return x, way(inner)

        f = w.compile(f)
        w.call(f, w.t(2))
        for items in ([2], [3], [3, 1], [2], []):
            inner[1][:] = items
            w.call(f, w.t(2))


@program
def callables_of_c_code_that_are_called(w):
    log, names, table, items = [], ["b", "a"], {"a": 1.0}, [Scored(1.0), Scored(2.0)]
    get, by_score, pick = table.get, operator.attrgetter("score"), operator.itemgetter("a")
    best = functools.partial(max, key=by_score)
    ranked = functools.partial(sorted, key=table.get)

    def f(x):
        first = best(items).score, pick(table), ranked(["a"]), by_score(items[0])
        functools.partial(log.append)(x.shape[0])
        held = functools.partial(getattr, items[0])("score")
        names.append("c")
        last = names.pop
        return x * get("a"), first, held, functools.partial(operator.getitem, table)("a"), last()

    f = w.compile(f)
    for value in (1.0, 1.0, 3.0, 4.0):
        table["a"] = items[0].score = value
        w.call(f, w.t(2))
        w.note(log, names, table)


@program
def functions_that_classes_have_under_other_names(w):
    """C code finds them in the class by a name that is not theirs."""
    Pair = collections.namedtuple("Pair", "a b", defaults=(1,))

    def plain(self, other):
        return self.value * other

    class Value:
        def __init__(self, value):
            self.value = value

        __mul__ = plain
        __add__ = lambda self, other: self.value + other  # noqa: E731

    value = Value(3)

    def f(x):
        pairs = list(map(Pair, [x, x + 1]))
        products = list(map(operator.mul, [value, value], [1, 2]))
        return pairs[0].a * pairs[1].b, products, list(map(operator.add, [value], [x]))

    f = w.compile(f)
    for n in (1, 1, 2, 3):
        Pair.__new__.__defaults__ = (n,)
        w.call(f, w.t(2))
    plain.__code__ = (lambda self, other: self.value * other * 10).__code__
    w.call(f, w.t(2))
    Value.__add__ = lambda self, other: self.value - other
    w.call(f, w.t(2))
