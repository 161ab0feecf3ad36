"""The names of torch.compiler and torch._dynamo that programs use: meaning and errors."""

import copy
import functools
import inspect
import pickle

import pytest
import torch

import ingot
from recording_backend import RecordingBackend


def f(x, y=1):
    return torch.relu(x) * 2 + y


def breaks(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4)


# The forms of compile.


def test_name_signature_and_documentation_are_kept():
    @ingot.compile
    def documented(x: torch.Tensor, *, times: int = 2) -> torch.Tensor:
        """Multiply."""
        return x * times

    assert documented.__name__ == "documented" and documented.__doc__ == "Multiply."
    assert str(inspect.signature(documented)).startswith("(x: torch.Tensor, *, times: int = 2)")


def test_methods(x):
    class Thing:
        scale = 2

        @ingot.compile
        def method(self, x):
            return x * self.scale

        @ingot.compile(dynamic=False)
        def other(self, x):
            return x + self.scale

        @ingot.compile
        @staticmethod
        def static(x):
            return x * 3

        @ingot.compile
        @classmethod
        def of_class(cls, x):
            return x * cls.scale

    thing = Thing()
    thing.scale = 5
    torch.testing.assert_close(thing.method(x), x * 5)
    torch.testing.assert_close(thing.other(x), x + 5)
    torch.testing.assert_close(Thing.static(x), x * 3)
    torch.testing.assert_close(thing.of_class(x), x * 2)
    torch.testing.assert_close(ingot.compile(thing.method)(x), x * 5)


def test_callables_that_are_no_functions(x):
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, x):
            return x + self.n

    for callable_, expected in (
        (Adder(3), x + 3),
        (functools.partial(f, y=4), f(x, 4)),
        (torch.sin, x.sin()),
        (lambda x: x * 2, x * 2),
    ):
        torch.testing.assert_close(ingot.compile(callable_)(x), expected)


def test_a_class_is_compiled_in_place(x):
    @ingot.compile
    class Small(torch.nn.Module):
        def forward(self, x):
            return x * 7

    assert inspect.isclass(Small)
    torch.testing.assert_close(Small()(x), x * 7)


def test_what_cannot_be_compiled_raises():
    with pytest.raises(AssertionError, match="callable function is expected"):
        ingot.compile(3)
    with pytest.raises(RuntimeError, match="Model can't be None"):
        ingot.compile(dynamic=True)(None)


def test_compiling_a_compiled_function_starts_from_the_original(x):
    backend = RecordingBackend()
    torch.testing.assert_close(ingot.compile(ingot.compile(f), backend=backend)(x), f(x))
    assert len(backend.graphs) == 1


def test_defaults_keywords_and_wrong_calls(x):
    compiled = ingot.compile(f)
    torch.testing.assert_close(compiled(x, y=2), f(x, 2))
    torch.testing.assert_close(compiled(x=x), f(x))
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        compiled(x, z=1)


def test_switched_off_by_the_environment(x, monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert ingot.compile(f) is f


def test_a_wrapper_of_a_compiled_function_is_not_taken_for_it(x):
    compiled = ingot.compile(f)

    @functools.wraps(compiled)
    def wrapper(x):
        return compiled(x) + 100

    torch.testing.assert_close(ingot.compile(wrapper)(x), f(x) + 100)


def test_modules_of_pytorch_itself_are_compiled(x):
    for module in (torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 2))):
        backend = RecordingBackend()
        compiled = ingot.compile(module.requires_grad_(False), backend=backend)
        torch.testing.assert_close(compiled(x), module(x))
        assert len(backend.graphs) == 1


# Backends.


def test_a_callable_backend_gets_a_graph_and_examples(x):
    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
    assert len(backend.graphs) == 1 and backend.runs == 3
    gm = backend.graphs[0]
    assert isinstance(gm, torch.fx.GraphModule)
    assert all(isinstance(value, torch.Tensor) for value in backend.examples[0])
    assert "relu" in str(gm.graph)
    (outputs,) = gm(*backend.examples[0])
    torch.testing.assert_close(outputs, f(x))


@pytest.mark.parametrize("name", ["eager", "aot_eager", "ingot"])
def test_backends_built_in(x, name):
    torch.testing.assert_close(ingot.compile(f, backend=name)(x), f(x))
    assert name in ingot.list_backends(exclude_tags=None)


def test_registering_and_looking_up(x):
    made = RecordingBackend()

    @ingot.register_backend(name="interface_test", tags=("experimental",))
    def mine(gm, example_inputs):
        return made(gm, example_inputs)

    assert ingot.lookup_backend("interface_test") is mine
    assert ingot.lookup_backend(mine) is mine
    assert "interface_test" not in ingot.list_backends()
    assert "interface_test" in ingot.list_backends(exclude_tags=())
    assert "ingot" in ingot.list_backends() and "eager" not in ingot.list_backends()
    torch.testing.assert_close(ingot.compile(f, backend="interface_test")(x), f(x))
    assert len(made.graphs) == 1
    with pytest.raises(AssertionError, match="duplicate name: interface_test"):
        ingot.register_backend(mine, name="interface_test")


def test_errors_of_backends(x):
    with pytest.raises(ingot.InvalidBackend, match="Invalid backend: 'nobody'"):
        ingot.compile(f, backend="nobody")

    def broken(gm, example_inputs):
        raise ValueError("no machine")

    with pytest.raises(ingot.BackendCompilerFailed, match="no machine") as caught:
        ingot.compile(f, backend=broken)(x)
    assert isinstance(caught.value.inner_exception, ValueError)
    assert caught.value.backend_name == "broken"


def test_errors_are_runtime_errors_and_travel():
    classes = (ingot.Unsupported, ingot.InvalidBackend, ingot.UserError)
    for error in (*[cls("why") for cls in classes],
                  ingot.ConstraintViolationError("why"),
                  ingot.BackendCompilerFailed("b", ValueError("why"))):  # fmt: skip
        assert isinstance(error, RuntimeError)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    assert issubclass(ingot.FailOnRecompileLimitHit, Exception)


# Fullgraph and explain.


def test_fullgraph_names_the_reason_and_the_line(x):
    torch.testing.assert_close(ingot.compile(f, fullgraph=True)(x), f(x))
    with pytest.raises(ingot.Unsupported) as caught:
        ingot.compile(breaks, fullgraph=True)(x)
    assert caught.value.reason
    assert "if x.sum() > 0" in str(caught.value)
    assert any(frame.name == "breaks" for frame in caught.value.user_stack)


def test_explain(x):
    whole = ingot.explain(f)(x)
    assert (whole.graph_count, whole.graph_break_count, whole.break_reasons) == (1, 0, [])
    assert whole.op_count == len(whole.ops_per_graph[0]) > 0
    assert isinstance(whole.graphs[0], torch.fx.GraphModule)
    broken = ingot.explain(breaks)(x)
    assert broken.graph_break_count == 1 == broken.graph_count - 1
    reason = broken.break_reasons[0]
    assert reason.reason and any("x.sum() > 0" in (one.line or "") for one in reason.user_stack)
    text = str(broken)
    for part in (
        "Graph Count: 2",
        "Graph Break Count: 1",
        "Op Count",
        reason.reason,
    ):
        assert part in text
    assert broken.out_guards
    assert ingot.explain(ingot.compile(breaks))(x).graph_break_count == 1


# Control from inside.


def test_disable(x):
    seen = []

    @ingot.disable
    def outside(x):
        seen.append(ingot.is_compiling())
        return x + float(x.sum())

    def program(x):
        return outside(x * 2) * 3

    expected = program(x)
    torch.testing.assert_close(ingot.compile(program)(x), expected)
    assert seen == [False, False]
    assert ingot.explain(program)(x).graph_break_count == 1

    @ingot.disable(recursive=True, reason="slow to build")
    def with_arguments(x):
        return x

    assert with_arguments(x) is x
    assert with_arguments.__name__ == "with_arguments"


def test_disable_of_one_function_alone(x):
    backend, told = RecordingBackend(), {}

    def within(x):
        told["within"] = ingot.is_compiling()
        return x.sin()

    @ingot.disable(recursive=False)
    def outside(x):
        told["outside"] = ingot.is_compiling()
        return within(x.cos())

    compiled = ingot.compile(lambda x: outside(x * 2) * 3, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), (x * 2).cos().sin() * 3)
    assert told == {"within": True, "outside": False}
    names = [[n.name for n in gm.graph.nodes if n.op == "call_function"] for gm in backend.graphs]
    assert not any("cos" in name for graph in names for name in graph)
    assert any("sin" in name for graph in names for name in graph)


def test_disable_on_a_compiled_function_and_a_method(x):
    backend = RecordingBackend()

    class Thing:
        @ingot.disable
        def method(self, x):
            return x + 1

    torch.testing.assert_close(Thing().method(x), x + 1)
    torch.testing.assert_close(ingot.disable(ingot.compile(f, backend=backend))(x), f(x))
    assert backend.graphs == []


def test_disable_on_a_module(x):
    module = torch.nn.Linear(4, 2).requires_grad_(False)
    disabled = ingot.disable(module)
    assert isinstance(disabled, torch.nn.Linear) and disabled.weight is module.weight
    before = ingot.stats().graphs
    for one in (disabled, copy.deepcopy(disabled), pickle.loads(pickle.dumps(disabled))):
        torch.testing.assert_close(one(x), module(x))
    assert ingot.stats().graphs == before


def test_graph_break(x):
    def program(x):
        x = x + 1
        ingot.graph_break()
        return x * 2

    ingot.graph_break()  # outside: nothing
    torch.testing.assert_close(ingot.compile(program)(x), (x + 1) * 2)
    assert ingot.explain(program)(x).graph_break_count == 1


def test_is_compiling(x):
    def program(x):
        return x + 1 if ingot.is_compiling() else x - 1

    assert ingot.is_compiling() is False
    torch.testing.assert_close(ingot.compile(program)(x), x + 1)
    torch.testing.assert_close(program(x), x - 1)


def test_allow_in_graph(x):
    @ingot.allow_in_graph
    def inner(x):
        return x.sin() * 2

    torch.testing.assert_close(ingot.compile(lambda x: inner(x) + 1)(x), x.sin() * 2 + 1)
    assert ingot.allow_in_graph([inner, f]) == [inner, f]
    with pytest.raises(AssertionError):
        ingot.allow_in_graph(3)


def test_reset_compiles_anew(x):
    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    compiled(x)
    compiled(x)
    ingot.reset()
    torch.testing.assert_close(compiled(x), f(x))
    assert len(backend.graphs) == 2


# Stances.


def test_force_eager_in_its_three_forms(x):
    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    with ingot.set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), f(x))

    @ingot.set_stance("force_eager")
    def decorated(x):
        return compiled(x)

    torch.testing.assert_close(decorated(x), f(x))
    ingot.set_stance("force_eager")
    torch.testing.assert_close(compiled(x), f(x))
    assert backend.graphs == []
    ingot.set_stance("default")
    compiled(x)
    assert len(backend.graphs) == 1


def test_stances_for_what_is_not_compiled(x):
    backend = RecordingBackend()
    compiled = ingot.compile(f, backend=backend, dynamic=False)
    compiled(x)
    other = torch.randn(5, 2)
    with ingot.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(other), f(other))
        compiled(x)
    assert len(backend.graphs) == 1 and backend.runs == 2
    with ingot.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), f(x))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(other)
    torch.testing.assert_close(compiled(other), f(other))
    assert len(backend.graphs) == 2


def test_eager_then_compile_and_forced_backends(x):
    backend, forced = RecordingBackend(), RecordingBackend()
    compiled = ingot.compile(f, backend=backend)
    with ingot.set_stance("eager_then_compile"):
        compiled(x)
        assert backend.graphs == []
        torch.testing.assert_close(compiled(x), f(x))
        assert len(backend.graphs) == 1
    with ingot.set_stance("default", force_backend=forced):
        torch.testing.assert_close(compiled(x), f(x))
    assert len(forced.graphs) == 1 and backend.runs == 1


def test_errors_of_stances():
    with pytest.raises(RuntimeError, match="invalid"):
        ingot.set_stance("lazily")
    with pytest.raises(RuntimeError, match="force_backend"):
        ingot.set_stance("force_eager", force_backend="eager")


# Sizes.


def test_marks_and_the_number_of_graphs(monkeypatch):
    monkeypatch.setenv(
        "INGOT_CAPTURE", "dynamo"
    )  # own capture gives backends one set of sizes each
    for dynamic, mark, graphs in (
        (None, None, 2),
        (True, None, 1),
        (False, None, 3),
        (None, ingot.mark_dynamic, 1),
        (None, ingot.maybe_mark_dynamic, 1),
    ):
        backend = RecordingBackend()
        compiled = ingot.compile(f, dynamic=dynamic, backend=backend)
        for rows in (3, 5, 8):
            x = torch.randn(rows, 4)
            if mark:
                mark(x, 0)
            torch.testing.assert_close(compiled(x), f(x))
        assert len(backend.graphs) == graphs, (dynamic, mark)


def test_marks_are_pytorchs():
    x = torch.randn(4, 5)
    ingot.mark_dynamic(x, [0, 1], min=2, max=64)
    assert x._dynamo_dynamic_indices == {0, 1}
    assert {(r.dim, r.min, r.max) for r in x._dynamo_dynamic_range} == {(0, 2, 64), (1, 2, 64)}
    ingot.mark_static(x)
    assert x._dynamo_static_indices == {0, 1}
    with pytest.raises(AssertionError, match="Expected index"):
        ingot.mark_dynamic(x, "0")
    with pytest.raises(TypeError, match="mark_static expects"):
        ingot.mark_static(int)


def test_recompile_limit():
    backend = RecordingBackend()
    compiled = ingot.compile(f, dynamic=False, recompile_limit=2, backend=backend)
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(backend.graphs) == 2
    strict = ingot.compile(lambda x: x * 3, dynamic=False, recompile_limit=1, fullgraph=True)
    strict(torch.randn(2))
    with pytest.raises(ingot.FailOnRecompileLimitHit):
        strict(torch.randn(3))
