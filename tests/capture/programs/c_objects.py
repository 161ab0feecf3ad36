"""Deques, the locals of threads, and functions that keep their results, from outside."""

import collections
import functools
import threading

import torch
from torch import nn

from capture.harness import program


@program
def results_that_are_forgotten(w):
    state = {"n": 2}

    @functools.cache
    def number():
        return state["n"]

    f = w.compile(lambda x: x * number())
    for i in range(6):
        w.call(f, w.t(3))
        state["n"] += 1
        if i == 3:
            number.cache_clear()


@program
def results_that_are_pushed_out(w):
    made = []

    @functools.lru_cache(maxsize=2)
    def plus(n, *, by=1):
        made.append(n)
        return n + by

    f = w.compile(lambda x, n: x * plus(n, by=3))
    for n in (1, 1, 2, 1, 3, 1, 1, 2):
        w.call(f, w.t(3), n)
        w.note(made, plus.cache_info().misses)


@program
def calls_are_counted(w):
    @functools.cache
    def number():
        return 3

    f = w.compile(lambda x: x * number() + number())
    for _ in range(4):
        w.call(f, w.t(3))
        w.note(tuple(number.cache_info()))


@program
def tensors_and_lists_that_are_kept(w):
    @functools.cache
    def mask(n):
        return torch.ones(n, n).tril()

    @functools.cache
    def names():
        return ["a"]

    def f(x):
        m = mask(x.shape[0])
        names().append("c")
        return x * m * len(names()), m

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3, 3))
        one, other = w.call(f, w.t(4, 4)), w.call(f, w.t(4, 4))
        w.note(one[1] is other[1], one[1] is mask(4), names())
        mask(3).add_(1)


@program
def methods_that_keep_their_results(w):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 3

        @functools.lru_cache(maxsize=8)  # noqa: B019
        def rows(self, n, dtype):
            return torch.arange(n, dtype=dtype) * self.n

        def forward(self, x):
            return x + self.rows(x.shape[-1], dtype=torch.float32)

    module = Table()
    f = w.compile(module)
    for n in (3, 3, 4, 3, 5, 4):
        w.call(f, w.t(2, n))
        module.n += 1


@program
def a_cached_function_that_raises(w):
    tried = []

    @functools.cache
    def fails(n):
        tried.append(n)
        if n > 1:
            raise ValueError(n)
        return n

    def f(x, n):
        try:
            return x * fails(n)
        except ValueError as error:
            return str(error), x

    f = w.compile(f)
    for n in (1, 2, 2, 1, 3):
        w.call(f, w.t(2), n)
        w.note(tried)


@program
def a_window_of_tensors(w):
    last = collections.deque(maxlen=3)

    def f(x):
        last.append(x)
        return sum(last) / len(last), last[0], last[-1]

    f = w.compile(f)
    for _ in range(8):
        w.call(f, w.t(3))
        w.note(last)


@program
def a_module_that_keeps_numbers(w):
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = collections.deque([0.0], maxlen=4)

        def forward(self, x):
            self.seen.appendleft(float(x.shape[0]))
            if len(self.seen) > 2:
                x = x * self.seen[1]
            return x + max(self.seen)

    module = Averaged()
    f = w.compile(module)
    for n in (1, 2, 3, 2, 2, 5, 2, 2):
        w.call(f, w.t(n, 3))
        w.note(module.seen)


@program
def deques_that_come_in(w):
    def f(x, d):
        d.rotate(1)
        d.extend([x, x + 1])
        y = d.popleft()
        for t in d:
            y = y + t
        d[0] = y
        return y, list(reversed(d)), d.maxlen, len(d)

    f = w.compile(f)
    for most in (None, 3, 5, None, 3):
        d = collections.deque([w.t(3), w.t(3)], maxlen=most)
        w.call(f, w.t(3), d)
        w.note(d)


@program
def deques_that_are_made(w):
    def f(x):
        d = collections.deque(maxlen=2)
        for i in range(4):
            d.append(x * i)
        d.appendleft(x)
        return d, [*d], collections.deque([d])

    f = w.compile(f)
    for _ in range(3):
        made = w.call(f, w.t(3))
        w.note(made[0].maxlen, made[2].maxlen, made[2][0] is made[0])


@program
def deques_of_tuples(w):
    import contextlib

    def f(x, log):
        d = collections.deque([(x, 1)])
        d.append((x * 2, 2))
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "done")
            y = x + len(d)
        return y, d

    f = w.compile(f)
    log = []
    for _ in range(3):
        w.call(f, w.t(3), log)
        w.note(log)


@program
def deques_that_run_out(w):
    def f(x, d):
        try:
            d.pop()
            for n in d:
                d.append(n)
        except (IndexError, RuntimeError) as error:
            return x, str(error)
        return x * len(d), 1 in d, d == collections.deque([1])

    f = w.compile(f)
    for d in ([], [1], [1, 2], [3, 2], []):
        w.call(f, w.t(3), collections.deque(d))


@program
def locals_of_threads(w):
    local = threading.local()
    local.scale = 2

    def f(x):
        local.count = getattr(local, "count", 0) + 1
        local.kept = x * local.scale
        y = local.kept + 1
        del local.kept
        return y, hasattr(local, "kept"), vars(local).get("scale")

    f = w.compile(f)
    for i in range(5):
        w.call(f, w.t(3))
        w.note(local.count, local.scale)
        if i == 2:
            local.scale = 3
    seen = []

    def run():
        local.scale = 10
        seen.append(f(torch.ones(2)))
        seen.append(local.count)

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    w.note(seen, local.count)


@program
def classes_of_locals_of_threads(w):
    class Context(threading.local):
        depth = 0

        def __init__(self, k):
            self.k = k

        @property
        def double(self):
            return self.k * 2

    context = Context(3)

    def f(x):
        context.depth += 1
        try:
            return x * context.double + context.depth
        finally:
            context.depth -= 1

    f = w.compile(f)
    for _ in range(4):
        w.call(f, w.t(3))
        context.k += 1
        w.note(context.depth)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(f(torch.ones(2))))
    thread.start()
    thread.join()
    w.note(seen, context.k)
