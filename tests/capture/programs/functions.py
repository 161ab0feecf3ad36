"""Calls: arguments of all kinds, closures, globals, decorators, functools, itertools."""

import functools
import inspect
import itertools
import operator
import sys
import typing

import torch

from capture.harness import program


@program
def positional_keyword_and_star_arguments(w):
    def inner(a, /, b, *rest, c=3, **named):
        return a * b + c + len(rest) + sum(named.values())

    def f(x, *args, **kwargs):
        return inner(x, 2), inner(x, *args, c=1), inner(x, 1, 2, 3, d=4, **kwargs)

    f = w.compile(f)
    w.call(f, w.t(2), 5)
    w.call(f, w.t(2), 5, 6, e=7)
    w.call(f, w.t(2), 5, 6, e=8)
    w.call(f, w.t(2))
    w.call(f, w.t(2), a=1)


@program
def defaults_that_are_shared(w):
    def f(x, seen=[], scale=2):  # noqa: B006
        seen.append(x.shape[0])
        return x * scale, list(seen)

    g = w.compile(f)
    w.call(g, w.t(2))
    w.call(g, w.t(3))
    f.__defaults__ = ([], 5)
    w.call(g, w.t(2))
    w.call(g, w.t(2), scale=1)


@program
def wrong_arguments(w):
    def f(x, y, *, z=1):
        return x + y + z

    f = w.compile(f)
    w.call(f, w.t(2), 1)
    w.call(f, w.t(2))
    w.call(f, w.t(2), 1, 2)
    w.call(f, w.t(2), 1, q=2)
    w.call(f, w.t(2), y=1, z=w.t(2))
    w.call(f, x=w.t(2), y=1)


@program
def closure_that_counts(w):
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x * count

    f = w.compile(f)
    for _ in range(4):
        w.call(f, w.t(2))
        w.note(count)


@program
def closure_changed_from_outside(w):
    scale, offset = 2, w.t(2)

    def f(x):
        return x * scale + offset

    f = w.compile(f)
    w.call(f, w.t(2))
    scale = 3
    w.call(f, w.t(2))
    offset = w.t(2)
    w.call(f, w.t(2))
    scale = w.t(2)
    w.call(f, w.t(2))
    offset = None
    w.call(f, w.t(2))


@program
def a_closure_is_returned(w):
    def f(x):
        y = x * 2

        def inner(z):
            return y + z

        return inner

    f = w.compile(f)
    for _ in range(2):
        w.call(lambda x: f(x)(x), w.t(2))


@program
def closures_that_share_a_cell(w):
    def f(x):
        total = 0

        def add(n):
            nonlocal total
            total += n
            return total

        def get():
            return total

        add(2)
        add(3)
        return x * get(), total

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


GLOBAL_SCALE = 2
GLOBAL_LOG: list = []


@program
def globals_are_read_and_written(w):
    global GLOBAL_SCALE
    GLOBAL_SCALE = 2
    GLOBAL_LOG.clear()

    def f(x):
        global GLOBAL_SCALE
        GLOBAL_LOG.append(GLOBAL_SCALE)
        GLOBAL_SCALE += 1
        return x * GLOBAL_SCALE

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    GLOBAL_SCALE = 100
    w.call(f, w.t(2))
    w.note(GLOBAL_SCALE, GLOBAL_LOG)


def helper(x):
    return x + 1


@program
def a_global_function_is_replaced(w):
    global helper
    first = helper

    def f(x):
        return helper(x) * 2

    g = w.compile(f)
    w.call(g, w.t(2))
    helper = torch.neg
    w.call(g, w.t(2))
    helper = lambda x: x * 10  # noqa: E731
    w.call(g, w.t(2))
    helper = first
    w.call(g, w.t(2))


@program
def a_missing_global(w):
    def f(x):
        try:
            return x * surely_missing  # noqa: F821
        except NameError as error:
            return str(error)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def code_is_replaced(w):
    def f(x):
        return x + 1

    def other(x):
        return x * 10

    def g(x):
        return f(x)

    g = w.compile(g)
    w.call(g, w.t(2))
    f.__code__ = other.__code__
    w.call(g, w.t(2))


@program
def decorators(w):
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(function(*args, **kwargs))

        return wrapper

    def scaled(n):
        def decorate(function):
            return lambda x: function(x) * n

        return decorate

    @scaled(3)
    @twice
    def f(x):
        return x + 1

    g = w.compile(f)
    for _ in range(2):
        w.call(g, w.t(2))


@program
def lambdas_and_higher_order_functions(w):
    def compose(*functions):
        return functools.reduce(lambda f, g: lambda x: g(f(x)), functions)

    def f(x, n):
        return compose(torch.sin, lambda y: y * n, torch.cos)(x)

    f = w.compile(f)
    for n in (1, 1, 2):
        w.call(f, w.t(2), n)


@program
def partial(w):
    def inner(a, b, *, c):
        return a * b + c

    def f(x):
        g = functools.partial(inner, b=2)
        return g(x, c=1), functools.partial(g, x)(c=5), g.keywords

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))
    h = w.compile(functools.partial(inner, c=2))
    w.call(h, w.t(2), 3)
    w.call(h, w.t(2), b=4)


@program
def reduce_and_operator(w):
    def f(xs):
        total = functools.reduce(operator.add, xs)
        product = functools.reduce(operator.mul, xs, 2)
        first, get = operator.itemgetter(0, -1), operator.attrgetter("shape")
        return total, product, first(xs), get(total), operator.methodcaller("sum")(total)

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, [w.t(2) for _ in range(n)])


@program
def caches(w):
    calls = []

    @functools.lru_cache(maxsize=None)
    def table(n):
        calls.append(n)
        return n * 10

    def f(x, n):
        return x * table(n)

    f = w.compile(f)
    for n in (1, 1, 2, 1):
        w.call(f, w.t(2), n)
    w.note(calls)


@program
def annotations_that_are_made_at_each_call(w):
    def f(x):
        (y,) = typing.cast(typing.Union[tuple[torch.Tensor], tuple[int | None]], (x,))  # noqa: UP007
        typing.cast(typing.Optional[list[int]], None)  # noqa: UP045
        return y.sin()

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, w.t(n))


@program
def single_dispatch(w):
    @functools.singledispatch
    def scale(value, x):
        return x

    @scale.register
    def _(value: int, x):
        return x * value

    @scale.register(str)
    def _(value, x):
        return x + len(value)

    def f(x, value):
        return scale(value, x)

    f = w.compile(f)
    for value in (3, "four", 2.5, 3):
        w.call(f, w.t(2), value)


@program
def itertools_functions(w):
    def f(x, n):
        out = []
        for a, b in itertools.product(range(n), repeat=2):
            out.append(x * (a + b))
        chained = list(itertools.chain([1], (2, 3), *[[4]]))
        pairs = list(itertools.pairwise([1, 2, 3]))
        groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])]
        accumulated = list(itertools.accumulate([1, 2, 3], operator.mul))
        taken = list(itertools.islice(itertools.count(5, 2), n))
        padded = list(itertools.zip_longest([1], [2, 3], fillvalue=0))
        picked = list(itertools.combinations("abc", 2))
        starred = list(itertools.starmap(pow, [(2, 3), (3, 2)]))
        while_ = list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]))
        return out, chained, pairs, groups, accumulated, taken, padded, picked, starred, while_

    f = w.compile(f)
    for n in (2, 2, 1):
        w.call(f, w.t(2), n)


@program
def an_iterator_is_an_argument(w):
    def f(x, it):
        return x * next(it), next(it, "end")

    f = w.compile(f)
    it = iter([1, 2, 3])
    w.call(f, w.t(2), it)
    w.call(f, w.t(2), it)
    w.call(f, w.t(2), it)
    w.call(f, w.t(2), iter([7]))


@program
def builtins_of_all_kinds(w):
    def f(x, n):
        made = [int("12"), float(n), str(n), bool(n), chr(97), ord("a"), hex(255), round(2.567, 1)]
        made += [
            pow(2, n),
            isinstance(x, torch.Tensor),
            issubclass(bool, int),
            callable(f),
            repr(n),
        ]
        made += [
            list(range(n)),
            tuple("ab"),
            type(x).__name__,
            getattr(x, "nothing", 4),
            hasattr(x, "grad"),
        ]
        return x * len(made), made, complex(1, n), bytes([n]), hash("a") == hash("a")

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, w.t(2), n)


@program
def type_checks(w):
    def f(value):
        if isinstance(value, (int, float)):
            return torch.ones(2) * value
        if isinstance(value, torch.nn.Parameter):
            return value * 2
        if torch.is_tensor(value) and value.is_floating_point():
            return value + 1
        return type(value)

    f = w.compile(f)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    for value in (1, 2.5, w.t(2), w.t(2, dtype=torch.int64), parameter, "s", w.t(2), True):
        w.call(f, value)


@program
def locals_and_frames(w):
    def caller_name():
        return sys._getframe(1).f_code.co_name

    def f(x):
        n = 3
        names = sorted(locals())
        return x * n, names, caller_name(), inspect.currentframe().f_code.co_name

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def function_attributes_and_signatures(w):
    def inner(a, b=2):
        inner.calls += 1
        return a * b

    inner.calls = 0

    def f(x):
        return inner(x), inner.calls, inner.__name__, len(inspect.signature(inner).parameters)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    w.note(inner.calls)


@program
def imports_inside(w):
    def f(x):
        import math
        from collections import namedtuple

        pair = namedtuple("pair", "a b")
        return x * math.pi, math.floor(2.5), pair(1, 2)._fields

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def compiled_functions_call_each_other(w):
    def inner(x, n):
        return x * n

    compiled = w.compile(inner)

    def outer(x, n):
        return compiled(x, n) + compiled(x + 1, 2)

    outer = w.compile(outer)
    for n in (1, 2, 1):
        w.call(outer, w.t(2), n)
        w.call(compiled, w.t(3), n)


@program
def a_compiled_function_is_called_back_from_c(w):
    def key(x):
        return float(x.sum())

    key = w.compile(key)

    def f(xs):
        return sorted(xs, key=key)

    f = w.compile(f)
    for _ in range(2):
        w.call(f, [w.t(2) for _ in range(4)])


@program
def printing(w):
    def f(x, name):
        print("before", name)
        y = x * 2
        print("after", y.shape, sep="|", end="!\n")
        return y

    f = w.compile(f)
    for name in ("a", "a", "b"):
        w.call(f, w.t(2), name)


@program
def async_functions(w):
    async def double(x):
        return x * 2

    async def f(x):
        return await double(x) + 1

    def drive(x):
        coroutine = f(x)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    drive = w.compile(drive)
    for _ in range(2):
        w.call(drive, w.t(2))


@program
def eval_and_exec(w):
    def f(x, text):
        space = {"x": x}
        exec("y = x * 2", space)
        return eval(text, {"x": x}), space["y"]

    f = w.compile(f)
    for text in ("x + 1", "x + 1", "x.sum()"):
        w.call(f, w.t(2), text)


@program
def frames_are_looked_at(w):
    def names_here(x):
        y = x * 2
        frame = sys._getframe()
        return y, frame.f_code.co_name, sorted(frame.f_locals), frame.f_back.f_code.co_name

    def f(x):
        x = x + 1
        kept = sorted(locals())
        y, *names = names_here(x)
        more = eval("x + y", globals(), {"x": x, "y": y})
        return more * 2, names, kept, sys.exc_info()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    for _ in range(2):
        try:
            raise KeyError("handled while f runs")
        except KeyError:
            w.call(f, w.t(2))


@program
def keys_that_need_data(w):
    def f(x, y):
        both = [x + 1, y + 1]
        return sorted(both, key=repr)[0] * 2, max(both, key=lambda t: t.sum().item())

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2), w.t(2))


@program
def operators_called_by_their_names(w):
    def f(x):
        return torch.ops.aten.sin(x) + torch.ops.aten.add.Tensor(x, x, alpha=2)

    f = w.compile(f)
    for n in (2, 3, 2):
        w.call(f, w.t(n))
