"""Objects that do something when they go."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import weakref

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


class Slotted:
    __slots__ = ("one", "other")

    def __init__(self, one=None, other=None):
        self.one, self.other = one, other


class Plain:
    pass


class Holder:
    def __init__(self, log, x=None):
        self.held = [{"ending": Ending(log, x)}]


def _replacements(w, log, make, functions):
    """Calls each function, several times, with what `make` makes anew outside."""
    for function in functions:
        box = make()

        def f(x, box=box, function=function):
            function(box, x)
            log.append("behind")
            return x * 2

        f = w.compile(f)
        for _ in range(4):
            fresh = make()
            for name in fresh.__slots__:
                setattr(box, name, getattr(fresh, name))
            del fresh
            log.clear()
            w.call(f, w.t(3))
            w.note(list(log))


@program
def members_of_slots_that_are_replaced(w):
    log = []

    def set_one(box, x):
        box.one = x

    def delete_one(box, x):
        del box.one

    def set_by_name(box, x):
        setattr(box, "one", None)
        log.append("set")

    def exchange(box, x):
        box.one, box.other = box.other, box.one
        box.one = None

    functions = (set_one, delete_one, set_by_name, exchange)
    _replacements(w, log, lambda: Slotted(Ending(log)), functions)
    _replacements(w, log, lambda: Slotted(Holder(log)), functions)
    _replacements(w, log, lambda: Slotted([Ending(log), Ending(log)], (1, 2)), functions)


@program
def containers_of_objects_with_finalizers_are_changed(w):
    log = []

    def clear(box, x):
        box.one.clear()
        log.append("cleared")

    def pop(box, x):
        box.one.pop()
        log.append("popped")

    def pop_and_keep(box, x):
        last = box.one.pop()
        log.append("popped")
        del last
        log.append("deleted")

    def set_item(box, x):
        box.one[0] = x
        log.append("set")

    def delete_item(box, x):
        del box.one[0]
        log.append("deleted")

    def delete_slice(box, x):
        del box.one[:1]
        box.other = len(box.one)

    def set_slice(box, x):
        box.one[:] = [x]
        log.append("set")

    def in_place(box, x):
        box.one *= 0
        log.append("emptied")

    def only_added(box, x):
        box.one.append(x)
        box.one.insert(0, 3)

    def replaced(box, x):
        box.one = [x]

    lists = (clear, pop, pop_and_keep, set_item, delete_item, delete_slice, set_slice, in_place,
             only_added, replaced)  # fmt: skip
    _replacements(w, log, lambda: Slotted([Ending(log), Holder(log)]), lists)

    def update(box, x):
        box.one.update(a=x)
        log.append("updated")

    def pop_a(box, x):
        box.one.pop("a")
        log.append("popped")

    def pop_item(box, x):
        key, value = box.one.popitem()
        log.append(key)
        del value
        log.append("deleted")

    def set_a(box, x):
        box.one["new"] = x
        box.one["a"] = x
        log.append("set")

    def delete_a(box, x):
        del box.one["a"]
        log.append("deleted")

    def merge(box, x):
        box.one |= {"a": None}
        log.append("merged")

    dicts = (clear, update, pop_a, pop_item, set_a, delete_a, merge, replaced)
    for kind in (dict, collections.OrderedDict):
        _replacements(w, log, lambda kind=kind: Slotted(kind(a=Ending(log), b=Holder(log))), dicts)

    def to_the_front(box, x):
        box.one.appendleft(x)
        log.append("pushed")

    deques = (to_the_front, clear, pop, pop_and_keep, set_item)
    _replacements(
        w, log, lambda: Slotted(collections.deque([Ending(log), Holder(log)], maxlen=2)), deques
    )


@program
def tuples_and_closures_with_finalizers_are_replaced(w):
    log = []

    def closure():
        ending = Ending(log)
        return lambda: ending

    def generator():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    def started():
        g = generator()
        next(g)
        return g

    def finalized():
        o = Plain()
        weakref.finalize(o, log.append, "finalized")
        return o

    def set_one(box, x):
        box.one = x
        log.append("set")

    for make in (lambda: (1, (Ending(log), 2)), closure, started, finalized,
                 lambda: functools.partial(print, Ending(log))):  # fmt: skip
        _replacements(w, log, lambda make=make: Slotted(make()), (set_one,))


@program
def what_is_read_and_then_replaced(w):
    log = []

    def read_and_set(box, x):
        x.add_(box.one.x)
        box.one = None
        log.append("set")

    def read_and_held(box, x):
        one = box.one
        box.one = None
        log.append("set")
        x.add_(one.x)
        del one
        log.append("deleted")

    def read_in_a_list(box, x):
        x.add_(box.other[0].x)
        box.other.clear()
        log.append("cleared")

    functions = (read_and_set, read_and_held, read_in_a_list)
    _replacements(w, log, lambda: Slotted(Ending(log, 2.0), [Ending(log, 3.0)]), functions)


class Kept(Ending):
    def times(self, y):
        self.times_called = getattr(self, "times_called", 0) + 1
        return y * self.x


held_by_a_global = None


@program
def what_a_call_has_read_is_not_kept(w):
    """It goes when the program lets go of it, outside, and another one takes its place."""
    log, box, items, slotted = [], Kept([]), [None, 1], Slotted(None)
    in_a_cell = None

    def of_a_global(x):
        return held_by_a_global.times(x) + held_by_a_global.x

    def of_a_cell(x):
        return in_a_cell.times(x), in_a_cell

    def of_an_attribute(x):
        return box.inner.times(x) if box.inner is not None else x

    def of_an_item(x):
        return items[0].times(x) + items[1]

    def of_a_slot(x):
        return slotted.one.times(x)

    def put(value):
        global held_by_a_global
        nonlocal in_a_cell
        held_by_a_global = in_a_cell = box.inner = items[0] = slotted.one = value

    for f in (of_a_global, of_a_cell, of_an_attribute, of_an_item, of_a_slot):
        f = w.compile(f)
        with _no_collector():
            for number in (1.0, 1.0, 2.0, 3.0, 3.0):
                put(Kept(log, number))
                w.note(list(log))
                for _ in range(2):
                    w.call(f, w.t(3))
                    w.note(in_a_cell.times_called)
            put(None)
            w.note(list(log))
            log.clear()
