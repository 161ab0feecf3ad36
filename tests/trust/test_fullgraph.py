"""`fullgraph=True`: what is no whole graph is an error at every call, which nobody can catch."""

import contextlib
import functools
import operator
import sys
import types

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import ingot


@pytest.fixture(autouse=True)
def own_capture(monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")


def breaks(x):
    return 2.0 if x.sum() > 0 else 3.0


def refused(function, *args, calls=3, kind=ingot.Unsupported, **options):
    """The errors of some calls of the compiled function, each of which must be refused."""
    compiled = ingot.compile(function, fullgraph=True, **options)
    errors = []
    for _ in range(calls):
        with pytest.raises(kind) as caught:
            compiled(*args)
        assert type(caught.value) is kind
        errors.append(caught.value)
    return errors


# What programs catch and clean up. `log` gets what runs: "clean" is allowed, "taken" is not.


def bare_except(x, log):
    try:
        return x * breaks(x)
    except:  # noqa: E722
        log.append("taken")
        return x


def every_exception(x, log):
    try:
        return x * breaks(x)
    except ValueError:
        log.append("taken")
    except BaseException:
        log.append("taken")
    finally:
        log.append("clean")
    return x


def a_bare_except_behind_another(x, log):
    try:
        return x * breaks(x)
    except ValueError as error:
        log.append(f"taken {error}")
    except:  # noqa: E722
        log.append("taken")
    return x


def named(x, log):
    try:
        return x * breaks(x)
    except Exception as error:
        log.append(f"taken {error}")
        return x


def within_a_handler(x, log):
    try:
        raise ValueError(1)
    except ValueError as error:
        try:
            return x * breaks(x) + error.args[0]
        except Exception:
            log.append("taken")
        finally:
            log.append("clean")
    return x


def suppressed(x, log):
    with contextlib.suppress(BaseException):
        return x * breaks(x)
    log.append("taken")
    return x


class Swallows:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.log.append("clean")
        return True


def a_context_that_swallows(x, log):
    with Swallows(log):
        return x * breaks(x)
    log.append("taken")
    return x


@contextlib.contextmanager
def swallowing(log):
    try:
        yield
    except Exception:
        log.append("taken")
    finally:
        log.append("clean")


def a_generator_that_swallows(x, log):
    with swallowing(log):
        return x * breaks(x)
    log.append("taken")
    return x


def a_stack_of_contexts(x, log):
    with contextlib.ExitStack() as stack:
        stack.enter_context(Swallows(log))
        return x * breaks(x)
    log.append("taken")
    return x


def a_return_in_finally(x, log):
    try:
        return x * breaks(x)
    finally:
        log.append("clean")
        return x  # noqa: B012, SIM107


def a_return_of_a_call_in_finally(x, log):
    def result():
        log.append("clean")
        return x

    try:
        return x * breaks(x)
    finally:
        return result()  # noqa: B012, SIM107


def a_loop_left_in_finally(x, log):
    for _ in range(3):
        try:
            x = x * breaks(x)
        finally:
            log.append("clean")
            break  # noqa: B012
    log.append("taken")
    return x


def retries(x, log):
    for _ in range(3):
        try:
            return x * breaks(x)
        except RuntimeError:
            log.append("taken")
            continue
    return x


def an_error_in_finally(x, log):
    try:
        try:
            return x * breaks(x)
        finally:
            log.append("clean")
            raise KeyError("lost")
    except KeyError:
        log.append("taken")
        return x


def handled_errors_in_finally(x, log):
    try:
        return x * breaks(x)
    finally:
        try:
            raise KeyError("kept")
        except KeyError:
            log.append("clean")


def in_a_caller(x, log):
    try:
        return named_without_handler(x, log)
    except Exception:
        log.append("taken")
        return x


def named_without_handler(x, log):
    try:
        return x * breaks(x)
    finally:
        log.append("clean")


def in_a_generator(x, log):
    def parts():
        try:
            yield x * breaks(x)
        except Exception:
            log.append("taken")
            yield x

    return sum(parts())


def in_a_consumer_of_a_generator(x, log):
    def parts():
        for k in range(3):
            yield x * breaks(x) + k

    try:
        for part in parts():
            x = x + part
    except Exception:
        log.append("taken")
    return x


def in_a_callback(x, log):
    def key(k):
        try:
            return breaks(x * k)
        except Exception:
            log.append("taken")
            return k

    return x * sorted([3, 1, 2], key=key)[0]


def in_a_property(x, log):
    class Lazy:
        @property
        def scale(self):
            try:
                return breaks(x)
            except Exception:
                log.append("taken")
                raise AttributeError from None

    return x * getattr(Lazy(), "scale", 1.0)


def in_a_group(x, log):
    try:
        return x * breaks(x)
    except* RuntimeError:
        log.append("taken")
    return x


async def awaits(x, log):
    try:
        return x * breaks(x)
    except Exception:
        log.append("taken")
        return x


def in_a_coroutine(x, log):
    try:
        awaits(x, log).send(None)
    except StopIteration as stop:
        return stop.value


def prints_and_goes_on(x, log):
    y = x * 2
    try:
        print("never seen", y)
    except Exception:
        log.append("taken")
        return x
    return y


def asserts_and_breaks(x, log):
    if not (x > -10).all():  # an `assert` as Python has it, which pytest writes anew
        raise AssertionError("far below")
    try:
        return x * x.tolist()[0]
    except Exception:
        log.append("taken")
        return x


def fails_and_breaks(x, log):
    if not (x < -10).all():
        raise AssertionError("too much")
    try:
        return x * breaks(x)
    finally:
        log.append("clean")


SWALLOWING = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType)
    and value.__code__.co_varnames[:2] == ("x", "log")
    and name not in ("named_without_handler", "awaits")
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", SWALLOWING, ids=lambda p: p.__name__)
def test_no_handler_takes_the_error(program, dynamic, capfd):
    log = []
    refused(program, torch.arange(1.0, 5.0), log, dynamic=dynamic)
    assert set(log) <= {"clean"}
    assert '"clean"' not in program.__code__.co_consts or "clean" in log
    cleans = {"clean"} & set(program.__code__.co_consts)
    assert set(log) == cleans or not cleans
    assert "Exception ignored" not in capfd.readouterr().err


def test_what_is_around_the_call_may_catch_it():
    inner = ingot.compile(breaks, fullgraph=True)

    def outer(x):
        try:
            print(end="")
            return x * disabled(x)
        except ingot.Unsupported:
            return x * 5

    @ingot.disable
    def disabled(x):
        return inner(x)

    compiled = ingot.compile(outer)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 5.0))


def test_the_state_of_exceptions_is_as_before():
    import sys

    compiled = ingot.compile(within_a_handler, fullgraph=True)
    try:
        raise KeyError("mine")
    except KeyError as mine:
        for _ in range(3):
            with pytest.raises(ingot.Unsupported):
                compiled(torch.ones(2), [])
            assert sys.exc_info()[1] is mine
    assert sys.exc_info() == (None, None, None)


def test_what_is_cleaned_up_is_the_programs():
    """Locks are given back, levels of grad mode closed, and tensors have their values."""
    seen = []

    def program(x):
        y = x * 2
        try:
            with torch.no_grad():
                return y * breaks(y)
        finally:
            seen.append((y + 1).tolist())

    errors = refused(program, torch.ones(2))
    assert seen == [[3.0, 3.0]]  # later calls are refused before anything runs
    assert torch.is_grad_enabled()
    assert all("a tensor decides a branch" in str(e) for e in errors)
    assert [frame.name for frame in errors[0].user_stack][-1] == "breaks"
    assert str(errors[0]) == str(errors[2])


def test_a_signal_goes_before():
    def program(x):
        try:
            return x * breaks(x)
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingot.compile(program, fullgraph=True)(torch.ones(2))


def test_an_error_is_made_once_and_recorded_once():
    compiled = ingot.compile(lambda x, log: asserts_and_breaks(x, log), fullgraph=True)
    before = ingot.stats().recordings
    for _ in range(5):
        with pytest.raises(ingot.Unsupported, match="tolist"):
            compiled(torch.ones(3), [])
    assert ingot.stats().recordings == before + 1


# Everything for which a call would run eagerly.


class Plain(torch.Tensor):
    pass


def _quantised():
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


@functools.lru_cache
def cached(n):
    raise ValueError(n)


def takes_cached_error(x):
    try:
        cached(3)
    except ValueError:
        x = x + 1
    return x


def counts_in_generator(x):
    generator = (x + k for k in range(3))
    next(generator)
    return generator


EAGER = {
    "a subclass": (lambda x: x * 2, lambda: torch.ones(3).as_subclass(Plain)),
    "sparse": (lambda x: x * 2, lambda: torch.eye(3).to_sparse()),
    "quantised": (lambda x: x.dequantize() * 2, _quantised),
    "jagged": (
        lambda x: x * 2,
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ),
    "a generator as the result": (lambda x: (x + k for k in range(3)), lambda: torch.ones(3)),
    "a generator that has begun as the result": (counts_in_generator, lambda: torch.ones(3)),
    "an object of C as the result": (
        lambda x: (x * 2, operator.itemgetter(1)),
        lambda: torch.ones(3),
    ),
    "locals": (lambda x: (x * 2, len(locals())), lambda: torch.ones(3)),
    "a function that is not to be compiled": (
        lambda x: ingot.disable(lambda y: y * 2)(x),
        lambda: torch.ones(3),
    ),
    "a mode left changed": (
        lambda x: (x * 2, torch.set_default_dtype(torch.float64)),
        lambda: torch.ones(3),
    ),
    "a cached function that raises": (takes_cached_error, lambda: torch.ones(3)),
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("kind", EAGER)
def test_whatever_would_run_eagerly_is_refused(kind, dynamic):
    function, argument = EAGER[kind]
    try:
        for error in refused(function, argument(), dynamic=dynamic):
            assert error.reason
    finally:
        torch.set_default_dtype(torch.float32)


MODES = {
    "anomaly detection": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(id, id),
    "forward mode": forward_ad.dual_level,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("mode", MODES)
def test_modes_in_which_nothing_is_compiled_are_refused(mode):
    compiled = ingot.compile(lambda x: x.sin(), fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin())
        with MODES[mode](), pytest.raises(ingot.Unsupported):
            compiled(torch.ones(3))


def test_within_a_transform_it_is_refused():
    compiled = ingot.compile(lambda x: x.sin(), fullgraph=True)
    for _ in range(2):
        with pytest.raises(ingot.Unsupported, match=r"torch\.func"):
            torch.func.vmap(compiled)(torch.ones(3, 2))


def test_the_programs_own_exceptions_are_eagers():
    def program(x, n):
        if n > 1:
            raise ValueError(f"n is {n}")
        if not (x > 0).all():
            raise AssertionError("not positive")
        return x / n

    compiled = ingot.compile(program, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2), 1), torch.ones(2))
        with pytest.raises(ValueError, match="n is 2"):
            compiled(torch.ones(2), 2)
        with pytest.raises(AssertionError, match="not positive"):
            compiled(-torch.ones(2), 1)


def test_a_failure_that_the_program_handles_is_refused():
    def program(x):
        try:
            if not (x > 0).all():
                raise AssertionError
        except AssertionError:
            return -x
        return x * 2

    compiled = ingot.compile(program, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        with pytest.raises(ingot.Unsupported, match="goes on"):
            compiled(-torch.ones(2))


def test_gradients_and_changing_sizes_are_refused_alike():
    def program(x, w):
        y = (x @ w).relu()
        return y * 2 if y.sum() > 0 else y

    compiled = ingot.compile(program, fullgraph=True)
    for n in (2, 3, 4, 2, 5):
        w = torch.ones(4, 4, requires_grad=True)
        with pytest.raises(ingot.Unsupported, match="decides a branch"):
            compiled(torch.ones(n, 4), w)


def test_past_the_limit_it_is_an_error():
    compiled = ingot.compile(
        lambda x, flag: breaks(x) if flag == "b" else x * len(flag), fullgraph=True,
        recompile_limit=2,
    )  # fmt: skip
    for flag in ("a", "aa"):
        compiled(torch.ones(2), flag)
    for _ in range(2):
        with pytest.raises(ingot.FailOnRecompileLimitHit):
            compiled(torch.ones(2), "aaa")
        compiled(torch.ones(2), "a")


# What else ends a call.


def test_an_error_of_a_backend_is_never_taken():
    made = []

    def backend(gm, examples):
        made.append(gm)
        raise ValueError("this backend is broken")

    def program(x):
        y = x * 2
        try:
            print(end="")
        except Exception:
            return x
        return y + x

    for options in ({}, {"dynamic": True}, {"fullgraph": True}):
        compiled = ingot.compile(lambda x: x * 2 + 1, backend=backend, **options)
        for n in (2, 3, 4):
            with pytest.raises(ingot.BackendCompilerFailed, match="broken"):
                compiled(torch.ones(n))
    compiled = ingot.compile(program, backend=backend)
    for n in (2, 3, 4):
        with pytest.raises(ingot.BackendCompilerFailed, match="broken"):
            compiled(torch.ones(n))


def test_a_backend_that_breaks_later_is_not_taken_for_one_without_symbols():
    def backend(gm, examples):
        if broken:
            raise ValueError("this backend is broken")
        return gm.forward

    broken = False
    compiled = ingot.compile(lambda x, k: x * k, backend=backend)
    compiled(torch.ones(2), 0.5)
    broken = True
    for n, k in ((3, 0.5), (4, 0.5), (3, 0.25)):
        with pytest.raises(ingot.BackendCompilerFailed, match="broken"):
            compiled(torch.ones(n), k)


def test_the_stance_against_recompiling_cannot_be_taken():
    def program(x, log):
        y = x * 2
        print(end="")
        try:
            with Swallows(log):
                print(end="")
                return y * x.shape[0]
        except Exception:
            log.append("taken")
        return x

    compiled = ingot.compile(program, dynamic=False)
    log = []
    compiled(torch.ones(2), [])
    compiled(torch.ones(2), [])

    def other(x, log):
        try:
            print(end="")
            if len(log) == 1:
                return x + 1
        except Exception:
            log.append("taken")
        finally:
            log.append("clean")
        return x * 2

    compiled = ingot.compile(other)
    log = [0]
    compiled(torch.ones(2), log)
    compiled(torch.ones(2), [0])
    with ingot.set_stance("fail_on_recompile"):
        compiled(torch.ones(2), [0])
        log = [0, 0]
        with pytest.raises(RuntimeError, match="Detected recompile"):
            compiled(torch.ones(2), log)
        assert "taken" not in log


# Python that the interpreter does not see.


class Global:
    scale = 2.0


def reads_a_global(x):
    y = x * Global.scale
    return y + 100 if Global.scale > 2 else y


def leaves_to_cpython(x):
    try:
        raise ValueError(1)
    except* ValueError:
        x = x + 1
    return reads_a_global(x)


@pytest.mark.parametrize("trace", [sys.settrace, sys.setprofile])
def test_nothing_is_recorded_while_python_is_traced(trace, monkeypatch):
    def tracer(*_):
        return tracer

    before = sys.gettrace() if trace is sys.settrace else sys.getprofile()
    compiled, whole = ingot.compile(reads_a_global), ingot.compile(reads_a_global, fullgraph=True)
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setattr(Global, "scale", scale)
        trace(tracer)
        try:
            found = compiled(torch.ones(2))
            with pytest.raises(ingot.Unsupported, match="traces Python"):
                whole(torch.ones(2))
        finally:
            trace(before)
        assert torch.equal(found, reads_a_global(torch.ones(2)))
    assert torch.equal(whole(torch.ones(2)), reads_a_global(torch.ones(2)))
    recordings = ingot.stats().recordings
    assert torch.equal(compiled(torch.ones(2)), reads_a_global(torch.ones(2)))
    assert ingot.stats().recordings == recordings + 1  # tracing is over


def test_tracing_that_begins_inside_ends_the_recording(monkeypatch):
    def tracer(*_):
        return tracer

    def program(x):
        y = x * 2
        sys.setprofile(tracer)
        y = y + 1
        y = reads_a_global(y)
        sys.setprofile(None)
        return y

    compiled = ingot.compile(program)
    for scale in (2.0, 3.0, 2.0, 3.0):
        monkeypatch.setattr(Global, "scale", scale)
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def test_what_cpython_goes_on_with_is_not_recorded(monkeypatch):
    compiled = ingot.compile(leaves_to_cpython)
    for scale in (2.0, 3.0, 2.0, 3.0):
        monkeypatch.setattr(Global, "scale", scale)
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2)), leaves_to_cpython(torch.ones(2)))
