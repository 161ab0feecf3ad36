"""Classes: attributes, properties, descriptors, super, slots, operators, metaclasses."""

import abc
import contextlib
import functools
import weakref

import torch

from capture.harness import program


class Box:
    factor = 2

    def __init__(self, value, scale=1.0):
        self.value = value
        self.scale = scale
        self.calls = 0

    def run(self, x):
        self.calls += 1
        self.last = x * self.scale
        return self.last * self.factor + self.value

    @property
    def doubled(self):
        return self.value * 2

    @doubled.setter
    def doubled(self, value):
        self.value = value / 2

    @staticmethod
    def static(x):
        return x - 1

    @classmethod
    def make(cls, value):
        return cls(value, 3.0)


@program
def attributes_are_changed_inside_and_outside(w):
    box = Box(w.t(2))
    f = w.compile(lambda x: box.run(x))
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    box.scale = 5.0
    w.call(f, w.t(2))
    box.value = w.t(2)
    w.call(f, w.t(2))
    box.value = 3
    w.call(f, w.t(2))
    w.note(box)


@program
def a_class_attribute_is_changed(w):
    class Local(Box):
        factor = 2

    box = Local(1)
    f = w.compile(lambda x: box.run(x))
    w.call(f, w.t(2))
    Local.factor = 7
    w.call(f, w.t(2))
    box.factor = 9
    w.call(f, w.t(2))
    del box.factor
    Local.run = lambda self, x: x
    w.call(f, w.t(2))


@program
def properties_static_and_class_methods(w):
    def f(box, x):
        box.doubled = x * 3
        made = Box.make(box.doubled)
        return made.static(x), type(box).make(1).scale, made.doubled, made

    f = w.compile(f)
    for _ in range(3):
        w.call(f, Box(w.t(2)), w.t(2))


@program
def objects_are_made_and_returned(w):
    def f(x):
        box = Box(x * 2)
        box.extra = [x, box.value]
        box.me = box
        return box

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def bound_methods_as_values(w):
    box = Box(1)

    def f(x, method):
        other = box.run
        return method(x) + other(x), other.__name__

    f = w.compile(f)
    w.call(f, w.t(2), box.run)
    w.call(f, w.t(2), Box(2).run)
    w.call(f, w.t(2), torch.sin)
    w.note(box)


@program
def super_and_multiple_inheritance(w):
    class A:
        def run(self, x):
            return [("A", x)]

    class B(A):
        def run(self, x):
            return [("B", x * 2), *super().run(x)]

    class C(A):
        def run(self, x):
            return [("C", x + 1), *super().run(x)]

    class D(B, C):
        def run(self, x):
            return super(D, self).run(x) + [__class__.__name__]

    one = D()
    f = w.compile(lambda x: one.run(x))
    for _ in range(2):
        w.call(f, w.t(2))


@program
def descriptors(w):
    class Scaled:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, instance, owner):
            return self if instance is None else getattr(instance, self.name) * 2

        def __set__(self, instance, value):
            setattr(instance, self.name, value + 1)

    class Thing:
        size = Scaled()

    thing = Thing()

    def f(x):
        thing.size = x.shape[0]
        return x * thing.size, type(Thing.size).__name__

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, w.t(n))
        w.note(thing)


@program
def cached_property(w):
    class Thing:
        def __init__(self):
            self.made = 0

        @functools.cached_property
        def table(self):
            self.made += 1
            return [1, 2, 3]

    thing = Thing()
    f = w.compile(lambda x: x * sum(thing.table))
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    del thing.table
    w.call(f, w.t(2))
    w.note(thing)


@program
def dynamic_attributes(w):
    class Dynamic:
        def __init__(self):
            self.store = {"a": 2}

        def __getattr__(self, name):
            try:
                return self.__dict__["store"][name]
            except KeyError:
                raise AttributeError(f"no {name}") from None

        def __setattr__(self, name, value):
            if name == "store":
                super().__setattr__(name, value)
            else:
                self.store[name] = value

        def __delattr__(self, name):
            del self.store[name]

    thing = Dynamic()

    def f(x):
        thing.b = x * thing.a
        found = getattr(thing, "missing", None), hasattr(thing, "b")
        setattr(thing, "c", 1)
        del thing.c
        return thing.b, found, thing.missing

    f = w.compile(f)
    w.call(f, w.t(2))
    thing.missing = 5
    w.call(f, w.t(2))
    thing.a = 7
    w.call(f, w.t(2))
    w.note(thing.store)


@program
def slots(w):
    class Slotted:
        __slots__ = ("x", "n")

        def __init__(self, n):
            self.n = n

    def f(x, thing):
        thing.x = x * thing.n
        made = Slotted(3)
        with contextlib.suppress(AttributeError):
            thing.other = 1
        return made, thing.x, hasattr(made, "x")

    f = w.compile(f)
    for n in (1, 1, 2):
        w.call(f, w.t(2), Slotted(n))


class Vector:
    def __init__(self, data):
        self.data = data

    def __add__(self, other):
        return Vector(self.data + (other.data if isinstance(other, Vector) else other))

    def __radd__(self, other):
        return Vector(other + self.data)

    def __mul__(self, other):
        return NotImplemented if isinstance(other, str) else Vector(self.data * other)

    def __iadd__(self, other):
        self.data += other
        return self

    def __neg__(self):
        return Vector(-self.data)

    def __matmul__(self, other):
        return (self.data * other.data).sum()

    def __eq__(self, other):
        return isinstance(other, Vector) and self.data.shape == other.data.shape

    def __hash__(self):
        return 7

    def __lt__(self, other):
        return self.data.shape[0] < other.data.shape[0]

    def __len__(self):
        return self.data.shape[0]

    def __bool__(self):
        return self.data.dim() > 0

    def __getitem__(self, index):
        return self.data[index]

    def __setitem__(self, index, value):
        self.data[index] = value

    def __contains__(self, value):
        return value == 3

    def __iter__(self):
        return iter([self.data, self.data * 2])

    def __call__(self, x):
        return self.data * x


@program
def operators(w):
    def f(a, b):
        c = a + b
        c += 1
        c[0] = 5.0
        try:
            c * "text"
        except TypeError as error:
            text = str(error)
        out = [a == b, a < b, len(a), 3 in a, bool(a), a[1], (-a).data, a @ b, 2 + a, a(2)]
        return out, c, list(c), text, {a: 1}[b] if a == b else None

    f = w.compile(f)
    for _ in range(2):
        w.call(f, Vector(w.t(3)), Vector(w.t(3)))
    w.call(f, Vector(w.t(2)), Vector(w.t(2)))


@program
def iterators_of_ones_own(w):
    class Count:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            self.k = 0
            return self

        def __next__(self):
            self.k += 1
            if self.k > self.n:
                raise StopIteration
            return self.k

    def f(x, count):
        for k in count:
            x = x + k
        return x, list(count), sum(count)

    f = w.compile(f)
    for n in (2, 2, 3):
        w.call(f, w.t(2), Count(n))


@program
def class_bodies_inside(w):
    def f(x, n):
        class Local:
            scale = n * 2

            def run(self, y):
                return y * self.scale

        return Local().run(x), Local.__name__, Local.scale

    f = w.compile(f)
    for n in (1, 2, 1):
        w.call(f, w.t(2), n)


@program
def metaclasses_and_abstract_classes(w):
    class Registry(type):
        known: list = []  # noqa: RUF012

        def __new__(mcs, name, bases, names):
            made = super().__new__(mcs, name, bases, names)
            mcs.known.append(name)
            return made

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.tagged = True
            return made

    class Base(metaclass=Registry):
        def __init__(self, n):
            self.n = n

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def run(self): ...

    def f(x, n):
        made = Base(n)
        try:
            Abstract()
        except TypeError as error:
            text = str(error)
        return x * made.n, made.tagged, text, isinstance(made, Abstract), Registry.known

    f = w.compile(f)
    for n in (1, 2):
        w.call(f, w.t(2), n)


@program
def new_and_init_subclass(w):
    class Single:
        instance = None
        children: list = []  # noqa: RUF012

        def __new__(cls):
            if cls.instance is None:
                cls.instance = super().__new__(cls)
                cls.instance.count = 0
            return cls.instance

        def __init_subclass__(cls, **kwargs):
            Single.children.append(cls.__name__)

    def f(x):
        one = Single()
        one.count += 1
        return x * one.count, one is Single()

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    w.note(Single.instance.count)


@program
def weak_references(w):
    class Node:
        pass

    node = Node()
    node.scale = 3
    reference = weakref.ref(node)

    def f(x):
        found = reference()
        return x if found is None else x * found.scale

    f = w.compile(f)
    w.call(f, w.t(2))
    w.call(f, w.t(2))
    node.scale = 4
    w.call(f, w.t(2))
    del node
    w.call(f, w.t(2))


@program
def an_objects_dict_and_class_are_changed(w):
    class First:
        def run(self, x):
            return x * self.n

    class Second:
        def run(self, x):
            return x + self.n

    thing = First()
    thing.n = 2

    def f(x):
        thing.__dict__["seen"] = vars(thing)["n"]
        return thing.run(x)

    f = w.compile(f)
    w.call(f, w.t(2))
    thing.__dict__["n"] = 5
    w.call(f, w.t(2))
    thing.__class__ = Second
    w.call(f, w.t(2))
    thing.__dict__ = {"n": 8}
    w.call(f, w.t(2))
    w.note(thing)


@program
def objects_that_meet_torch(w):
    class Wrapped:
        """Takes part in torch's functions through __torch_function__."""

        def __init__(self, data):
            self.data = data

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            args = [a.data if isinstance(a, Wrapped) else a for a in args]
            return Wrapped(func(*args, **(kwargs or {})))

    def f(x):
        return torch.add(Wrapped(x), 1), torch.sin(Wrapped(x)).data

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(2))


@program
def compiled_methods_within_compiled_functions(w):
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        def times(self, x, more=0):
            return x * self.factor + more

    Scaled.times = w.compile(Scaled.times)

    def f(s, x):
        return s.times(x) + s.times(x=x, more=1) + Scaled.times(s, x) + s.times(*[x])

    f = w.compile(f)
    for factor in (2, 2, 3):
        w.call(f, Scaled(factor), w.t(3))


@program
def classes_with_their_own_instance_checks(w):
    class Even(type):
        def __instancecheck__(cls, value):
            return value % 2 == 0 if isinstance(value, int) else super().__instancecheck__(value)

    class Number(metaclass=Even):
        pass

    def f(x, n):
        parameter = isinstance(x, torch.nn.Parameter)
        return x * 2 if isinstance(n, Number) else x, parameter, dict.fromkeys("ab", n)

    f = w.compile(f)
    for n in (1, 2, 3, Number(), torch.nn.Parameter):
        w.call(f, w.t(3), n)
    w.call(f, torch.nn.Parameter(w.t(2)), 1)


@program
def names_are_set(w):
    class Named:
        def __repr__(self):
            return f"{type(self).__qualname__}()"

    def helper(x: int):
        return x + 1

    def of_the_class(x):
        return x * 2, type(thing).__name__, Named.__qualname__, f"{thing!r}"

    def texts(x):
        return x * 2, f"{Named}", repr(Named), getattr(Named, "__name__")

    def of_a_function(x):
        return helper(x), helper.__name__, helper.__qualname__, list(helper.__annotations__)

    thing = Named()
    functions = [w.compile(f) for f in (of_the_class, texts, of_a_function)]
    for k in range(8):
        for f in functions:
            w.call(f, w.t(2))
        if k == 1:
            Named.__name__ = "Other"
        if k == 2:
            Named.__qualname__ = "outer.Other"
        if k == 3:
            helper.__name__ = "assistant"
        if k == 4:
            helper.__qualname__ = "outer.assistant"
        if k == 5:
            helper.__annotations__["y"] = float
        if k == 6:
            helper.__annotations__ = {"z": bool}


@program
def special_methods_are_set(w):
    class Plain:
        def __len__(self):
            return 2

    class Base:
        pass

    class Derived(Base):
        factor = 2

    def truth(x):
        return x if thing else -x, not thing, len(thing)

    def arithmetic(x):
        try:
            return x * (thing + 1)
        except TypeError:
            return x

    def attributes(x):
        return x * getattr(other, "missing", 1), hasattr(other, "missing")

    def of_a_dict(x):
        return x * Derived.__dict__["factor"], "more" in vars(Derived)

    thing, other = Plain(), Derived()
    functions = [w.compile(f) for f in (truth, arithmetic, attributes, of_a_dict)]
    for k in range(8):
        for f in functions:
            w.call(f, w.t(2))
        if k == 1:
            Plain.__bool__ = lambda self: False
        if k == 2:
            Plain.__len__ = lambda self: 0
        if k == 3:
            Plain.__add__ = lambda self, n: n + 4
        if k == 4:
            Base.__getattr__ = lambda self, name: 5
        if k == 5:
            Derived.factor, Derived.more = 3, 4
        if k == 6:
            Derived.__getattribute__ = lambda self, name: 8
