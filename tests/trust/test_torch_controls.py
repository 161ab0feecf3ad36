"""PyTorch's own controls act on own capture as they act on torch.compile.

Each program is run twice, compiled by torch.compile and by Ingot, with the same backend that counts
its graphs. What it notes (graphs so far, what the program sees, results, the class of what is
raised) must be the same.
"""

import functools
import subprocess
import sys
import textwrap

import pytest
import torch
import torch._dynamo

import ingot

X = torch.arange(6.0).reshape(2, 3)
Y = torch.arange(4.0)


class World:
    """`compile` with a backend that counts; `notes` is what the two worlds are compared by."""

    def __init__(self, compiler):
        self.compiler, self.graphs, self.notes = compiler, 0, []

    def backend(self, gm, inputs):
        self.graphs += 1
        return gm.forward

    def compile(self, function, **arguments):
        return self.compiler(function, **{"backend": self.backend, **arguments})

    def note(self, *what):
        self.notes.append(tuple(one.tolist() if isinstance(one, torch.Tensor) else one
                                for one in what))  # fmt: skip

    def noted(self, function, *args):
        """The result of a call, or what it raises, and how many graphs there are by then."""
        try:
            self.note(function(*args), self.graphs)
        except Exception as error:
            known = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.BackendCompilerFailed)
            name = type(error).__name__
            base = RuntimeError if isinstance(error, (*known, RuntimeError)) else type(error)
            self.note(name if name in ("Unsupported", "BackendCompilerFailed") else base.__name__,
                      self.graphs)  # fmt: skip


PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


# What decorators say of functions.


@program
def disable(w):
    def callee(x):
        w.note("callee", torch.compiler.is_compiling())
        return x.sin()

    @torch.compiler.disable
    def body(x):
        w.note("body", torch.compiler.is_compiling())
        return callee(x.cos())

    f = w.compile(lambda x: body(x + 1) * 2)
    w.noted(f, X)
    w.noted(f, X)


@program
def disable_by_dynamo_with_a_reason(w):
    @torch._dynamo.disable(reason="slow to trace")
    def body(x):
        w.note(torch.compiler.is_compiling())
        return x.cos()

    f = w.compile(lambda x: body(x + 1) * 2)
    w.noted(f, X)
    w.noted(f, X)


@program
def disable_once(w):
    told = {}

    def callee(x):
        if not torch.compiler.is_compiling():
            told["callee"] = False
        return x.sin()

    @torch.compiler.disable(recursive=False)
    def body(x):
        told["body"] = torch.compiler.is_compiling()
        return callee(x.cos()).exp()

    f = w.compile(lambda x: body(x + 1) * 2)
    w.noted(f, X)
    w.noted(f, X)
    w.note(*told.items())


@program
def disable_methods_and_callables(w):
    class Thing:
        @torch.compiler.disable
        def method(self, x):
            w.note(torch.compiler.is_compiling())
            return x.cos()

        @staticmethod
        @torch.compiler.disable
        def static(x):
            w.note(torch.compiler.is_compiling())
            return x.sin()

    thing = Thing()
    f = w.compile(lambda x: thing.method(x + 1) * 2 + Thing.static(x))
    w.noted(f, X)
    w.noted(f, X)


@program
def disable_modules(w):
    class Net(torch.nn.Module):
        def forward(self, x):
            w.note(torch.compiler.is_compiling())
            return x.cos()

    net = torch.compiler.disable(Net())
    f = w.compile(lambda x: net(x + 1) * 2)
    w.noted(f, X)
    w.noted(f, X)


@program
def disable_what_is_compiled(w):
    f = torch.compiler.disable(w.compile(lambda x: x.cos() + 1))
    w.noted(f, X)


@program
def disabled_within_wraps(w):
    @torch.compiler.disable
    def body(x):
        w.note(torch.compiler.is_compiling())
        return x.cos()

    @functools.wraps(body)
    def wrapper(x):
        return body(x + 1)

    f = w.compile(lambda x: wrapper(x) * 2)
    found = [f(X), f(X)]
    w.note(*found)


@program
def disabled_callback(w):
    @torch.compiler.disable
    def key(x):
        w.note(torch.compiler.is_compiling())
        return -float(x.sum())

    f = w.compile(lambda x, y: sorted([x, y + 1], key=key)[0])
    w.note(f(Y, Y), f(Y, Y))


@program
def assume_constant_result(w):
    kept = torch.ones(3)

    @torch.compiler.assume_constant_result
    def number():
        w.note("number")
        return int(kept.sum())

    @torch.compiler.assume_constant_result
    def tensor():
        return kept * 2

    @torch.compiler.assume_constant_result
    def of_data(x):
        return int(x.sum())

    f = w.compile(lambda x: x * number() + tensor() - of_data(x), fullgraph=True)
    w.noted(f, X)
    kept.add_(5)
    w.noted(f, X)


@program
def allow_in_graph(w):
    @torch.compiler.allow_in_graph
    def inner(x, n):
        for k in [3, 4, n]:
            x = x * k
        return x.sin()

    f = w.compile(lambda x: inner(x, 2) + 1, fullgraph=True)
    w.noted(f, X)
    w.noted(f, X + 1)


@program
def graph_break(w):
    def f(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    w.noted(w.compile(f), X)
    w.noted(w.compile(f, fullgraph=True), Y)


# What the program is told.


@program
def is_compiling(w):
    def f(x):
        told = (
            torch.compiler.is_compiling(),
            torch.compiler.is_dynamo_compiling(),
            torch._dynamo.is_compiling(),
        )
        return x + 1, told

    c = w.compile(f, fullgraph=True)
    w.note(*c(X), *c(X), *f(X))


# The stance.


def changing(w):
    return w.compile(lambda x: x * 2 + 1, dynamic=False)


@program
def force_eager(w):
    f = changing(w)
    with torch.compiler.set_stance("force_eager"):
        w.noted(f, X)

    @torch.compiler.set_stance("force_eager")
    def decorated(x):
        return f(x)

    w.noted(decorated, X)
    torch.compiler.set_stance("force_eager")
    w.noted(f, X)
    torch.compiler.set_stance("default")
    w.noted(f, X)
    with torch.compiler.set_stance("force_eager"):
        w.noted(f, Y)
    w.noted(f, X)


@program
def eager_on_recompile(w):
    f = changing(w)
    with torch.compiler.set_stance("eager_on_recompile"):
        w.noted(f, X)
    w.noted(f, X)
    with torch.compiler.set_stance("eager_on_recompile"):
        w.noted(f, Y)
        w.noted(f, X)
    w.noted(f, Y)


@program
def fail_on_recompile(w):
    f = changing(w)
    with torch.compiler.set_stance("fail_on_recompile"):
        w.noted(f, X)
    w.noted(f, X)
    with torch.compiler.set_stance("fail_on_recompile"):
        w.noted(f, X)
        w.noted(f, Y)
    w.noted(f, Y)


@program
def eager_then_compile(w):
    def first(x):
        return x * 2 + 1

    f = w.compile(first)
    # TorchDynamo counts the calls of a line of a file.
    first_ = torch._dynamo.eval_frame._EXAMPLE_INPUTS
    if first_ is not None:
        first_.clear()
    with torch.compiler.set_stance("eager_then_compile"):
        w.noted(f, X)
        w.noted(f, X)
        w.noted(f, X)


@program
def unknown_stance(w):
    f = w.compile(lambda x: x * 2 + 1)  # with dynamic=False torch.compile leaves that set
    torch.compiler.set_stance("lazily")
    try:
        w.noted(f, X)
        w.noted(f, X)
    finally:
        torch.compiler.set_stance("default")
    w.noted(f, X)


@program
def force_backend(w):
    used = []

    def other(gm, inputs):
        used.append(1)
        return gm.forward

    f = changing(w)
    w.noted(f, X)
    with torch.compiler.set_stance("default", force_backend=other):
        w.noted(f, Y)
    w.note(len(used))
    w.noted(f, Y)


@program
def ingots_stance(w):
    """Ingot's function sets the same value."""
    f = changing(w)
    with ingot.set_stance("force_eager"):
        w.noted(f, X)
        with torch.compiler.set_stance("default"):
            w.noted(f, X)
        w.noted(f, Y)
    with ingot.set_stance("fail_on_recompile"):
        w.noted(f, X)
        w.noted(f, Y)
    w.noted(f, Y)


# Forgetting.


@program
def reset(w):
    f = changing(w)
    w.noted(f, X)
    torch.compiler.reset()
    w.noted(f, X)
    torch._dynamo.reset()
    torch._dynamo.reset()
    w.noted(f, X)
    w.noted(f, X)
    ingot.reset()
    w.noted(f, X)


# Breaks as errors.


def breaking(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


@program
def error_on_graph_break_inside(w):
    def f(x):
        with torch._dynamo.error_on_graph_break(True):
            return breaking(x)

    c = w.compile(f)
    w.noted(c, X)
    w.noted(c, X)


@program
def error_on_graph_break_for_a_part(w):
    @torch._dynamo.error_on_graph_break(True)
    def strict(x):
        return x.sin()

    def f(x):
        x = strict(x)
        return breaking(x)

    c = w.compile(f)
    w.note(c(X), c(X))


@program
def error_on_graph_break_outside(w):
    f = w.compile(lambda x: breaking(x) + 1)
    with torch._dynamo.error_on_graph_break(True):
        w.noted(f, X)
        w.noted(f, X)
    w.note(f(X))
    g = w.compile(lambda x: breaking(x) + 2)
    w.note(g(X))


@program
def error_on_graph_break_taken_back(w):
    def f(x):
        with torch._dynamo.error_on_graph_break(True):
            x = x.sin()
            with torch._dynamo.error_on_graph_break(False):
                x = breaking(x)
            return x + 1

    c = w.compile(f)
    w.note(c(X))


# torch._dynamo.config.


def patched(**values):
    return torch._dynamo.config.patch(**values)


@program
def config_disable(w):
    f = changing(w)
    w.noted(f, X)
    with patched(disable=True):
        w.noted(f, X)
        w.noted(f, Y)
        w.noted(changing(w), X)


@program
def config_suppress_errors(w):
    def fails(gm, inputs):
        raise ValueError("never")

    def f(x):
        return x + 1

    w.noted(w.compile(f, backend=fails), X)
    torch._dynamo.reset()
    with patched(suppress_errors=True):
        w.noted(w.compile(f, backend=fails), X)


@program
def config_recompile_limit(w):
    f = w.compile(lambda x: x * 2, dynamic=False)
    with patched(recompile_limit=2):
        for n in (2, 3, 4, 5, 2, 3):
            w.noted(f, torch.arange(float(n)))
    w.note("more")


@program
def option_recompile_limit(w):
    f = w.compile(lambda x: x * 2, dynamic=False, recompile_limit=3)
    with patched(recompile_limit=2):
        for n in (2, 3, 4, 5, 2, 3):
            w.noted(f, torch.arange(float(n)))


@program
def config_accumulated_recompile_limit(w):
    f = w.compile(lambda x: x * 2, dynamic=False)
    with patched(accumulated_recompile_limit=2):
        for n in (2, 3, 4, 5, 2):
            w.noted(f, torch.arange(float(n)))


@program
def config_automatic_dynamic_shapes(w):
    f = w.compile(lambda x: x * 2)
    for n in (2, 3, 4, 5):
        w.noted(f, torch.arange(float(n)))
    with patched(automatic_dynamic_shapes=False):
        g = w.compile(lambda x: x * 3)
        for n in (2, 3, 4, 5):
            w.noted(g, torch.arange(float(n)))
        h = w.compile(lambda x: x * 4, dynamic=True)
        for n in (2, 3, 4, 5):
            w.noted(h, torch.arange(float(n)))


@program
def config_assume_static_by_default(w):
    with patched(assume_static_by_default=False):
        f = w.compile(lambda x: x * 2)
        for n in (2, 3, 4, 5):
            w.noted(f, torch.arange(float(n)))
        g = w.compile(lambda x: x * 3, dynamic=False)
        for n in (2, 3, 4):
            w.noted(g, torch.arange(float(n)))


@program
def config_capture_scalar_outputs(w):
    """A number that is asked for: whoever captures it or breaks, results are the same."""
    f = w.compile(lambda x: x * x.sum().item())
    for value in (False, True):
        with patched(capture_scalar_outputs=value):
            w.note(f(X), f(X + 1))


@pytest.fixture(autouse=True)
def default_stance():
    yield
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_controls_act_as_on_torch_compile(program):
    notes = []
    for compiler in (torch.compile, ingot.compile):
        torch._dynamo.reset()
        world = World(compiler)
        program(world)
        torch.compiler.set_stance("default")
        notes.append(world.notes)
    assert notes[1] == notes[0]


def run(program):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_is_imported_and_what_comes_later_acts():
    """TorchDynamo is loaded by the program behind the first calls, or not at all."""
    run("""
        import sys, torch, ingot
        f = ingot.compile(lambda x: x * 2 + 1)
        x = torch.ones(3)
        f(x), f(x)
        with ingot.set_stance("force_eager"): f(x)
        assert "torch._dynamo" not in sys.modules and ingot.stats().recordings == 1
        torch.compiler.reset()
        f(x)
        assert ingot.stats().recordings == 2
        with torch.compiler.set_stance("force_eager"):
            before = ingot.stats().eager_calls
            f(x)
            assert ingot.stats().eager_calls == before + 1
        """)
    run("""
        import torch, ingot
        @torch.compiler.assume_constant_result
        def n(): return 3
        f = ingot.compile(lambda x: x * n())
        ingot.set_stance("fail_on_recompile")
        try: f(torch.ones(2))
        except RuntimeError as e: assert "fail_on_recompile" in str(e)
        else: raise SystemExit("no error")
        import torch._dynamo
        try: torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        except RuntimeError as e: assert "fail_on_recompile" in str(e)
        else: raise SystemExit("no error")
        """)
