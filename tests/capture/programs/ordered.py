"""Ordered dicts and sets from outside that methods change: their order is eager's."""

import collections
import types

import torch

from capture.harness import program


def _orders(table):
    return list(table), list(reversed(table)), list(dict.keys(table)), list(table.items())


class Recent(collections.OrderedDict):
    """Keeps the last few, as caches do."""

    def __init__(self, most, *args):
        self.most = most
        super().__init__(*args)

    def __getitem__(self, key):
        value = super().__getitem__(key)
        self.move_to_end(key)
        return value

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        if len(self) > self.most:
            self.popitem(last=False)


@program
def ordered_dicts_that_methods_change(w):
    def table():
        return collections.OrderedDict(a=1.0, b=2.0, c=3.0, d=4.0)

    changes = {
        "to the end": lambda d, x: d.move_to_end("b"),
        "to the front": lambda d, x: d.move_to_end("c", last=False),
        "there and back": lambda d, x: (d.move_to_end("a"), d.move_to_end("a", last=False)),
        "popped": lambda d, x: d.popitem(),
        "popped in front": lambda d, x: d.popitem(last=False),
        "turned": lambda d, x: [d.move_to_end(k, last=False) for k in list(d)],
        "pop": lambda d, x: (d.pop("b"), d.pop("q", None), d.setdefault("b", x)),
        "updated": lambda d, x: d.update(b=x, e=5.0),
        "or": lambda d, x: d.__ior__({"f": x * 2, "a": 0.0}),
        "moved and set": lambda d, x: (d.move_to_end("a"), d.__setitem__("n", x * 3)),
        "set and moved": lambda d, x: (d.__setitem__("n", x), d.move_to_end("n", last=False)),
        "deleted and moved": lambda d, x: (d.__delitem__("d"), d.move_to_end("b")),
        "cleared": lambda d, x: (d.clear(), d.update(z=1.0, y=x)),
        "by the class": lambda d, x: collections.OrderedDict.move_to_end(d, "a"),
    }
    for change in changes.values():
        kept = table()
        holder = types.SimpleNamespace(table=table())

        def f(x, d, change=change, kept=kept, holder=holder):
            first = change(d, x)
            change(kept, x)
            change(holder.table, x)
            return x * len(d), list(d), first

        f = w.compile(f)
        for _ in range(4):
            d = table()
            w.call(f, w.t(2), d)
            w.note(_orders(d), _orders(kept), _orders(holder.table))
            for old in (kept, holder.table):
                old.clear()
                old.update(table())


@program
def ordered_dicts_that_have_been_rearranged_outside(w):
    def f(x, d):
        d.move_to_end(next(iter(d)))
        d["new"] = x
        return x + d["a"], [*d.values()]

    f = w.compile(f)
    for k in (None, "a", "b", "a", None, "b"):
        d = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
        if k is not None:
            d.move_to_end(k)
        w.call(f, w.t(2), d)
        w.note(_orders(d))
        w.call(f, w.t(2), d)
        w.note(_orders(d))


@program
def ordered_dicts_with_methods_of_their_own(w):
    recent = Recent(3, {"a": 1.0, "b": 2.0})

    def f(x, key):
        recent[key] = x.shape[0]
        return x * recent["b"], len(recent)

    f = w.compile(f)
    for key in ("c", "c", "a", "c", "a", "c"):
        recent["b"] = 2.0
        w.call(f, w.t(2), key)
        w.note(_orders(recent))


class Rearranging(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = collections.OrderedDict(a=1.0, b=2.0, c=3.0, d=4.0)
        self.table.move_to_end("b")
        self.recent = Recent(4, {"p": 1, "q": 2})
        self.seen = collections.OrderedDict()

    def forward(self, x, i):
        try:
            self.table.move_to_end("a")
            self.table.popitem(last=False)
            self.table["e"] = x * 2
            del self.table["d"]
            self.recent["r"] = self.recent["p"]
            self.seen["x"] = 1
            self.seen.move_to_end("x", last=False)
            return x[i] * 2, list(self.table)
        except IndexError:
            self.table.move_to_end("b")
            return x + len(self.table), list(self.table), list(self.recent)


@program
def ordered_dicts_that_change_before_an_operator_fails(w):
    for order in ((9, 1, 9), (1, 9, 1), (1, 1, 9)):
        module = Rearranging()
        f = w.compile(module)
        for k in order:
            w.call(f, w.t(4), torch.tensor([0, k]))
            w.note(_orders(module.table), _orders(module.recent), _orders(module.seen))
            module.table.clear()
            module.table.update(a=1.0, d=4.0, b=2.0, c=3.0)
            module.table.move_to_end("d", last=k == 1)


def _numbers():
    """A set whose order tells which of equal places were filled first."""
    numbers = {15, 7, 31, 40, 8}
    numbers.discard(31)
    return numbers


@program
def sets_that_methods_change_keep_the_order_of_eager(w):
    kept = _numbers()

    def f(x, given):
        for numbers in (kept, given):
            numbers.discard(15)
            numbers |= {23, 39}
            numbers.add(15)
        return x * len(kept)

    def g(x, given):
        given.add(23)
        mine = {23, 15, 7, 39}
        mine.discard(7)
        frozen = frozenset(mine | {47, 7})
        return x, mine, [*mine], frozen, {71, 15, *given}

    f, g = w.compile(f), w.compile(g)
    for _ in range(4):
        given = _numbers()
        w.call(f, w.t(2), given)
        w.note(list(kept), list(given))
        w.note(kept.pop(), given.pop(), list(kept))
        kept.clear()
        kept.update(_numbers())
        given = _numbers()
        _, mine, _, frozen, more = w.call(g, w.t(2), given)
        w.note(list(given), list(mine), list(frozen), list(more))
        mine.add(31)
        w.note(list(mine), list(frozen | {31}), more.pop())
