"""`ingot.compile` beside `torch.compile`: the same forms, the same results, the same errors."""

import inspect
import logging
import runpy
import tempfile
import threading

import pytest
import torch

import ingot
from ingot import _backend, _ingot

# What follows replaces the compiler of TorchDynamo's door; tests/capture/test_failures.py has what
# own capture does.
DYNAMO = {"capture": "dynamo"}


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A compiler that always fails; its reproducers go to the test's folder."""

    def fail(*arguments):
        raise RuntimeError("no lowering today\nsecond line")

    monkeypatch.setattr(_backend, "_record", fail)
    monkeypatch.setenv("INGOT_DEBUG", str(tmp_path))
    return tmp_path


def f(x, y):
    return torch.relu(x) * 2 + y.sin()


def inputs():
    return torch.randn(5, 7), torch.randn(7)


def test_an_operator_that_stays_eager_prints_nothing(capfd):
    """torch.fx prints a traceback of what its graph modules raise."""
    before = ingot.stats()
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    compiled = ingot.compile(lambda x: torch.linalg.svd(x)[1] + 1, options=DYNAMO)
    torch.testing.assert_close(compiled(x), torch.linalg.svd(x)[1] + 1)
    assert capfd.readouterr().err == ""
    stats = ingot.stats()
    assert stats.fallbacks == before.fallbacks + 1
    assert "_linalg_svd" in stats.reasons[-1]


@pytest.mark.parametrize("decimals", [0, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_rounding_integers_to_decimals_raises_as_eager_does(dtype, decimals):
    x = torch.ones(3, dtype=dtype)
    for function in (torch.round, lambda x, **kwargs: x.clone().round_(**kwargs)):
        with pytest.raises(NotImplementedError):
            function(x, decimals=decimals)
        with pytest.raises(NotImplementedError):
            ingot.compile(lambda x, f=function: f(x, decimals=decimals))(x)


def test_signature_is_torch_compiles():
    ours = inspect.signature(ingot.compile).parameters
    theirs = inspect.signature(torch.compile).parameters
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name


def test_function_and_both_decorators():
    @ingot.compile
    def plain(x, y):
        return f(x, y)

    @ingot.compile(fullgraph=True, dynamic=False)
    def with_arguments(x, y):
        return f(x, y)

    values = inputs()
    for compiled in (ingot.compile(f), plain, with_arguments):
        torch.testing.assert_close(compiled(*values), f(*values))


def test_module_and_entry_name():
    module = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.ReLU()).eval()
    x = torch.randn(4, 7)
    with torch.no_grad():
        expected = module(x)
        torch.testing.assert_close(ingot.compile(module)(x), expected)
        torch.testing.assert_close(torch.compile(module, backend=ingot.dynamo_backend)(x), expected)
        torch.testing.assert_close(torch.compile(module, backend="ingot")(x), expected)
        torch.testing.assert_close(ingot.compile(module, backend="eager")(x), expected)


def test_disable_runs_no_compiler():
    before = ingot.stats().graphs
    values = inputs()
    torch.testing.assert_close(ingot.compile(f, disable=True)(*values), f(*values))
    assert ingot.stats().graphs == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"mode": "default", "options": {"freezing": True}}, "Either mode or options"),
        ({"mode": "quickly"}, "quickly"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments, part):
    with pytest.raises(RuntimeError, match=part):
        ingot.compile(f, **arguments)


def test_outputs_that_are_no_tensors():
    @ingot.compile(dynamic=True)
    def mixed(x):
        return x.sin(), x.shape[0] + 1, x, None, "text"

    for rows in (3, 4, 5):
        x = torch.randn(rows, 2)
        sine, number, same, nothing, text = mixed(x)
        torch.testing.assert_close(sine, x.sin())
        assert (number, nothing, text) == (rows + 1, None, "text")
        assert same is x


def test_changing_sizes_and_floats():
    compiled = ingot.compile(lambda x, scale: x.cos() * scale, dynamic=True)
    for rows, scale in [(3, 0.5), (4, 0.5), (4, 1.25), (3, 0.5)]:
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x, scale), x.cos() * scale)


def test_more_sizes_than_the_limit_run_eagerly():
    def transformed(x):  # a call into PyTorch, whose sizes become numbers
        return torch.nn.functional.adaptive_avg_pool1d(x.t(), 3) + 1

    compiled = ingot.compile(transformed, dynamic=True, options=DYNAMO | {"size_limit": 2})
    before = ingot.stats()
    for rows in (2, 3, 4, 5, 2):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(compiled(x), transformed(x))
    after = ingot.stats()
    assert after.programs - before.programs == 2
    assert any("2 sets of sizes" in line for line in after.reasons[len(before.reasons) :])


def test_training_can_be_switched_off_and_says_so_once(caplog):
    _backend._said.clear()
    before = ingot.stats()
    x = torch.randn(3, 7, requires_grad=True)
    for function in (lambda x: (x * x).sum(), lambda x: (x * x * x).sum()):
        x.grad = None
        ingot.compile(function, options={"training": False})(x).backward()
        assert x.grad is not None
    assert ingot.stats().training == before.training
    assert [r.levelno for r in caplog.records if "gradient" in r.message] == [logging.WARNING]


def test_failure_falls_back_counts_logs_and_leaves_a_program(broken, caplog):
    before = ingot.stats()
    values = inputs()
    torch.testing.assert_close(ingot.compile(f, options=DYNAMO)(*values), f(*values))
    after = ingot.stats()
    assert after.fallbacks - before.fallbacks == 1
    assert after.reasons[-1] == "RuntimeError: no lowering today"
    lines = [r.message for r in caplog.records if "no lowering today" in r.message]
    assert len(lines) == 1 and "\n" not in lines[0]
    (path,) = broken.glob("graph_*.py")
    assert str(path) in lines[0]
    module = runpy.run_path(str(path))["Graph"]()
    torch.testing.assert_close(module(*values)[0], f(*values))


def test_what_is_not_supported_is_counted_quietly(monkeypatch, tmp_path, caplog):
    def refuse(*arguments):
        raise _ingot.Unsupported("quantised types")

    monkeypatch.setattr(_backend, "_record", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = ingot.stats()
    values = inputs()
    torch.testing.assert_close(ingot.compile(f, options=DYNAMO)(*values), f(*values))
    after = ingot.stats()
    assert after.reasons[len(before.reasons) :] == ["Unsupported: quantised types"]
    assert [r for r in caplog.records if r.name == "ingot" and r.levelno >= logging.WARNING] == []
    assert list(tmp_path.rglob("graph_*.py")) == []


def test_an_error_that_eager_raises_too_is_no_bug(broken, caplog):
    gm = torch.fx.symbolic_trace(lambda x, y: x @ y)
    run = ingot.dynamo_backend(gm, [torch.randn(2, 3), torch.randn(3, 2)])
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(torch.randn(2, 3), torch.randn(2, 3))
    assert "runs eagerly" not in caplog.text


def test_failure_without_fallback_is_raised(broken):
    with pytest.raises(Exception, match="no lowering today"):
        ingot.compile(f, options={**DYNAMO, "fallback": False})(*inputs())


def test_interrupt_during_compilation_goes_through(monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    values = inputs()
    with monkeypatch.context() as patch:
        patch.setattr(_backend, "_record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ingot.compile(f, options=DYNAMO)(*values)
    torch.testing.assert_close(ingot.compile(f, options=DYNAMO)(*values), f(*values))


def test_reproducer_in_an_unwritable_place_costs_nothing(broken, monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", "/proc/no/such/place")
    values = inputs()
    torch.testing.assert_close(ingot.compile(f)(*values), f(*values))


def test_eagers_errors():
    compiled = ingot.compile(lambda x, y: x @ y)
    with pytest.raises(Exception, match=r"shape|size"):
        compiled(torch.randn(2, 3), torch.randn(4, 5))


def test_threads_compile_sizes_at_the_same_time():
    compiled = ingot.compile(f, dynamic=True)
    compiled(*inputs())
    failures = []

    def work(rows):
        try:
            x, y = torch.randn(rows, 7), torch.randn(7)
            for _ in range(5):
                torch.testing.assert_close(compiled(x, y), f(x, y))
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (3, 4, 5, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inputs_that_overlap_and_are_written():
    def step(x, y):
        y.mul_(2)
        return x + y

    for start in (0, 1):
        base = torch.randn(8)
        twin = base.clone()
        expected = step(twin[:7], twin[start : start + 7])
        actual = ingot.compile(step)(base[:7], base[start : start + 7])
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(base, twin)


@torch.library.custom_op("ingot_tests::root", mutates_args=())
def root(x: torch.Tensor) -> torch.Tensor:
    """An operator that nobody lowers, and that may raise."""
    if (x < 0).any():
        raise ValueError("a negative number has no root")
    return x.sqrt()


@root.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operator_without_a_lowering_runs_and_its_error_comes_through():
    compiled = ingot.compile(lambda x: root(x * 2) + 1)
    good = torch.rand(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(good), (good * 2).sqrt() + 1)
        with pytest.raises(ValueError, match="negative number"):
            compiled(-good - 1)


def test_a_call_reads_a_flipped_operand():
    x = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    compiled = torch.compile(lambda t: t.flip(0).cumsum(0).flip(0), backend="ingot")
    assert torch.equal(compiled(x), torch.tensor([1111.0, 1110.0, 1100.0, 1000.0]))
