"""Compiled functions in threads, forks, callbacks and at the end; and what they hold is freed."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch

import ingot


def scaled(x, n):
    return (x * n).relu().sum() + x.shape[0]


def run(text):
    """Runs a program in a process of its own, which must end well and in silence."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", textwrap.dedent(text)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("breaks", [False, True])
def test_first_calls_in_many_threads(breaks):
    def function(x, n):
        y = scaled(x, n)
        if breaks and y > 1e9:
            return y
        return y + n

    compiled = ingot.compile(function)
    barrier = threading.Barrier(6)
    wrong = []

    def work(k):
        barrier.wait()
        for n in range(6):
            x = torch.arange(1.0 + (k + n) % 4) - 1
            if compiled(x, k * n) != function(x, k * n):
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_after_a_fork():
    out = run(
        """
        import os, torch, ingot
        f = ingot.compile(lambda x, n: (x * n).relu().sum() + x.shape[0])
        g = ingot.compile(lambda x: x @ x)
        x = torch.ones(3)
        assert f(x, 2) == 9
        g(torch.ones(64, 64))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                assert f(x, 2) == 9 and f(torch.ones(5), 3) == 20 and f(torch.ones(2, 2), 3) == 14
                assert g(torch.ones(8, 8))[0, 0] == 8
                assert ingot.compile(lambda x: x - 1)(x)[0] == 0
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert f(torch.ones(4), 2) == 12
        print("parent")
        """
    )
    assert out == "parent\n"


def test_at_the_end_of_the_interpreter():
    out = run(
        """
        import atexit, weakref, torch, ingot
        f = ingot.compile(lambda x, n: (x * n).sum())
        one = torch.ones(2)
        f(one, 1)

        class Last:
            def __del__(self, f=f, one=one, print=print, float=float):
                print("del", float(f(one, 3)), flush=True)

        class Other: pass
        other = Other()
        weakref.finalize(other, lambda: print("finalize", float(f(torch.ones(5), 1)), flush=True))
        atexit.register(lambda: print("exit", float(f(torch.ones(3), 2)), flush=True))
        last = Last()
        """
    )
    assert set(out.split("\n")) >= {"exit 6.0", "finalize 5.0", "del 6.0"}


def test_called_back_from_c_in_the_middle_of_a_call():
    inner = ingot.compile(lambda n: int((torch.ones(3) * n).sum()))
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(inner)

    def function(x, n):
        y = x * n
        return y + callback(n) + y.sum()

    compiled = ingot.compile(function)
    for n in (1, 2, 2, 5, 7, 1):
        assert torch.equal(compiled(torch.ones(2), n), function(torch.ones(2), n))


def test_called_by_itself_in_a_break():
    class Shown:
        def __repr__(self):
            return str(float(target[0](torch.ones(2), self.n)))

    shown, target = Shown(), []

    def function(x, n):
        y = x * n
        if n == 0:
            return y.sum()
        shown.n = n - 1
        return y.sum() + len(f"{shown!r}") + float(repr(shown))

    compiled = ingot.compile(function)
    for n in (0, 1, 2, 3, 3, 2, 0):
        target[:] = [function]
        expected = function(torch.ones(2), n)
        target[:] = [compiled]
        assert compiled(torch.ones(2), n) == expected


def test_called_by_signals_and_collectors_while_recording():
    inner = ingot.compile(lambda x: x + 1)
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda *_: seen.append(inner(torch.ones(2)).sum().item()))

    class Cycle:
        def __del__(self):
            seen.append(inner(torch.ones(3)).sum().item())

    @ingot.disable
    def litter():
        cycle = Cycle()
        cycle.me = cycle

    def function(x, k):
        for i in range(k):
            litter()
            x = x * 1.5 + i
        os.kill(os.getpid(), signal.SIGUSR1)
        gc.collect()
        return x

    compiled = ingot.compile(function)
    try:
        for k in (2, 2, 3, 3):
            assert torch.equal(compiled(torch.ones(2), k), function(torch.ones(2), k))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen.count(4.0) == 8 and seen.count(6.0) == 20


def test_reset_in_the_middle_of_a_call():
    resets = []

    def reset():
        ingot.reset()
        resets.append(1)

    hidden = ingot.disable(reset)

    def function(x):
        y = x * 2
        hidden()
        return y + 1

    compiled = ingot.compile(function)
    for n in (2, 2, 3, 3, 2):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 3.0))
    assert len(resets) == 5


def test_a_cached_function_may_reset():
    import functools

    state = [1.0]

    @functools.lru_cache
    def number():
        ingot.reset()
        return state[0]

    compiled = ingot.compile(lambda x: x * number())
    for k in range(6):
        if k % 2:
            state[0] += 1
            number.cache_clear()
        assert compiled(torch.ones(2))[0] == state[0]


@pytest.mark.parametrize("how", ["drop", "reset"])
@pytest.mark.parametrize("breaks", [False, True])
def test_what_recordings_hold_is_freed(how, breaks):
    class Marker:
        pass

    def make():
        model = torch.nn.Linear(2, 2)
        model.marker, outside = Marker(), Marker()

        def function(x):
            outside.last = model(x)
            if breaks and outside.last.sum() > 1e9:
                return x
            return x + (model.marker is outside)

        return function, [weakref.ref(o) for o in (model, model.marker, outside)]

    for _ in range(2):
        function, references = make()
        compiled = ingot.compile(function)
        for n in (1, 2, 3):
            compiled(torch.ones(n, 2))
        if how == "reset":
            ingot.reset()
            compiled.__wrapped__ = None
        del function, compiled
        gc.collect()
        assert [r() for r in references] == [None] * 3
