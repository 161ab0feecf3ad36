"""Functions compiled by Ingot and by torch.compile in one process: they call one another in any
order, in threads, after failures, with resets in between. Every frame is run once and results are
eager's. Each program runs in a process of its own with a limit of time, since the fault that this
is about was a loop without end.
"""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import random, sys, threading
import torch, torch._dynamo, ingot

def eager(gm, inputs):
    return gm.forward

def fails(gm, inputs):
    raise ValueError("this backend never works")

def expect(found, right):
    torch.testing.assert_close(found, right)
"""


def run(program, seconds=120):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + textwrap.dedent(program)],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


FAILURES = {
    "fullgraph": """
        def bad(x):
            print(end="")
            torch._dynamo.graph_break()
            return x + 1
        try: torch.compile(bad, fullgraph=True, backend=eager)(x)
        except torch._dynamo.exc.Unsupported: pass
        else: raise SystemExit("no error")
    """,
    "backend": """
        try: torch.compile(lambda x: x + 1, backend=fails)(x)
        except torch._dynamo.exc.BackendCompilerFailed: pass
        else: raise SystemExit("no error")
    """,
    "both": """
        def raises(x):
            raise KeyError(x.sum().item())
        try: torch.compile(raises, backend=eager)(x)
        except KeyError: pass
        else: raise SystemExit("no error")
        def own(x):
            y = x + 1
            ingot.graph_break()
            return y
        try: ingot.compile(own, fullgraph=True)(x)
        except ingot.Unsupported: pass
        else: raise SystemExit("no error")
    """,
}


@pytest.mark.parametrize("failure", FAILURES)
def test_each_calls_the_other_after_failures(failure):
    run(f"""
        x = torch.arange(4.0)
        {textwrap.indent(textwrap.dedent(FAILURES[failure]), " " * 8).strip()}
        inner = torch.compile(lambda x: x.sin() * 2, backend=eager)
        outer = ingot.compile(lambda x: inner(x + 1) - 1)
        for _ in range(3):
            expect(outer(x), (x + 1).sin() * 2 - 1)
        inner2 = ingot.compile(lambda x: x.cos() * 3)
        outer2 = torch.compile(lambda x: inner2(x + 1) - 1, backend=eager)
        for _ in range(3):
            expect(outer2(x), (x + 1).cos() * 3 - 1)
        deep = ingot.compile(lambda x: outer2(outer(x)) + inner(x))
        for _ in range(3):
            expect(deep(x), (((x + 1).sin() * 2 - 1 + 1).cos() * 3 - 1) + x.sin() * 2)
            torch._dynamo.reset()
        """)  # fmt: skip


def test_a_function_within_is_recorded_with_the_outer_one():
    run("""
        calls = []
        def counts(gm, inputs):
            calls.append(gm)
            return gm.forward
        inner = torch.compile(lambda x: x.sin() * 2, backend=counts)
        outer = ingot.compile(lambda x: inner(x + 1) - 1)
        x = torch.arange(4.0)
        for _ in range(3):
            expect(outer(x), (x + 1).sin() * 2 - 1)
        assert not calls and ingot.stats().breaks == 0 and ingot.stats().replays == 2

        class Net(torch.nn.Module):
            def forward(self, x):
                return x.sin() * 2
        net = torch.compile(Net(), backend=counts)
        outer = ingot.compile(lambda x: net(x + 1) - 1)
        for _ in range(3):
            expect(outer(x), (x + 1).sin() * 2 - 1)
        assert not calls and ingot.stats().breaks == 0 and ingot.stats().replays == 4
        """)


def test_nothing_stays_in_the_interpreter():
    """What a session puts into the interpreter goes with it, whoever came and went meanwhile."""
    run("""
        import time
        def spin(n):
            def f(a): return a + 1
            start = time.perf_counter()
            k = 0
            for _ in range(n): k = f(k)
            return time.perf_counter() - start
        x = torch.arange(4.0)
        both = ingot.compile(lambda x: torch.compile(lambda y: y + 1, backend=eager)(x) * 2)
        expect(both(x), (x + 1) * 2)
        def sleeps(x):
            y = x + 1
            time.sleep(0.05)
            return y * 2
        other = threading.Thread(target=lambda: torch.compile(sleeps, backend=eager)(x))
        mine = ingot.compile(sleeps)
        other.start()
        expect(mine(x), (x + 1) * 2)
        other.join()
        import ctypes
        get = ctypes.pythonapi._PyInterpreterState_GetEvalFrameFunc
        get.restype = ctypes.c_void_p
        get.argtypes = [ctypes.c_void_p]
        state = ctypes.pythonapi.PyInterpreterState_Get
        state.restype = ctypes.c_void_p
        default = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
        spin(1)
        assert get(state()) == default
        """)


@pytest.mark.parametrize("seed", range(2))
def test_threads_doors_failures_and_resets(seed):
    """Random chains of functions behind both doors, called while others fail or reset."""
    run(f"""
        torch.set_num_threads(1)
        pick = random.Random({seed})
        steps = [torch.sin, torch.cos, lambda v: v * 2, lambda v: v + 1, lambda v: v.relu() - v]

        def chain(depth):
            '''A compiled function and the same in eager.'''
            step = pick.choice(steps)
            if depth == 0:
                plain = lambda x: step(x)
                inner = right = None
            else:
                inner, right = chain(depth - 1)
            def compiled(x):
                if inner is not None: x = inner(x)
                return step(x)
            def eager_(x):
                if right is not None: x = right(x)
                return step(x)
            def broken(x):
                if inner is not None: x = inner(x)
                torch._dynamo.graph_break()
                return step(x)
            # Code of its own: torch.compile mixes up functions of one code in threads.
            for one in (compiled, broken):
                one.__code__ = one.__code__.replace(co_name=f"function_{{pick.randrange(10**9)}}")
            kind = pick.randrange(6)
            if kind == 0: return torch.compile(compiled, backend=eager), eager_
            if kind == 1: return ingot.compile(compiled), eager_
            if kind == 2: return torch.compile(broken, backend=eager), eager_
            if kind == 3: return ingot.compile(broken), eager_
            if kind == 4: return torch.compiler.disable(compiled), eager_
            return compiled, eager_

        def refuses(x):
            torch._dynamo.graph_break()
            return x + 1

        def work(seed, chains, wrong):
            pick = random.Random(seed)
            try:
                for _ in range(4):
                    x = torch.arange(float(pick.choice((3, 4, 5))))
                    what = pick.randrange(8)
                    if what == 1:
                        try: torch.compile(refuses, fullgraph=True, backend=eager)(x)
                        except torch._dynamo.exc.Unsupported: pass
                    elif what == 2:
                        try: torch.compile(lambda x: x + 1, backend=fails)(x)
                        except torch._dynamo.exc.BackendCompilerFailed: pass
                    elif what == 3:
                        ingot._ingot.capture_reset()
                    else:
                        compiled, right = pick.choice(chains)
                        found = compiled(x)
                        if not torch.allclose(found, right(x)): wrong.append((seed, x))
            except BaseException as error:
                wrong.append(error)
                raise

        chains = [chain(pick.randrange(4)) for _ in range(6)]
        wrong = []
        for turn in range(4):
            threads = [
                threading.Thread(target=work, args=(100 * {seed} + 10 * turn + k, chains, wrong))
                for k in range(4)
            ]
            for t in threads: t.start()
            for t in threads: t.join()
            # Not while others run what it forgets: torch.compile alone crashes then.
            random.choice((torch._dynamo.reset, ingot.reset))()
        assert not wrong, wrong
        """)  # fmt: skip
