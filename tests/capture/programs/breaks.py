"""What needs data, and numbers that change: .item(), branches on tensors, masks, NumPy, prints."""

import logging
import math
import operator
import time

import numpy as np
import torch

from capture.harness import program


@program
def branch_on_a_sum(w):
    def f(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        else:
            y = y - 1
        return y * 3

    f = w.compile(f)
    for sign in (1, -1, 1, -1):
        w.call(f, w.t(3).abs() * sign)


@program
def nested_branches_on_data(w):
    def f(x):
        if x.max() > 1:
            if x.min() < -1:
                return x.sin()
            return x.cos()
        elif x.mean() > 0:
            x = x.exp()
        return x * 2

    f = w.compile(f)
    for _ in range(8):
        w.call(f, w.t(3))


@program
def item_steers_python(w):
    def f(x):
        n = int(x.abs().sum().item()) % 4
        values = [x * k for k in range(n)]
        return values, n, float(x[0]), bool(x.sum() > 0), int(x[1])

    f = w.compile(f)
    for _ in range(6):
        w.call(f, w.t(3))


@program
def a_loop_that_ends_by_data(w):
    def f(x):
        steps = 0
        while x.norm() > 1:
            x = x * 0.5
            steps += 1
        return x, steps

    f = w.compile(f)
    for scale in (1, 10, 100, 3, 10):
        w.call(f, w.t(3) * scale)


@program
def a_break_in_a_for_loop(w):
    def f(x, n):
        total = 0.0
        for k in range(n):
            x = x * 1.1 + k
            total += x.sum().item()
            x = x - total * 0.01
        return x, total

    f = w.compile(f)
    for n in (3, 3, 5, 1):
        w.call(f, w.t(3), n)


@program
def a_break_in_a_nested_call(w):
    def inner(x, depth):
        if depth == 0:
            return x * float(x.sum().tanh())
        return inner(x + 1, depth - 1) * 2

    def f(x):
        return inner(x, 2) + inner(x * 0.1, 1)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(3))


@program
def a_break_inside_a_comprehension_and_a_generator(w):
    def f(x):
        rows = [row * row.sum().item() for row in x]
        total = sum(float(row.max()) for row in x)
        return rows, total, sorted(x, key=lambda row: row[0].item())

    f = w.compile(f)
    for n in (3, 3, 2):
        w.call(f, w.t(n, 2))


@program
def a_break_inside_with_and_try(w):
    log = []

    class Manager:
        def __enter__(self):
            log.append("in")
            return 2

        def __exit__(self, *_):
            log.append("out")

    def f(x):
        try:
            with Manager() as n, torch.no_grad():
                y = x * n
                if y.sum().item() > 0:
                    y = y + 1
                z = y * 2
        finally:
            log.append("finally")
        return z, torch.is_grad_enabled()

    f = w.compile(f)
    for _ in range(4):
        w.call(f, w.t(2, grad=True))
        w.note(log)


@program
def results_of_unknown_size(w):
    def f(x):
        index = (x > 0).nonzero()
        kept = x[x > 0]
        unique, counts = x.round().unique(return_counts=True)
        return index, kept * 2, unique, counts, kept.shape[0]

    f = w.compile(f)
    for n in (4, 4, 7):
        w.call(f, w.t(n))


@program
def tolist_and_python_numbers(w):
    def f(x):
        values = x.tolist()
        return x * max(values), sum(values), len(values), torch.tensor(values) + 1

    f = w.compile(f)
    for n in (3, 3, 2):
        w.call(f, w.t(n))


@program
def numpy_round_trips(w):
    def f(x):
        array = (x * 2).numpy()
        array = np.sqrt(np.abs(array)) + 1
        back = torch.from_numpy(array)
        return back * x, array, np.float32(2.5) * x, x.shape[0] + int(np.int64(3))

    f = w.compile(f)
    for n in (3, 3, 4):
        w.call(f, w.t(n))


@program
def numpy_shares_memory(w):
    def f(x):
        y = x + 1
        array = y.numpy()
        array[0] = 42
        y.add_(1)
        return y, array

    f = w.compile(f)
    for _ in range(2):
        w.call(f, w.t(3))


@program
def arguments_that_are_arrays(w):
    def f(array, x):
        return torch.as_tensor(array) + x, array.sum(), array * 2

    f = w.compile(f)
    for k in range(3):
        w.call(f, np.arange(3, dtype=np.float32) + k, w.t(3))


@program
def printing_tensors(w):
    def f(x):
        y = x.round()
        print("y is", y.tolist())
        z = y + 1
        print(f"{z.sum():.1f}", z.shape)
        return z * 2

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


@program
def logging_and_clocks(w):
    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    logger = logging.getLogger("programs")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)

    def f(x):
        start = time.perf_counter()
        logger.info("shape %s", tuple(x.shape))
        y = x * 2
        logger.debug("not seen")
        return y, time.perf_counter() >= start

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    w.note(records)


@program
def state_is_right_behind_a_break(w):
    seen = []
    state = {"n": 0}

    def f(x):
        state["n"] += 1
        seen.append(x * 2)
        total = float(x.sum())
        seen.append(total)
        state["n"] += 10
        return x * total, list(state.items())

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
        w.note(seen, state)


@program
def in_place_before_and_behind_a_break(w):
    def f(x):
        view = x[0]
        x.mul_(2)
        scale = view.sum().item()
        view.add_(scale)
        y = x.clone()
        y[1] = scale
        return y, view

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2, 2))


@program
def gradients_through_a_break(w):
    def f(x):
        y = x * 2
        if y.sum().item() > 0:
            y = y.sin()
        return y * x

    f = w.compile(f)
    for sign in (1, -1, 1):
        x = (w.t(3).abs() * sign).requires_grad_()
        w.backward(w.call(f, x), x)


@program
def integers_that_change(w):
    def f(x, n):
        return x * n, x[:n], torch.zeros(n), x.sum() if n > 2 else x.mean(), n + 1

    f = w.compile(f)
    for n in (1, 2, 3, 4, 1, 0, -1):
        w.call(f, w.t(4), n)


@program
def floats_that_change(w):
    def f(x, a):
        return x * a, math.sqrt(abs(a)), x.clamp(max=a), a > 0.5, x + math.pi * a

    f = w.compile(f)
    for a in (0.5, 1.25, -3.0, 0.5, float("inf"), 0.0, -0.0, float("nan")):
        w.call(f, w.t(3), a)


@program
def numbers_change_their_type(w):
    def f(x, n):
        return x * n, type(n).__name__

    f = w.compile(f)
    for n in (1, 1.0, True, 2, 2.0, False, 1, 3 + 0j):
        w.call(f, w.t(2), n)


@program
def integers_as_attributes_and_in_containers(w):
    class Config:
        steps = 1

    config, sizes = Config(), [2]

    def f(x):
        for _ in range(config.steps):
            x = x.repeat(sizes[0])
        return x

    f = w.compile(f)
    for steps, size in ((1, 2), (2, 2), (3, 1), (1, 3), (2, 2)):
        config.steps, sizes[0] = steps, size
        w.call(f, w.t(2))


@program
def more_recordings_than_the_limit(w):
    def f(x, name):
        return x * len(name), name

    f = w.compile(f, recompile_limit=2)
    for name in ("a", "bb", "ccc", "dddd", "a", "eeeee"):
        w.call(f, w.t(2), name)


@program
def strings_steer(w):
    def f(x, op):
        return getattr(torch, op)(x) if hasattr(torch, op) else getattr(x, op)()

    f = w.compile(f)
    for op in ("sin", "relu", "sin", "view_as_nothing", "abs"):
        w.call(f, w.t(3), op)


@program
def data_decides_an_index_and_a_slice(w):
    def f(x):
        k = x.argmax().item()
        row = x[k:]
        return row, x[k], x[: k + 1].sum()

    f = w.compile(f)
    for _ in range(5):
        w.call(f, w.t(4))


@program
def short_circuit_on_data(w):
    def f(x, y):
        if (x > 0).all() and (y > 0).any():
            return x + y
        return x if not (x < 0).any() or y[0] else y

    f = w.compile(f)
    for a, b in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
        w.call(f, w.t(2).abs() * a, w.t(2).abs() * b)


@program
def a_graph_break_of_the_interface(w):
    import ingot

    def f(x):
        x = x + 1
        ingot.graph_break()
        x = x * 2
        ingot.graph_break()
        return x

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))


@program
def disabled_functions(w):
    import ingot

    log = []

    @ingot.disable
    def outside(x):
        log.append(float(x.sum()))
        return x.tolist()

    def f(x):
        values = outside(x * 2)
        return x + values[0], len(values)

    f = w.compile(f)
    for _ in range(3):
        w.call(f, w.t(2))
    w.note(log)


@program
def factories_before_a_break(w):
    def f(x):
        places = torch.arange(x.shape[0]) + 1
        zeros = torch.zeros(x.shape[0])
        mask = places > 2
        if mask.any():  # what the factories made is needed now
            x = x + places + zeros
        return x, places, zeros

    f = w.compile(f)
    for n in (2, 4, 4):
        with torch.no_grad():
            w.call(f, w.t(n))


@program
def a_loop_over_modules_breaks(w):
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in "abc"})

    def f(x):
        seen = []
        for name, layer in layers.items():
            x = layer(x)
            seen.append((name, x.sum().item() > 0))
        for layer in layers.values():
            x = layer(x).relu()
        return x, seen

    f = w.compile(f)
    for _ in range(3):
        with torch.no_grad():
            w.call(f, w.t(2, 2))


@program
def attention_without_weights(w):
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def f(x):
        result, weights = layer(x, x, x, need_weights=False)
        return result + 1, weights, layer(x, x, x)[1]

    f = w.compile(f)
    for _ in range(3):
        with torch.no_grad():
            w.call(f, w.t(2, 3, 8))


@program
def nested_tensors(w):
    def f(x):
        return x.is_nested, [part * 2 for part in x.unbind()]

    f = w.compile(f)
    for n in (2, 3, 2):
        parts = [w.t(n), w.t(1)]
        w.call(lambda parts: f(torch.nested.as_nested_tensor(parts, layout=torch.strided)), parts)


@program
def displays_with_breaks_in_them(w):
    """What is begun before a break is filled behind it."""

    def all_of(*args, **kwargs):
        return args, kwargs

    displays = (
        lambda x: [*range(3), x.sum().item()],
        lambda x: [*range(3), *range(int(x.sum())), *range(2)],
        lambda x: [1, 2, 3, x.sum().item(), 4, *range(3)],
        lambda x: {*range(3), x.sum().item(), *range(2)},
        lambda x: {**{"a": x}, **{"b": x.sum().item()}, **{"c": 3}},
        lambda x: {"a": 1, "b": x.sum().item(), **{"c": x * 2}},
        lambda x: (*range(3), x.sum().item(), x + 1),
        lambda x: all_of(*range(3), *range(int(x.sum())), **{"a": 1}, **{"b": x.sum().item()}),
        lambda x: [v.item() for v in x],
        lambda x: {v.item(): x * i for i, v in enumerate(x)},
        lambda x: {v.item() for v in [x[0], x[1], x[2]]},
        lambda x: [[v.item() for v in r] for r in x.view(2, 2)],
    )
    for display in displays:
        f = w.compile(display)
        for total in (2.0, 2.0, 3.0):
            w.call(f, torch.tensor([1.0, total - 1.0, 0.0, 0.0]))


@program
def tensors_that_are_places(w):
    items, layers = [1, 2, 3], torch.nn.ModuleList([torch.nn.Identity() for _ in range(4)])

    def changed(x, n):
        mine = [*items]
        mine[n] = x
        del mine[n - 1]
        mine[n:] = [4]
        return mine

    functions = (
        lambda x, n: x * items[n],
        lambda x, n: ((1, 2, 3)[n], "abc"[n], b"abc"[n], range(9)[n]),
        lambda x, n: (items[:n], (1, 2, 3)[n:], "abc"[::n], x.shape[n - 1]),
        lambda x, n: items[(x.sum() * 0).long() + 1],
        lambda x, n: (items.__getitem__(n), operator.getitem(items, n)),
        lambda x, n: layers[n](x),
        lambda x, n: x[:, n.float()],
        lambda x, n: x[(x.sum() * 0).float()],
        changed,
    )
    for function in functions:
        f = w.compile(function)
        for n in (1, 1, 2, 1):
            w.call(f, w.t(2, 4), torch.tensor(n))
            w.note(items)
