"""Iterators that live across breaks, come with the call, or are moved in several places."""

import torch

from capture.harness import program


@program
def loops_with_one_break(w):
    def over(x, xs, make):
        total = 0.0
        outs = []
        for one in make(xs):
            x = x * 1.1 + 1
            total += x.sum().item()
            outs.append((one, x))
        return outs, total

    makers = (
        lambda xs: xs,
        tuple,
        reversed,
        enumerate,
        lambda xs: enumerate(xs, 3),
        lambda xs: zip(xs, range(9), strict=False),
        lambda xs: enumerate(zip(xs, xs[1:], strict=False)),
        lambda xs: range(len(xs)),
        lambda xs: range(len(xs), -1, -2),
        lambda xs: {i: x for i, x in enumerate(xs)},
        lambda xs: {str(i): x for i, x in enumerate(xs)}.items(),
        lambda xs: {i: x for i, x in enumerate(xs)}.values(),
        lambda xs: zip(*[iter(xs)] * 2, strict=False),
        lambda xs: iter([1.5, 2.5, 3.5, 4.5]),
        lambda xs: map(torch.neg, xs),
        lambda xs: (one * 2 for one in xs),
        lambda xs: zip(xs, xs, strict=True),
    )
    for make in makers:
        f = w.compile(lambda x, xs, make=make: over(x, xs, make))
        for n in (4, 4, 2, 5, 0, 4):
            w.call(f, w.t(3), [w.t(2) for _ in range(n)])


@program
def nested_loops_and_breaks_out(w):
    def f(x, n):
        total = 0
        for i in range(n):
            for j, name in enumerate("ab" if i % 2 else "xyz"):
                x = x + j
                if x.sum().item() > 12:
                    break
                total += len(name) * i
            else:
                total += 100
                continue
            x = x * 0.25
        return x, total

    f = w.compile(f)
    for n in (3, 5, 4, 5, 1):
        w.call(f, w.t(2), n)


@program
def what_is_iterated_over_changes(w):
    def f(x, xs):
        seen = []
        for i, one in enumerate(xs):
            x = x + one
            if x.sum().item() > 0 and len(xs) < 6:
                xs.append(i)
            elif len(xs) > 3:
                xs.pop()
            seen.append(one)
        return x, seen

    def g(x, d):
        for key in d:
            x = x + d[key]
            if x.sum().item() > 3:
                d[key + "+"] = 1
        return x

    f, g = w.compile(f), w.compile(g)
    for k in range(4):
        w.call(f, w.t(2), [1.0 + k, -2.0, 3.0])
        w.call(g, w.t(2), {"a": k, "b": 1.0})


@program
def two_names_for_one_list(w):
    def f(x, xs, ys):
        out = 0
        for one in xs:
            x = x * 2
            ys.append(x.sum().item() > 0)
            x = x + one
            if len(ys) > 6:
                break
            out += 1
        return x, out, len(xs)

    f = w.compile(f)
    for same in (False, False, True, False, True):
        xs = [1.0, 2.0, 3.0]
        w.call(f, w.t(2), xs, xs if same else [0.5])


@program
def iterators_that_come_in(w):
    def f(x, rest):
        first = next(rest, None)
        for one in rest:
            x = x + one
            if one > 3:
                break
        return x, first

    f = w.compile(f)
    for start in (0, 1, 0, 2, 5):
        rest = iter([1, 2, 3, 4, 5, 6][start:])
        w.call(f, w.t(2), rest)
        w.note(list(rest))
    pairs = iter({"a": 1.0, "b": 2.0, "c": 3.0}.items())
    for _ in range(4):
        w.call(f, w.t(2), iter([]))
    g = w.compile(lambda x, pairs: [(name, x * n) for name, n in pairs])
    w.call(g, w.t(2), pairs)
    w.call(g, w.t(2), pairs)


@program
def iterators_that_share_another(w):
    def f(x, a, b):
        out = []
        for one, other in zip(a, b, strict=False):
            x = x + one - other
            out.append(x.sum().item())
        return out, list(a), list(b)

    f = w.compile(f)
    for same in (False, False, True, False, True):
        a = iter([1.0, 2.0, 3.0, 4.0, 5.0])
        w.call(f, w.t(2), a, a if same else iter([0.5, 0.25]))


@program
def iterators_and_operators_that_fail(w):
    def f(x, xs, places):
        out = []
        rest = iter(xs)
        for place in places:
            try:
                x = x + next(rest)
                out.append(x.sum().item())
                x = x + x[place]
            except IndexError:
                out.append("failed")
        return x, out, list(rest)

    def g(x, places):
        rest, out = iter(places), []
        out.append(x.sum().item())
        for place in rest:
            try:
                x = x + x[place]
            except IndexError:
                out.append(len(out))
        return x, out

    f, g = w.compile(f), w.compile(g)
    for k in (0, 0, 7, 0, 9):
        places = [torch.tensor([0]), torch.tensor([k]), torch.tensor([1])]
        w.call(f, w.t(3), [1.0, 2.0, 3.0, 4.0], places)
        w.call(g, w.t(3), places)


@program
def modules_layer_by_layer(w):
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])
    scales = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(3)) for _ in range(3)])

    def f(x):
        shown = []
        for i, (layer, scale) in enumerate(zip(layers, scales, strict=False)):
            x = layer(x) * scale
            shown.append(round(x.sum().item(), 2) > 0)
            x = x.relu() + i
        return x, shown

    f = w.compile(f)
    for _ in range(3):
        x = w.t(2, 3, grad=True)
        out = w.call(f, x)
        w.backward(out[0], x, *layers.parameters(), *scales.parameters())
