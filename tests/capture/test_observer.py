"""What an observer sees of small functions, and what it can ask for."""

import gc
import os
import pathlib
import subprocess
import sys
import tracemalloc

import interpreter_programs as programs
import pytest
import test_interpreter

interpreter = test_interpreter.interpreter
GOLDEN = pathlib.Path(__file__).with_name("observer_log.txt")


class Model:
    def __init__(self, scale):
        self.scale = scale
        self.layers = [self.double, self.double]

    def double(self, x):
        return x * 2

    def __call__(self, x, *, bias=None):
        for layer in self.layers:
            x = layer(x)
        if bias is not None:
            x += bias
        return x if x > 3 else self.scale


MODEL = Model(5)


def reads():
    options = {"key": [1, 2]}
    options["key"][0] = len(options["key"])
    first, second = options["key"]
    MODEL.scale = first
    del options["key"]
    return first in (1, 2), -second, not options, f"{first:>3}"


def calls():
    return MODEL(1, bias=1), MODEL(*[0]), max([3, 1], key=lambda v: -v)


def controls():
    total = 0
    try:
        while total < 2:
            total += 1
        raise ValueError(total)
    except ValueError as error:
        kind = type(error).__name__
    with open(os.devnull) as file:
        text = file.read()
    squares = [i * i for i in range(2)]
    return kind, text, squares, list(j for j in squares)  # noqa: C400


def fails():
    try:
        return {}["missing"]
    except KeyError:
        return None.missing


def test_log():
    """Each event, in order, as the file beside this one has it (INGOT_BLESS=1 writes it anew)."""
    text = ""
    for function in (reads, calls, controls):
        result, lines = interpreter.observe(function)
        assert result == function()
        text += f"== {function.__name__}\n" + "\n".join(lines) + "\n"
    if os.environ.get("INGOT_BLESS"):
        GOLDEN.write_text(text)
    if sys.version_info[:2] == (3, 11):
        assert text == GOLDEN.read_text()


def events(function, answer=None):
    try:
        return interpreter.observe(function, answer)
    except Exception as error:
        return error, None


def test_errors_are_the_programs():
    error, _ = events(fails)
    assert type(error) is AttributeError
    assert type(error.__context__) is KeyError


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_observed_programs(program):
    """Being observed changes nothing."""
    expected = test_interpreter.inside(test_interpreter.outcome(program))
    observed = test_interpreter.outcome(lambda: interpreter.observe(program)[0])
    assert test_interpreter.inside(observed) == expected


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_handed_back_at_each_event(program):
    """The observer ends its observation at the n-th event; CPython finishes all frames."""
    expected = test_interpreter.inside(test_interpreter.outcome(program))
    for stop in (*range(40), *range(40, 400, 17)):
        seen = []

        def answer(*event, seen=seen, stop=stop):
            seen.append(event)
            return True if len(seen) > stop else None

        def call(answer=answer):
            return interpreter.observe(program, answer)[0]

        assert test_interpreter.inside(test_interpreter.outcome(call)) == expected
        if len(seen) <= stop:
            break
        assert len(seen) == stop + 1, "asked again after it had ended the observation"


def test_results_of_the_observer():
    """`handled`: the operation is not carried out, its result is the observer's."""

    def function(n):
        values = [n + 1, n < 0, -n, n == 3, [10][0], len("abc"), n in (), n is None]  # noqa: RUF060
        if n:
            values.append("true")
        return values

    def answer(operation, operands, name, detail, offset):
        if operation == "binary":
            return ("sum",)
        if operation in ("compare", "contains", "identical"):
            return (True,)
        if operation == "unary":
            return ("minus",)
        if operation == "read_item":
            return ("item",)
        if operation == "call" and operands[0] is len:
            return (99,)
        if operation == "truth":
            return (False,)
        return None

    result, _ = interpreter.observe(lambda: function(3), answer)
    assert result == ["sum", True, "minus", True, "item", 99, True, True]


def test_iteration_of_the_observer():
    def function():
        log = []
        for x in iter([1, 2]):
            log.append(x)
        return log

    items = iter([("a",), ("b",), None])

    def answer(operation, *_):
        return next(items, None) if operation == "next" else None

    assert interpreter.observe(function, answer)[0] == ["a", "b", 1, 2]


@pytest.mark.parametrize("operation", ["call", "binary", "read_attribute", "read_global", "truth"])
def test_hooks_raise(operation):
    """An error of a hook is raised at the instruction, through the program's handlers."""

    class Stop(Exception):
        pass

    def inner(x):
        y = x + 1
        return len([y]) if y else os.sep

    def function(truth):
        try:
            return inner(truth)
        except Stop as error:
            return "caught", error.__traceback__.tb_next.tb_frame.f_code.co_name

    def answer(kind, operands, name, detail, offset):
        if kind == operation and sys._getframe(1).f_code is inner.__code__:
            raise Stop
        return None

    # A hook stands on the frame that it reports, and its error has both in its traceback.
    outcomes = [interpreter.observe(lambda x=x: function(x), answer)[0] for x in (1, -1)]
    caught = ("caught", "inner")
    assert outcomes == [
        1 if operation == "read_attribute" else caught,
        os.sep if operation == "call" else caught,
    ]


def growth(runs):
    """Bytes and objects that 15 rounds of all programs leave behind; `runs` runs one."""

    def measure(rounds):
        for _ in range(rounds):
            for program in programs.PROGRAMS:
                if "look at themselves" not in program.__doc__:
                    for run in runs:
                        test_interpreter.outcome(lambda run=run, program=program: run(program))
        gc.collect()
        return tracemalloc.get_traced_memory()[0], len(gc.get_objects())

    tracemalloc.start()
    measure(10)
    memory, objects = measure(1)
    memory_after, objects_after = measure(15)
    tracemalloc.stop()
    return memory_after - memory, objects_after - objects


def leaks():
    """Run in a process of its own: what CPython leaves behind, and what the interpreter does."""
    print(*growth([lambda program: program()]))
    print(
        *growth(
            [
                interpreter.run,
                interpreter.observe,
                lambda program: interpreter.hand_back_randomly(program, 5, 20),
                *(
                    lambda program, at=at, how=how: interpreter.interrupt(program, at, how)
                    for at in (3, 17, 60)
                    for how in (False, True)
                ),
            ]
        )
    )


def test_nothing_leaks():
    """Observed, handed back, raising, rebuilt: no object for a run, and hardly memory for one."""
    command = "import test_observer; test_observer.leaks()"
    folder = pathlib.Path(__file__).parent
    environment = {**os.environ, "INGOT_INTERPRETER_TEST": test_interpreter.MODULE_DIR}
    output = subprocess.run(
        [sys.executable, "-c", command], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    (plain, _), (memory, objects) = (map(int, line.split()) for line in lines)
    runs = 15 * 9 * len(programs.PROGRAMS)
    assert objects < 50
    assert memory - max(plain, 0) < 16 * runs  # the smallest object, once a run


def test_reference_counts():
    """No operand keeps or loses a reference."""
    watched = [object(), [1], {"a": 1}, "text" * 3, 12345678901, Model(2), ValueError("x")]

    def use():
        a, b, c, d, e, f, g = watched
        pair = (a, b, *b, {**c}, [*b], d + d, e * e, f.scale, f(1), b[0], a is b, b == b)
        f.extra = a
        del f.extra
        for item in watched:
            if item is None or not watched:
                break
        try:
            raise g
        except ValueError as error:
            kept = error.args
        g.__traceback__ = None
        return len(pair), kept, [x for x in watched if x is a], max(b, key=lambda v: v), f"{d}"

    before = [sys.getrefcount(x) for x in watched]
    for _ in range(20):
        interpreter.run(use)
        interpreter.observe(use)
        interpreter.hand_back_randomly(use, 3, 10)
    gc.collect()
    assert [sys.getrefcount(x) for x in watched] == before


class Ends(Exception):
    """What an observer ends a program with."""


def ended(function, *args, operation="unary"):
    """What comes out of a program that is ended at its first such operation, and its log."""
    log, error = [], Ends()

    def answer(kind, *_):
        return (
            error if kind == operation and "ended" not in log and not log.append("ended") else None
        )

    try:
        result = interpreter.observe(lambda: function(log, *args), answer)[0]
    except BaseException as raised:
        return ("the error" if raised is error else raised), log
    return result, log


class Swallows:
    def __init__(self, log, raises=None):
        self.log, self.raises = log, raises

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(kind.__name__ if kind is not None else None)
        if self.raises is not None:
            raise self.raises
        return True


def taken_by_name(log):
    try:
        return -len(log)
    except Ends as error:
        log.append(error)


def taken_without_a_name(log):
    try:
        return -len(log)
    except ValueError:
        log.append("wrong")
    except:  # noqa: E722
        log.append("taken")


def taken_by_a_context(log):
    with Swallows(log):
        return -len(log)
    log.append("taken")


def replaced_by_a_context(log):
    try:
        with Swallows(log, KeyError(1)):
            return -len(log)
    except KeyError:
        log.append("taken")


def replaced_in_finally(log):
    try:
        try:
            return -len(log)
        finally:
            raise KeyError(log.append("clean"))
    except KeyError:
        log.append("taken")


def left_in_finally(log):
    while True:
        try:
            return -len(log)
        finally:
            log.append("clean")
            break  # noqa: B012
    log.append("taken")


def returned_in_finally(log):
    try:
        return -len(log)
    finally:
        return log.append("clean")  # noqa: B012, SIM107


def handled_in_finally(log):
    try:
        return -len(log)
    finally:
        try:
            raise KeyError(1)
        except KeyError:
            log.append("clean")


def taken_within_another(log):
    try:
        raise KeyError(1)
    except KeyError as error:
        try:
            return -len(log)
        except Exception:
            log.append("taken")
        log.append(error)


def taken_by_a_generator(log):
    def numbers():
        try:
            yield -len(log)
        except Ends:
            log.append("taken")
            yield 1

    return [log.append("taken") for _ in numbers()]


def thrown_into_a_generator(log):
    def numbers():
        try:
            yield 1
        except Ends:
            log.append("taken")
            yield 2
        finally:
            log.append("clean")

    generator = numbers()
    next(generator)
    try:
        -len(log)
    except Ends as error:
        log.append("taken")
        generator.throw(error)
    finally:
        generator.close()


def taken_by_c_code(log):
    class Odd:
        def __eq__(self, other):
            return -len(log)

        __hash__ = None

    class Hides:
        def __getattr__(self, name):
            try:
                return -len(log)
            except Ends:
                log.append("taken")
                raise AttributeError from None

    return getattr(Hides(), "missing", log)


def taken_in_a_group(log):
    try:
        return -len(log)
    except* Ends:
        log.append("taken")


def taken_further_out(log):
    def inner():
        try:
            return -len(log)
        finally:
            log.append("clean")

    try:
        return inner()
    except Ends:
        log.append("taken")


ENDED = [
    taken_by_name, taken_without_a_name, taken_by_a_context, replaced_by_a_context,
    replaced_in_finally, left_in_finally, returned_in_finally, handled_in_finally,
    taken_within_another, taken_by_a_generator, thrown_into_a_generator, taken_by_c_code,
    taken_in_a_group, taken_further_out,
]  # fmt: skip


@pytest.mark.parametrize("function", ENDED, ids=lambda f: f.__name__)
def test_a_program_cannot_catch_what_ends_it(function):
    outcome, log = ended(function)
    assert outcome == "the error"
    allowed = {"ended", "Ends", "clean"}
    assert set(log) <= allowed
    if "clean" in function.__code__.co_consts:
        assert "clean" in log
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_programs_can_be_ended_at_each_event(program):
    for stop in (*range(40), *range(40, 400, 17)):
        count, error = 0, Ends()

        def answer(*_, stop=stop, error=error):
            nonlocal count
            count += 1
            return error if count == stop + 1 else None

        try:
            interpreter.observe(program, answer)
        except Exception as raised:
            assert count <= stop or raised is error or "handed" in program.__doc__, raised
        assert sys.exc_info() == (None, None, None)
        if count <= stop:
            break
