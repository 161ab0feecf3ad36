"""Sizes and integers that change from call to call."""

import torch

from capture.harness import program


@program
def batches_change(w):
    net = torch.nn.Linear(4, 3).requires_grad_(False)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(-0.25)
    f = w.compile(lambda x: net(x).relu())
    for n in (2, 5, 3, 1, 7, 5, 0, 4):
        w.call(f, w.t(n, 4))


@program
def sizes_are_read(w):
    def f(x):
        n, m = x.shape
        flat = x.view(n * m)
        return flat.view(m, -1), torch.zeros(n, 2), n, x.size(), x.shape[1:], len(x), x.numel()

    f = w.compile(f)
    for n in (2, 5, 3, 1, 7, 4):
        w.call(f, w.t(n, 3))


@program
def sizes_decide(w):
    def f(x, y):
        if x.shape[0] > 4 and y.shape[0] % 2 == 0:
            return x[:4], "long"
        if x.shape == y.shape:
            return x + y, "same"
        return torch.cat([x, y]), max(x.shape[0], y.shape[0])

    f = w.compile(f)
    for n, m in ((2, 3), (5, 4), (6, 5), (3, 3), (7, 6), (7, 7), (9, 2), (1, 4)):
        w.call(f, w.t(n, 2), w.t(m, 2))


@program
def sizes_as_text_and_keys(w):
    def f(x):
        n = x.shape[0]
        table = {n: "n", n + 1: "more"}
        return (
            f"{n} {x.shape}",
            table,
            {n, 2 * n},
            [k for k in range(n)],
            {k: n for k in "ab"},
            n / 2,
        )

    f = w.compile(f)
    for n in (2, 5, 3, 7):
        w.call(f, w.t(n))


@program
def sizes_in_objects(w):
    class Box:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

        def __eq__(self, other):
            return self.n == other.n

        __hash__ = None

    def f(x, box):
        box.n = x.shape[0]
        mine = Box(x.shape[0] + 1)
        return len(mine), mine == box, [mine.n, box.n], sorted([9, mine.n, 4]), x * len(box)

    f = w.compile(f)
    for n in (2, 5, 3, 7, 8):
        box = Box(0)
        w.call(f, w.t(n), box)
        w.note(box.n)


@program
def sizes_through_callbacks(w):
    def f(x, y):
        longest = max([x, y], key=lambda t: t.shape[0])
        ordered = sorted([y.shape[0], x.shape[0]])
        total = sum(t.shape[0] for t in (x, y))
        return longest * 2, ordered, total, list(map(str, x.shape)), tuple(n + 1 for n in x.shape)

    f = w.compile(f)
    for n, m in ((2, 3), (5, 4), (4, 5), (6, 3), (3, 7)):
        w.call(f, w.t(n), w.t(m))


@program
def sizes_behind_breaks(w):
    def f(x):
        n = x.shape[0]
        y = x * n
        if y.sum() > 0:
            return y.view(-1, 2), n
        return y - n, x.shape

    f = w.compile(f)
    for n in (2, 5, 3, 7):
        w.call(f, w.t(n, 4).abs())
        w.call(f, -w.t(n, 4).abs())


@program
def integers_change(w):
    def f(x, k, shape):
        return x[:k] * k, k // 2, -k, x.sum() / k, torch.ones(shape), k if k > 3 else "few"

    f = w.compile(f)
    for k in (2, 3, 5, 4, 1, 0, -2, 6, True):
        w.call(f, w.t(8), k, (k, 2) if k > 0 else (1,))


@program
def inputs_of_changing_sizes_are_written(w):
    def f(x, log):
        x.add_(1)
        x[0] = x.shape[0]
        log.append(x.shape[0])
        return x, x[1:], x.t()

    f = w.compile(f)
    log = []
    for n in (2, 3, 5, 4):
        w.call(f, w.t(n, 2), log)
    w.note(log)


@program
def broadcasts_of_changing_sizes(w):
    f = w.compile(lambda x, y: (x + y, torch.where(x > 0, x, y)))
    for n, m in ((3, 3), (4, 4), (1, 5), (5, 1), (2, 3), (6, 6)):
        w.call(f, w.t(n, 2), w.t(m, 2))


@program
def products_of_changing_sizes(w):
    f = w.compile(lambda x, y: x @ y)
    for a, b, c in ((2, 3, 4), (3, 4, 5), (4, 4, 4), (5, 2, 2)):
        w.call(f, w.t(a, b), w.t(b, c))
        w.call(f, w.t(a, b), w.t(b + 1, c))
        w.call(f, w.t(2, a, b), w.t(2, b, c))
        w.call(f, w.t(a, b), w.t(b))


@program
def windows_of_changing_sizes(w):
    def f(x, weight):
        y = torch.nn.functional.conv2d(x, weight, padding=1)
        y = torch.nn.functional.max_pool2d(y, 2)
        return torch.nn.functional.adaptive_avg_pool2d(y, 2), y.flatten(1), y.mean((2, 3))

    f = w.compile(f)
    weight = w.t(4, 3, 3, 3)
    for n, h in ((1, 8), (2, 8), (3, 12), (2, 9), (4, 16)):
        w.call(f, w.t(n, 3, h, h), weight)


@program
def trained_with_changing_batches(w):
    weight = torch.ones(3, 2, requires_grad=True)
    f = w.compile(lambda x: (x @ weight).sum() * x.shape[0])
    for n in (2, 4, 3, 5):
        w.call(f, w.t(n, 3))
        loss = f(w.t(n, 3))
        loss.backward()
        w.note(weight.grad.clone())


@program
def exceptions_behind_symbolic_numbers(w):
    table = {}

    def f(x, n):
        y = x * n + (n % 3)
        x.add_(y)
        return table["missing"]

    f = w.compile(f)
    for k, n in ((4, 2), (3, 5), (7, 4)):
        x = w.t(k)
        w.call(f, x, n)
        w.note(x)


@program
def one_tensor_twice(w):
    def f(x, y):
        x.mul_(2)
        return x + y, x.shape[0]

    f = w.compile(f)
    for n in (2, 3, 5, 4):
        x = w.t(n)
        w.call(f, x, x)
        w.call(f, x, w.t(n))
