"""Symbolic sizes under Ingot's own capture: one program for all sizes that it is valid for."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ingot
from ingot import _own_door
from ingot._settings import Settings


def own(function, **settings):
    return _own_door.compile(function, Settings(**settings))


def compare(function, calls, programs, **settings):
    """Calls the compiled function with all of them, twice; at most `programs` are recorded."""
    with torch.no_grad():
        compiled = own(function, **settings)
        for _ in range(2):
            for arguments in calls:
                expected = function(*arguments)
                got = compiled(*arguments)
                same(got, expected)
        counters = compiled.counters()
        assert counters["recordings"] <= programs, (counters, compiled.explain())
        assert counters["eager_calls"] == 0, counters
    return compiled


def same(got, expected):
    assert type(got) is type(expected), (got, expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
        assert got.stride() == expected.stride()
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            same(got[key], expected[key])
    else:
        assert got == expected


def batches(*shape, sizes=(4, 7, 5, 12, 3, 9, 33, 64, 8, 21)):
    return [(torch.randn(n, *shape),) for n in sizes]


def test_mlp_serves_all_batches():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compare(model, batches(8), 2)


def test_pointwise():
    compare(lambda x: (x + 1).relu() * 2, batches(), 2)


def views(x):
    n = x.shape[0]
    y = x.view(n, 2, -1).transpose(1, 2).reshape(n, x.size(1))
    return y.flatten(1) + torch.arange(n).unsqueeze(1), torch.zeros(n, 3), y.expand(2, *y.shape)


def test_shape_reads_stay_symbolic():
    compare(views, batches(6), 2)


def returned(x):
    n = x.shape[0]
    return {"n": n, "shape": x.shape, "twice": [2 * n + 1, n // 2, n % 3, -n], "tensor": x * n}


def test_returned_numbers_are_plain():
    compare(returned, batches(6), 2)


def branches(x):
    if x.shape[0] > 5:
        return x * 2
    return x - 1


def test_branches_on_sizes():
    compare(branches, batches(3), 3)


def even(x):
    return x.view(2, x.shape[0] // 2, 3) if x.shape[0] % 2 == 0 else x.sum(0)


def test_divisibility():
    compare(even, batches(3), 6)


def test_equality_of_two_dims():
    def function(x):
        return x.T @ x if x.shape[0] == x.shape[1] else x.sum()

    compare(
        function, [(torch.randn(a, b),) for a, b in ((3, 3), (4, 4), (5, 6), (6, 5), (9, 9))], 4
    )


def test_broadcast_one():
    calls = [
        (torch.randn(a, 4), torch.randn(b, 4)) for a, b in ((3, 3), (5, 5), (1, 5), (6, 1), (7, 7))
    ]
    compare(lambda x, y: x + y, calls, 5)


def iterates(x):
    total = x.new_zeros(x.shape[1])
    for i in range(x.shape[0]):
        total = total + x[i] * i
    return total, f"{x.shape[0]} rows", {x.shape[0]: 1}, {len(x)}, [0] * x.shape[0]


def test_numbers_that_are_needed():
    compare(iterates, batches(3, sizes=(4, 7, 5, 2)), 5)


def integers(x, n):
    return x[:n] * n, n + 1, x.sum() / n, n > 5


def test_integers():
    compare(integers, [(torch.arange(20.0), n) for n in (3, 5, 4, 7, 8, 12, 19)], 4)


def test_in_place_and_effects():
    def function(x, log):
        x.add_(1)
        log.append(x.shape[0])
        return x.view(-1)[: x.numel() // 2] * x.shape[0]

    with torch.no_grad():
        compiled = own(function)
        for n in (3, 4, 5, 8, 9):
            a, b = torch.ones(n, 4), torch.ones(n, 4)
            left, right = [], []
            same(compiled(a, left), function(b, right))
            same(a, b)
            assert left == right and type(left[0]) is int
    assert compiled.counters()["recordings"] <= 2


def test_returned_input_is_the_input():
    def function(x):
        x.mul_(2)
        return x, x[1:]

    with torch.no_grad():
        compiled = own(function)
        for n in (3, 4, 5, 6):
            x = torch.ones(n, 2)
            a, b = compiled(x)
            assert a is x and b._base is x
            same(b, torch.full((n - 1, 2), 2.0))


def test_breaks():
    def function(x):
        n = x.shape[0]
        y = x * n
        if y.sum() > 0:
            return y + n
        return y.view(-1) - n

    calls = [(torch.full((n, 2), v),) for n in (3, 4, 5, 6, 7) for v in (1.0, -1.0)]
    compare(function, calls, 40)


def test_never_and_always():
    with torch.no_grad():
        for dynamic, programs in ((False, 3), (True, 1), (None, 2)):
            compiled = own(lambda x: x + 1, dynamic=dynamic)
            for n in (3, 4, 5):
                compiled(torch.ones(n, 4 + n))
            assert compiled.counters()["recordings"] == programs


def test_marks():
    with torch.no_grad():
        for mark, programs in (
            (ingot.mark_dynamic, 1),
            (ingot.maybe_mark_dynamic, 1),
            (ingot.mark_static, 3),
        ):
            compiled = own(lambda x: x + 1)
            for n in (3, 4, 5):
                x = torch.ones(n, 4)
                mark(x, 0)
                compiled(x)
            assert compiled.counters()["recordings"] == programs


def mixture(x, y, n):
    a, b = x.shape
    if y.shape[0] != a:
        return x.sum(0), a * b - n, (a, y.shape)
    z = (x @ y.T).view(a, -1) if y.shape[1] == b else torch.cat([x, y], 1)
    if z.shape[1] > 3 or n % 2:
        z = z[:, : max(1, n)].expand(2, *z[:, : max(1, n)].shape).transpose(0, 1)
    return z.reshape(z.shape[0], -1), z.numel() + n, [z.size(-1), len(z)], f"{a}" if n > 4 else n


SIZE = st.integers(0, 6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(SIZE, SIZE, SIZE, SIZE, st.integers(-1, 6)), min_size=3, max_size=8))
def test_random_sizes(calls):
    with torch.no_grad():
        compiled = own(mixture, recompile_limit=50)
        for a, b, c, d, n in calls:
            x, y = torch.randn(a, b), torch.randn(c, d)
            try:
                expected = mixture(x, y, n)
            except Exception as error:
                expected = error
            try:
                got = compiled(x, y, n)
            except Exception as error:
                got = error
            if isinstance(expected, Exception):
                assert (type(got), str(got)) == (type(expected), str(expected))
            else:
                same(got, expected)
