# ruff: noqa
"""Small programs over all of Python's constructs, for the interpreter's tests. Each is a function
without arguments that makes all it needs anew, so that it can be run any number of times."""

import contextlib

PROGRAMS = []
NOT_REBUILT = []


def program(text, rebuild=True):
    """Adds a program; `rebuild=False`: its frames cannot be rebuilt at most places."""

    def add(function):
        function.__doc__ = text
        function.__name__ = "program"
        function.__code__ = function.__code__.replace(co_name="program")
        PROGRAMS.append(function)
        if not rebuild:
            NOT_REBUILT.append(function)
        return function

    return add


def scale(x, factor=2, *rest, offset=0, **named):
    total = x * factor + offset
    for value in rest:
        total += value
    for key in sorted(named):
        total += named[key]
    return total


class Point:
    kind = "point"

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __call__(self, factor):
        return Point(self.x * factor, self.y * factor)

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    def __getitem__(self, index):
        return (self.x, self.y)[index]

    def __len__(self):
        return 2

    def __bool__(self):
        return self.x != 0

    @property
    def length(self):
        return self.x + self.y

    def add(self, other, *, twice=False):
        result = self + other
        if twice:
            result = result + other
        return result

    def __repr__(self):
        return f"<{self.x} {self.y}>"


@program("arithmetic and branches")
def _():
    total = 0
    for i in range(6):
        if i % 2 == 0:
            total += i
        elif i == 3:
            continue
        else:
            total -= 1
        if total > 100:
            break
    else:
        total *= 2
    x = -total if not total else +total
    return total, x, ~total, total**2 // 3, 7 @ 2 if total < 0 else None, 1 < total <= 100


@program("calls of every shape")
def _():
    values = [1, 2]
    names = {"z": 5}
    return [
        scale(1),
        scale(1, 3),
        scale(1, 3, 4, 5),
        scale(1, factor=3, offset=1),
        scale(*values),
        scale(*values, 3, **names),
        scale(1, **names, y=2),
        scale(offset=9, x=1),
        (lambda a, b=2: a - b)(7),
        max(*values, key=lambda v: -v),
    ]


@program("objects")
def _():
    p = Point(1, 2)
    q = p(3)
    p.x = 7
    q.y += 1
    r = p.add(q, twice=True)
    del q.x
    return p, hasattr(q, "x"), r, r.length, r[0], len(r), bool(r), p == r, Point.kind


@program("containers")
def _():
    a = [1, 2, *range(3)]
    b = (0, *a)
    c = {1, *a}
    d = {"x": 1, "y": 2}
    a[1:3] = [9]
    a[0] += 5
    del a[-1]
    d["z"] = a[::2]
    first, *middle, last = b
    (m, n), o = (1, 2), 3
    return a, b, sorted(c), d, first, middle, last, m, n, o, 3 in a, "q" not in d, {}.get(1)


@program("comprehensions and closures")
def _():
    k = 3

    def outer(n):
        count = 0

        def inner(x):
            nonlocal count
            count += x
            return count + k + n

        return [inner(i) for i in range(3)], count

    pairs = {i: j for i in range(3) for j in range(i) if i + j}
    unique = {i % 2 for i in range(5)}
    return outer(10), pairs, unique, sum(i * k for i in range(4)), (lambda: k)()


@program("exceptions and finally")
def _():
    log = []

    def risky(n):
        try:
            if n == 0:
                raise ValueError("zero")
            if n == 1:
                return "one"
            return [][n]
        except ValueError as error:
            log.append(str(error))
            raise KeyError(n) from error
        finally:
            log.append(n)

    for n in range(3):
        try:
            log.append(risky(n))
        except KeyError as error:
            log.append(repr(error.__cause__))
        except (IndexError, TypeError):
            log.append("index")
        else:
            log.append("fine")
    return log


@program("an exception that leaves")
def _():
    def deeper(n):
        if n == 0:
            return {}["missing"]
        return deeper(n - 1) + 1

    try:
        return deeper(2)
    finally:
        deeper = None


@program("exception groups", rebuild=False)
def _():
    log = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as group:
        log.append(repr(group.exceptions))
    except* (TypeError, KeyError) as group:
        log.append(len(group.exceptions))
    return log


@program("with")
def _():
    log = []

    class Manager:
        def __init__(self, swallow):
            self.swallow = swallow

        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, kind, value, trace):
            log.append(kind.__name__ if kind else None)
            return self.swallow

    with Manager(True) as m, Manager(False):
        log.append(m.swallow)
        raise ValueError
    with contextlib.suppress(KeyError):
        {}[1]
    return log


@program("generators", rebuild=False)
def _():
    def count(n):
        try:
            for i in range(n):
                sent = yield i
                if sent:
                    yield sent * 100
        finally:
            yield "end"

    def both(n):
        result = yield from count(n)
        return result

    g = count(3)
    log = [next(g), g.send(4), next(g), list(g), list(both(2))]
    g = count(5)
    next(g)
    log.append(g.throw(ValueError))
    try:
        next(g)
    except ValueError:
        log.append("thrown")
    return log, sorted(count(2), key=str)


@program("coroutines", rebuild=False)
def _():
    class Pause:
        def __await__(self):
            value = yield "pause"
            return value

    class Context:
        async def __aenter__(self):
            return await Pause()

        async def __aexit__(self, *error):
            await Pause()
            return True

    async def numbers(n):
        for i in range(n):
            await Pause()
            yield i

    async def work():
        total = []
        async with Context() as value:
            total.append(value)
            raise ValueError
        async for i in numbers(3):
            total.append(i)
        total += [i async for i in numbers(2)]
        return total

    coroutine = work()
    log = []
    sent = None
    while True:
        try:
            log.append(coroutine.send(sent))
            sent = len(log)
        except StopIteration as stop:
            return log, stop.value


@program("match")
def _():
    class Box:
        __match_args__ = ("size",)

        def __init__(self, size):
            self.size = size
            self.label = "box"

    def describe(value):
        match value:
            case 0 | 1:
                return "small"
            case [x, y, *rest]:
                return x, y, rest
            case {"key": item, **others}:
                return item, others
            case Box(3):
                return "three"
            case Box(size=s, label="box") if s > 5:
                return s
            case str(text):
                return text
            case None:
                return "none"
            case _:
                return "other"

    values = [0, [1, 2, 3], {"key": 1, "b": 2}, Box(3), Box(9), Box(4), "t", None, 2.5, {}]
    return [describe(v) for v in values]


@program("classes", rebuild=False)
def _():
    tag = "t"

    class Meta(type):
        def __new__(cls, name, bases, body, **options):
            body["options"] = sorted(options)
            return super().__new__(cls, name, bases, body)

    class Base:
        def name(self):
            return "base"

        def __init_subclass__(cls, **options):
            cls.seen = True

    class Derived(Base, metaclass=Meta, flag=1):
        label: str = tag
        values = [tag for _ in range(2)]

        def name(self):
            return super().name() + __class__.__name__

        @classmethod
        def make(cls):
            return cls()

        @staticmethod
        def plain(x):
            return x

    d = Derived.make()
    return d.name(), d.label, d.values, d.options, d.seen, d.plain(1), Derived.__annotations__


@program("imports")
def _():
    import math
    import os.path as path
    from collections import OrderedDict as Order
    from math import floor

    try:
        from math import nothing_of_the_kind
    except ImportError as error:
        nothing_of_the_kind = str(error)[:18]
    return math.floor(1.5), path.join("a", "b"), list(Order(a=1)), floor(2.5), nothing_of_the_kind


@program("strings")
def _():
    x, width = 3.14159, 8
    text = ""
    for i in range(4):
        text += f"{i}"
    more = text
    text += "!"
    return f"{x:.2f}|{x!r:>{width}}|{text!s}", "%s %d" % ("a", 1), text, more, "ab" + text[1:3]


@program("assignment expressions, chains, conditions")
def _():
    a = b = [1]
    b += [2]
    if (n := len(a)) > 1 and (a or b) and not (a and None):
        n *= 10
    x = y = n if a is b else None
    z = None or (x and y) or 5
    return a, n, x, y, z, a is not b, [] or "empty", 0 and 1


@program("globals and builtins", rebuild=False)
def _():
    namespace = {}
    exec(
        "import math\nx = 1\ndef f():\n    global x\n    x += 1\n    return x, len('ab')\n"
        "y = f()\ndel math\nclass C:\n    z: int = x\nfrom math import *\n",
        namespace,
    )
    return (
        namespace["y"],
        namespace["x"],
        namespace["C"].z,
        namespace["floor"](1.5),
        "math" in namespace,
    )


@program("frames that look at themselves", rebuild=False)
def _():
    import inspect
    import sys

    def inner(a, b=2):
        c = a + b
        frame = sys._getframe()
        return (
            sorted(locals()),
            frame.f_code.co_name,
            frame.f_back.f_code.co_name,
            c,
            frame.f_lineno,
        )

    names = [f.function for f in inspect.stack()[:1]]
    return inner(1), names, sorted(locals())


@program("unbound names")
def _():
    log = []

    def unbound():
        try:
            return value
        finally:
            value = 1

    def free():
        def inner():
            return later

        try:
            return inner()
        finally:
            later = 1

    for call in (
        unbound,
        free,
        lambda: undefined_name,
        lambda: None.x,
        lambda: scale(),
        lambda: dict.fromkeys(1),
    ):
        try:
            call()
        except Exception as error:
            log.append(f"{type(error).__name__}: {error}")
    return log


@program("recursion limit", rebuild=False)
def _():
    import sys

    def endless(n):
        return endless(n + 1)

    depth = 60
    frame = sys._getframe()
    while frame := frame.f_back:
        depth += 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth)
    try:
        endless(0)
    except RecursionError as error:
        return str(error)[:32]
    finally:
        sys.setrecursionlimit(limit)
