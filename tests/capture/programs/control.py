"""Control flow: branches, loops, match, with, generators, comprehensions, unpacking."""

import contextlib

import torch

from capture.harness import program


@program
def branch_on_an_argument(w):
    def f(x, flag):
        if flag:
            return x + 1
        return x - 1

    f = w.compile(f)
    for flag in (True, False, True, 0, "text", None, [1]):
        w.call(f, w.t(3), flag)


@program
def branch_chain_and_conditional_expression(w):
    def f(x, n):
        if n < 0:
            y = -x
        elif n == 0:
            y = x * 0
        elif 0 < n <= 2:
            y = x * n
        else:
            y = x / n
        return y if n % 2 else y.exp()

    f = w.compile(f)
    for n in (-1, 0, 1, 2, 7, 1):
        w.call(f, w.t(2, 3), n)


@program
def for_over_a_range(w):
    def f(x, n):
        for k in range(n):
            x = x * 2 + k
        return x, k

    f = w.compile(f)
    for n in (3, 3, 5, 0, 1):
        w.call(f, w.t(2), n)


@program
def for_with_break_continue_and_else(w):
    def f(x, stop):
        seen = []
        for k in range(6):
            if k == 1:
                continue
            if k == stop:
                break
            x = x + k
            seen.append(k)
        else:
            x = x * 100
        return x, seen

    f = w.compile(f)
    for stop in (3, 9, 0, 3):
        w.call(f, w.t(2), stop)


@program
def while_with_else(w):
    def f(x, n):
        k = 0
        while k < n:
            x = x.sin()
            k += 1
            if k == 5:
                break
        else:
            x = x + 10
        return x

    f = w.compile(f)
    for n in (2, 4, 7, 0):
        w.call(f, w.t(3), n)


@program
def nested_loops(w):
    def f(x):
        total = torch.zeros(())
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                if (i + j) % 2:
                    total = total + x[i, j]
        return total

    f = w.compile(f)
    w.call(f, w.t(3, 4))
    w.call(f, w.t(3, 4))
    w.call(f, w.t(2, 5))


@program
def loop_over_a_tensor(w):
    def f(x):
        out = []
        for k, row in enumerate(x):
            out.append(row * k)
        return torch.stack(out), len(x)

    f = w.compile(f)
    for rows in (3, 3, 2):
        w.call(f, w.t(rows, 4))


@program
def boolean_operators(w):
    def f(x, a, b):
        if (a and not b) or (b and x.dim() == 2):
            x = x + 1
        return x * (a or 3), a and b, not a

    f = w.compile(f)
    for a, b in ((1, 0), (0, 1), (2, 2), (0, 0)):
        w.call(f, w.t(2, 2), a, b)


@program
def chained_comparisons(w):
    def f(x, n):
        return x if 1 < x.shape[0] <= n < 10 else -x

    f = w.compile(f)
    for n in (1, 3, 12, 3):
        w.call(f, w.t(3), n)


@program
def assignment_expressions(w):
    def f(x, values):
        if (n := len(values)) > 2:
            x = x * n
        total = [y := v + 1 for v in values]
        while (n := n - 1) > 0:
            x = x + n
        return x, total, y

    f = w.compile(f)
    for values in ([1, 2, 3], [1], (4, 5)):
        w.call(f, w.t(2), values)


@program
def match_on_values_and_sequences(w):
    def f(x, what):
        match what:
            case 0:
                return x
            case "double" | "twice":
                return x * 2
            case [a, b]:
                return x * a + b
            case [a, *rest] if len(rest) > 2:
                return x * a + sum(rest)
            case {"scale": scale, **more}:
                return x * scale + len(more)
            case float() as number:
                return x + number
            case None:
                return None
            case _:
                return x - 1

    f = w.compile(f)
    for what in (0, "twice", [2, 3], [2, 3, 4, 5], {"scale": 4, "more": 1}, 0.5, None, set(), 0):
        w.call(f, w.t(2), what)


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


@program
def match_on_classes(w):
    def f(point):
        match point:
            case Point(0, y):
                return y
            case Point(x=torch.Tensor() as x, y=int(n)):
                return x * n
            case Point(x, y):
                return x + y

    f = w.compile(f)
    for point in (Point(0, w.t(2)), Point(w.t(2), 3), Point(w.t(2), w.t(2)), Point(0, w.t(2))):
        w.call(f, point)


@program
def context_managers(w):
    log = []

    class Manager:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(("enter", self.name))
            return self.name

        def __exit__(self, kind, value, trace):
            log.append(("exit", self.name, kind.__name__ if kind else None))
            return self.name == "swallow"

    def f(x, fail):
        with Manager("outer") as a, Manager("swallow"):
            x = x + len(a)
            if fail:
                raise ValueError("inside")
            x = x * 2
        return x

    f = w.compile(f)
    for fail in (False, True, False):
        w.call(f, w.t(2), fail)
        w.note(log)


@program
def contextlib_managers(w):
    log = []

    @contextlib.contextmanager
    def scope(name):
        log.append(name)
        try:
            yield name * 2
        finally:
            log.append("end " + name)

    def f(x):
        with scope("a") as text, contextlib.suppress(KeyError), contextlib.nullcontext(3) as n:
            x = x * n + len(text)
            {}["missing"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(scope("b"))
            stack.callback(log.append, "callback")
            x = x + 1
        return x

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
        w.note(log)


@program
def generators(w):
    def numbers(n):
        for k in range(n):
            got = yield k
            if got:
                yield got

    def delegating(n):
        result = yield from numbers(n)
        yield result

    def f(x, n):
        for k in numbers(n):
            x = x + k
        values = list(delegating(2))
        it = numbers(3)
        first = next(it)
        sent = it.send("hello")
        it.close()
        return x * len(values), first, sent, next(it, "done")

    f = w.compile(f)
    for n in (3, 3, 4):
        w.call(f, w.t(2), n)


@program
def generators_delegate_to_what_comes_from_outside(w):
    values, table, source = [w.t(2), w.t(2)], {"a": 1, "b": 2}, None

    def each(items):
        got = yield from items
        return got

    def over_a_list(x):
        return x * sum(each(values))

    def over_an_argument(x, items):
        return [x * k for k in each(items)]

    def over_keys(x):
        return x, list(each(table)), [*each(table.values())]

    def over_a_generator(x):
        return [x * k for k in each(source)]

    def numbers(start):
        yield start
        return (yield start + 1)

    for function in (over_a_list, over_an_argument, over_keys, over_a_generator):
        f = w.compile(function)
        for start in (1, 1, 5, 7):
            source = numbers(start)
            arguments = ([start, 2],) if function is over_an_argument else ()
            w.call(f, w.t(2), *arguments)
            w.note(list(source))
            values[start % 2] = w.t(2)
            table["b"] += 1
        values.append(w.t(2))
        table["c"] = 3


@program
def generator_over_tensors(w):
    def halves(x):
        while x.shape[0] > 1:
            x = x[: x.shape[0] // 2] * 2
            yield x

    def f(x):
        return [y.sum() for y in halves(x)], sum(y.mean() for y in halves(x))

    f = w.compile(f)
    for n in (8, 8, 5):
        w.call(f, w.t(n))


@program
def a_generator_is_returned(w):
    def f(x):
        def parts():
            for k in range(3):
                yield x * k

        return parts()

    f = w.compile(f)
    for _ in range(2):
        w.call(lambda x: list(f(x)), w.t(2))


@program
def comprehensions(w):
    def f(xs, n):
        doubled = [x * 2 for x in xs if x.dim() == 1]
        by_name = {f"k{k}": x + k for k, x in enumerate(xs)}
        sizes = {x.shape[0] for x in xs}
        nested = [[i * j for j in range(n)] for i in range(n)]
        return doubled, by_name, sizes, nested, sum(x.sum() for x in xs)

    f = w.compile(f)
    for n in (2, 3, 2):
        w.call(f, [w.t(3), w.t(4), w.t(2, 2)], n)


@program
def comprehension_with_closure(w):
    def f(x, scale):
        fs = [lambda y, k=k: y * k + scale for k in range(3)]
        late = [lambda: k for k in range(3)]
        return [g(x) for g in fs], [g() for g in late]

    f = w.compile(f)
    for scale in (1, 1, 2.5):
        w.call(f, w.t(2), scale)


@program
def star_unpacking(w):
    def f(values, x):
        first, *middle, last = values
        (a, b), c = (x, x + 1), x + 2
        [*copy] = middle
        return first * a + last * b + c, copy, [*values, *middle], {"a": 1, "b": first}

    f = w.compile(f)
    for values in ([1, 2, 3], [1, 2], (3, 4, 5, 6), [1]):
        w.call(f, values, w.t(2))


@program
def unpacking_a_tensor(w):
    def f(x):
        a, b = x
        (c, d), *rest = x * 2
        return a + d, b - c, rest

    f = w.compile(f)
    w.call(f, w.t(2, 2))
    w.call(f, w.t(2, 2))
    w.call(f, w.t(3, 2))


@program
def early_return_in_loops_and_finally(w):
    def f(x, n):
        try:
            for k in range(5):
                if k == n:
                    return x * k
        finally:
            x = x + 1
        return x

    f = w.compile(f)
    for n in (2, 9, 0, 2):
        w.call(f, w.t(2), n)


@program
def recursion(w):
    def f(x, n):
        return x if n == 0 else f(x * 2, n - 1) + n

    g = w.compile(f)
    for n in (0, 3, 5, 3):
        w.call(g, w.t(2), n)


@program
def mutual_recursion_over_a_tree(w):
    def total(tree):
        return sum_of_list(tree) if isinstance(tree, list) else tree.sum()

    def sum_of_list(trees):
        result = 0
        for tree in trees:
            result = result + total(tree)
        return result

    f = w.compile(total)
    for tree in ([w.t(2), [w.t(3), [w.t(1)]]], [w.t(2), [w.t(3), [w.t(1)]]], w.t(2), [[]]):
        w.call(f, tree)


@program
def del_statements(w):
    def f(x, values):
        y = x + 1
        del x
        del values["gone"]
        try:
            return x
        except UnboundLocalError as error:
            return y, str(error), values

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2), {"gone": 1, "kept": 2})
    w.call(f, w.t(2), {})


@program
def assertions(w):
    def f(x, n):
        assert n > 0, f"n is {n}"
        assert x.dim() == 1
        return x * n

    f = w.compile(f)
    for n, sizes in ((1, (2,)), (0, (2,)), (1, (2, 2)), (1, (2,))):
        w.call(f, w.t(*sizes), n)


@program
def format_strings(w):
    def f(x, name, value):
        text = f"{name!r:>8} {value:.3f} {x.shape} {x.dtype} {len(name)=}"
        return x + len(text), text, "%s-%d" % (name, value), "{:>4}".format(name)  # noqa: UP031, UP032

    f = w.compile(f)
    for name, value in (("a", 1.5), ("a", 1.5), ("long name", 2.25)):
        w.call(f, w.t(2, 3), name, value)


@program
def slices_and_ellipsis(w):
    def f(x, n):
        window = slice(n, None, 2)
        return x[window], x[..., n], x[:, None, ::2], x[-n:], x[n:n]

    f = w.compile(f)
    for n in (1, 2, 1):
        w.call(f, w.t(4, 5), n)
