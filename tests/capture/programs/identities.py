"""Two objects that are one at the next call, and keys that are deleted and come back."""

import collections

import torch

from capture.harness import program


class Box:
    def __init__(self, v=None):
        self.v = v


class Slots:
    __slots__ = ("v",)

    def __init__(self, v):
        self.v = v


def _apart_and_one(w, f, make):
    """Calls `f` with two objects, with one for both, and with two again."""
    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3), make(), make())
        one = make()
        w.call(f, w.t(3), one, one)
        w.note(one)
        w.call(f, w.t(3), make(), make())


@program
def objects_that_become_one(w):
    def f(x, a, b):
        a.v = x + 1
        return b.v * 2

    _apart_and_one(w, f, lambda: Box(w.t(3)))

    def g(x, a, b):
        a.v += 1
        return x * b.v

    _apart_and_one(w, g, lambda: Box(1))
    _apart_and_one(w, g, lambda: Slots(1))


@program
def containers_that_become_one(w):
    def f(x, d, e):
        d["a"] = x + 1
        return e["a"] * 2

    _apart_and_one(w, f, lambda: {"a": w.t(3)})
    _apart_and_one(w, f, lambda: collections.OrderedDict(a=w.t(3)))

    def g(x, a, b):
        a.v.append(1)
        return x * len(b.v)

    inner = [1]
    _apart_and_one(w, g, lambda: Box([1]))
    _apart_and_one(w, g, lambda: Box(inner))
    _apart_and_one(w, g, lambda: Box(collections.deque([1])))

    def h(x, a, b):
        a.add(9)
        return x * len(b)

    _apart_and_one(w, h, lambda: {1})


@program
def an_argument_becomes_a_global_object(w):
    outside, numbers = Box(1), [1]

    def f(x, a):
        a.v = 5
        return x * outside.v

    def g(x, a):
        outside.v = 7
        return x * a.v

    def h(x, a):
        numbers.append(2)
        return x * len(a)

    f, g, h = w.compile(f), w.compile(g), w.compile(h)
    for _ in range(2):
        for one in (Box(1), outside, Box(1)):
            outside.v = 1
            w.call(f, w.t(3), one)
            outside.v = 1
            w.call(g, w.t(3), one)
        for one in ([1], numbers):
            numbers[:] = [1]
            w.call(h, w.t(3), one)
            w.note(numbers, outside)


@program
def objects_that_become_one_behind_a_break(w):
    def f(x, a, b):
        if x.sum() > 1e9:
            return x
        a.v = x * 2
        y = b.v + 1
        return y * 2 if y.sum() > -1e9 else y

    _apart_and_one(w, f, lambda: Box(w.t(3)))


@program
def instance_dictionaries_that_become_one(w):
    def f(x, a, b):
        a.v += 1
        return x * b.v

    f = w.compile(f)
    for _ in range(2):
        a, b = Box(5), Box(5)
        w.call(f, w.t(2), a, b)
        a.__dict__ = b.__dict__
        w.call(f, w.t(2), a, b)
        w.note(a.v, b.v)

    def g(x, o, d):
        o.v = x.shape[0] + 5
        return x * d["v"]

    g = w.compile(g)
    for _ in range(2):
        o, p = Box(1), Box(1)
        for d in ({"v": 1}, vars(p), vars(o)):
            w.call(g, w.t(2), o, d)


@program
def gradients_of_what_becomes_one(w):
    def f(x, a, b):
        a.grad = None
        return x if b.grad is None else x + b.grad

    f = w.compile(f)
    for _ in range(2):
        a, b = w.t(2, grad=True), w.t(2, grad=True)
        for one, other in ((a, b), (a, a)):
            (a * 2 + b * 3).sum().backward()
            w.call(f, w.t(2), one, other)


@program
def keys_that_come_back_go_to_the_end(w):
    d, o = {"a": 1, "b": 2, "c": 3}, Box(1)
    o.w = 2

    def f(x):
        del d["a"]
        d["z"] = 4
        d["a"] = x.shape[0]
        d["z"] += 1
        del o.v
        o.v = 5
        return x * len(d), list(d), list(vars(o))

    def g(x, d):
        d["p"] = 1
        d["q"] = 2
        del d["p"]
        d["p"] = x
        return x * 2

    f, g = w.compile(f), w.compile(g)
    for i in range(4):
        w.call(f, w.t(2))
        w.note(d, list(vars(o)))
        fresh = {} if i % 2 else {"p": 0, "r": 1}
        w.call(g, w.t(2), fresh)
        w.note(list(fresh))


@program
def what_is_deleted_may_be_missing(w):
    def f(x, d, o):
        try:
            del d["a"]
        except KeyError:
            x = x + 10
        try:
            del o.q
        except AttributeError:
            x = x + 100
        try:
            delattr(o, "r")
        except AttributeError:
            x = x + 1000
        return x

    f = w.compile(f)
    for i in range(8):
        o, d = Box(1), {"a": 1} if i & 2 else {}
        if i & 1:
            o.q = 1
        if i & 4:
            o.r = 1
        w.call(f, w.t(2), d, o)
        w.note(d, o)


@program
def globals_and_cells_that_are_deleted(w):
    def f(x):
        global deleted
        try:
            del deleted
        except NameError as error:
            return x, str(error)
        return x * 2

    n = 1

    def restore():
        nonlocal n
        n = 4

    def g(x):
        nonlocal n
        try:
            y = x * n
            del n
        except NameError as error:
            return x, str(error)
        return y

    f, g = w.compile(f), w.compile(g)
    for i in range(6):
        if i % 2:
            globals()["deleted"] = 1
            restore()
        w.call(f, w.t(2))
        w.call(g, w.t(2))
        w.note("deleted" in globals())


@program
def ordered_dicts_get_new_keys(w):
    o = collections.OrderedDict(a=1, b=2)

    def f(x, p):
        o["z"] = 1
        o["a"] += 1
        p["y"] = 1
        return x * sum(o.values()), list(reversed(o)), list(p)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2), collections.OrderedDict(q=1))
        w.note(list(o), list(reversed(o)))
        del o["z"]


@program
def new_keys_and_then_the_whole_dict(w):
    def f(x, d):
        d["new"] = x
        d.update(b=2)
        d.setdefault("c", 3)
        return list(d), x * len(d)

    f = w.compile(f)
    for i in range(12):
        w.call(f, w.t(2), {"a": i // 6})


@program
def dicts_that_grow_under_a_loop_with_a_break(w):
    def f(x, d):
        out = []
        try:
            for key in d:
                if x.sum() > 1e9:
                    return x
                d[key + "x"] = 1
                out.append(key)
        except RuntimeError as error:
            out.append(str(error))
        for key, value in d.items():
            print(key, value)
            out.append(value)
        return x * len(d), out

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3), {"a": 1, "b": 2})


@program
def attributes_through_getattribute(w):
    class Dynamic:
        def __init__(self):
            self.k = 3

        def __getattribute__(self, name):
            if name.startswith("plus_"):
                return int(name[5:]) + object.__getattribute__(self, "k")
            return super().__getattribute__(name)

    o = Dynamic()
    f = w.compile(lambda x: x * o.plus_5 + o.k)
    for _ in range(4):
        w.call(f, w.t(3))
        o.k += 1


@program
def patterns_look_into_objects(w):
    class Point:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

        @property
        def c(self):
            return self.a * 2

    def f(x, p):
        match p:
            case Point(1, [q, _]):
                return x - q
            case Point(2, b):
                return x, b
            case Point(c=6, b=b):
                return x * 2, b
            case Point(a, Box(v=v)):
                return x + a, v
            case torch.Tensor(shape=(2,)):
                return x + p
            case int(n) | Box(n):
                return x * n
        return "other"

    Box.__match_args__ = ("v",)
    f = w.compile(f)
    for p in (Point(1, [3, 4]), Point(1, [5, 4]), Point(2, "q"), Point(3, "r"), Point(4, Box(1)),
              Point(5, Box(2)), torch.ones(2), torch.ones(3), 3, Box(4), Box(5)):  # fmt: skip
        w.call(f, w.t(2), p)
    del Box.__match_args__
