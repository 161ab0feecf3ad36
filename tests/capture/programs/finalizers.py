"""Objects that do something when they go."""

from __future__ import annotations

import contextlib
import gc

from capture.harness import program


class Ending:
    def __init__(self, log, x=None):
        self.log, self.x = log, x

    def __del__(self):
        self.log.append("gone")


class Circle(Ending):
    def __init__(self, log, x=None):
        super().__init__(log, x)
        self.me = self


@contextlib.contextmanager
def _no_collector():
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(w, f, log):
    f = w.compile(f)
    with _no_collector():
        for _ in range(4):
            w.call(f, w.t(3))
            w.note(list(log))
            gc.collect()
            w.note(list(log))


@program
def objects_that_wait_for_the_collector(w):
    log, kept = [], {}

    def alone(x):
        Circle(log, x)
        return x * 2

    def deleted(x):
        circle = Circle(log, 1)
        y = x * 2
        del circle
        return y

    def a_pair(x):
        a, b = Ending(log), Ending(log)
        a.other, b.other = b, a
        return x + 1

    def in_a_list(x):
        items = [Ending(log)]
        items.append(items)
        return x + 1

    def in_a_closure(x):
        ending = Ending(log)

        def inner():
            return ending, inner

        return x + 1

    def before_a_break(x):
        Circle(log)
        print(end="")
        return x * 3

    def across_a_break(x):
        circle = Circle(log)
        print(end="")
        y = x * 2
        del circle
        return y

    def let_go_from_outside(x):
        kept["one"] = Circle(log)
        return x * 2

    made = (alone, deleted, a_pair, in_a_list, in_a_closure)
    for f in (*made, before_a_break, across_a_break, let_go_from_outside):
        _run(w, f, log)
    kept.clear()


@program
def objects_that_go_in_the_call(w):
    log, box = [], {}

    def at_once(x):
        Ending(log)
        log.append("behind")
        return x * 2

    def deleted(x):
        ending = Ending(log)
        y = x * 2
        del ending
        log.append("behind")
        return y

    def behind_a_break(x):
        ending = Ending(log)
        print(end="")
        del ending
        log.append("behind")
        return x * 2

    def caught(x):
        with contextlib.suppress(ValueError):
            raise ValueError(Ending(log))
        log.append("behind")
        return x + 2

    def returned(x):
        ending = Ending([], x)
        return ending.x * 2, ending

    def replaced(x):
        box["one"] = None
        log.append("behind")
        return x * 2

    for f in (at_once, deleted, behind_a_break, caught, returned):
        _run(w, f, log)
    f = w.compile(replaced)
    for _ in range(4):
        box["one"] = Ending(log)
        w.call(f, w.t(3))
        w.note(log)
