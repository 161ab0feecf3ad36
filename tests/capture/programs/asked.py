"""C code that asks tensors for their numbers: once, in the midst of its work."""

import bisect
import collections
import functools
import heapq
import itertools
import math
import operator
import random
import struct

import torch

from capture.harness import program


def each(w, functions, grad=False):
    """Compiles each function of a tensor and two counts, and calls it with counts that change."""
    for function in functions:

        def f(x, a, b, function=function):
            y = x * 2
            return function(y, a + 0, b + 0), y + 1

        f = w.compile(f)
        for k in (0, 1, 0, 2):
            w.call(f, w.t(4, grad=grad), torch.tensor(1 + k % 2), torch.tensor(3 + k))


@program
def places_and_lengths(w):
    each(
        w,
        (
            lambda x, a, b: list(map(list.__getitem__, [[1, 2, 3], [4, 5, 6]], [a, a])),
            lambda x, a, b: list(map([1, 2, 3, 4, 5, 6, 7].__getitem__, iter([a, b]))),
            lambda x, a, b: slice(a, None, b).indices(9),
            lambda x, a, b: list(range(a, 9, b)),
            lambda x, a, b: [1, 2, 3, 4][a:b],
            lambda x, a, b: ([0] * b, (0, 1) * a, "ab" * b, b"c" * a),
            lambda x, a, b: (bytes(b), bytes([a, b]), chr(b), hex(b), range(9)[a], b in range(4)),
            lambda x, a, b: list(enumerate("ab", b)),
            lambda x, a, b: list(itertools.islice("abcd", a, None, a)),
            lambda x, a, b: list(itertools.repeat(x, b)),
            lambda x, a, b: len(list(itertools.combinations("abcde", b))),
            lambda x, a, b: [1, 2, 3, 4].pop(a),
            lambda x, a, b: collections.deque("abcde", b),
            lambda x, a, b: operator.itemgetter(a)("abc"),
            lambda x, a, b: [[1, 2, 3, 4][i:j] for i, j in zip([a, a], [b, b], strict=True)],
        ),
    )


@program
def numbers_and_texts(w):
    each(
        w,
        (
            lambda x, a, b: (operator.index(b), math.gcd(a, b), math.prod([a, b])),
            lambda x, a, b: (math.sqrt(b), math.hypot(x[0], x[1]), math.fsum(x)),
            lambda x, a, b: (math.floor(x[0]), math.isfinite(x[0]), math.ldexp(1.0, b)),
            lambda x, a, b: (round(x[0]), round(x[0], 2), divmod(b, a), pow(b, 2)),
            lambda x, a, b: pow(b, 2, 5),
            lambda x, a, b: (f"{x[0]:.2f}", f"{b}", "%d of %s" % (b, a), "%.1f" % x[0]),
            lambda x, a, b: ("{:.1f}".format(x[0]), ", ".join(map(str, [a, b]))),
            lambda x, a, b: struct.pack("if", b, x[0]),
            lambda x, a, b: list(map(int, iter([a, b]))),
            lambda x, a, b: list(map(round, [x[0], x[1]])),
            lambda x, a, b: list(map(math.sqrt, [a, b])),
            lambda x, a, b: (complex(x[0], a), int(a), float(b), bool(a)),
            lambda x, a, b: random.Random(3).randint(0, b),
        ),
        grad=True,
    )


@program
def sums_and_orders(w):
    def pushed(x, a, b):
        heap = [x[0]]
        for one in x[1:]:
            heapq.heappush(heap, one)
        return heap

    def inserted(x, a, b):
        found = [0.0, 1.0]
        bisect.insort(found, x[0])
        return found

    def in_place(x, a, b):
        found = list(x)
        found.sort()
        return found

    for grad in (False, True):
        each(
            w,
            (
                lambda x, a, b: (sum([a, b]), sum(list(x), x), math.prod(list(x))),
                lambda x, a, b: sorted(x),
                lambda x, a, b: sorted([x[0], x[1], x[2]], reverse=True),
                in_place,
                lambda x, a, b: (min(x[0], x[1]), max([x[2], x[3]]), min(list(x), key=torch.neg)),
                lambda x, a, b: max([1, 2, 3], key=lambda i: x[i]),
                lambda x, a, b: min(zip([x[0], x[1]], "ab")),
                lambda x, a, b: any(map(lambda one: one > 1, x)),
                lambda x, a, b: list(filter(None, [one > 0 for one in x])),
                lambda x, a, b: list(itertools.takewhile(lambda one: one < 1, iter(x))),
                lambda x, a, b: list(itertools.accumulate(list(x), max)),
                lambda x, a, b: functools.reduce(max, iter(x)),
                lambda x, a, b: (x[0] in [1, 2], [x[0]] == [x[1]], (x[0], 1) < (x[1], 2)),
                lambda x, a, b: ([1, 2, 3].index(a), [1, 2, 3].count(b)),
                lambda x, a, b: bisect.bisect([1, 2, 3], b),
                pushed,
                inserted,
            ),
            grad,
        )


@program
def iterators_are_moved_once(w):
    seen = []

    def told(one):
        seen.append(1)
        return one

    def f(x, n):
        y = x * 2
        rest = iter([n, n + 1, n * 0 + 2])
        first = list(map([10, 20, 30, 40, 50].__getitem__, map(told, rest)))
        return first, list(rest), y

    f = w.compile(f)
    for n in (1, 0, 1, 2, 1):
        w.call(f, w.t(3), torch.tensor(n))
        w.note(len(seen))


@program
def errors_are_eagers(w):
    def f(x, n):
        y = x * 2
        caught = []
        for ask in (
            lambda: list(map([1, 2].__getitem__, [n + 0])),
            lambda: slice(n.float() + 0, None).indices(3),
            lambda: list(map(math.sqrt, [y[0] - 100])),
            lambda: list(map(operator.index, [y])),
        ):
            try:
                caught.append(ask())
            except (IndexError, TypeError, ValueError, RuntimeError) as error:
                caught.append((type(error).__name__, str(error)))
        return caught, y

    f = w.compile(f)
    for n in (1, 5, 1, 5):
        w.call(f, w.t(3), torch.tensor(n))


@program
def operators_that_c_code_runs(w):
    for function in (
        lambda x, y: list(map(torch.nonzero, [x, y > 0])),
        lambda x, y: list(map(operator.getitem, [x, y], [x > 0, y > 0])),
        lambda x, y: list(map(torch.unique, [x.round(), y.round()])),
    ):
        f = w.compile(lambda x, function=function: function(x + 1, x * 2))
        for _ in range(3):
            w.call(f, w.t(5))


@program
def stores_at_places_that_data_decides(w):
    def f(x, y):
        x[x.argmax()] = len(y)
        y = y * 2
        y[y.argmin()] = x[0]
        return x, y

    f = w.compile(f)
    for n in (7, 5, 6, 5):
        w.call(f, w.t(n), w.t(n))
