"""The interpreter, nothing recorded: CPython's own tests, frames handed back or rebuilt."""

import os
import pathlib
import sys
import traceback

import cpython_tests
import pytest

MODULE_DIR = os.environ.get("INGOT_INTERPRETER_TEST")
if not MODULE_DIR:  # beside the extension, whose link leads to the build folder
    import ingot._ingot

    BUILD = pathlib.Path(ingot._ingot.__file__).resolve().parents[2]
    MODULE_DIR = str(BUILD / "tests" / "capture")
sys.path.append(MODULE_DIR)
import _interpreter_test as interpreter  # noqa: E402
import interpreter_programs as programs  # noqa: E402


def test_cpython_agrees(tmp_path):
    """A part of CPython's tests; `cpython_tests.py` runs the whole list."""
    differences = cpython_tests.compare(cpython_tests.QUICK, MODULE_DIR, tmp_path, jobs=2)
    assert differences == {}


def outcome(call):
    """What a call does, comparable: its result, or its exception with the lines it went through."""
    try:
        return "result", repr(call())
    except Exception as error:
        lines = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        return "raised", type(error).__name__, str(error), [x for x in lines if x[0] != "outcome"]


def inside(result):
    """An outcome without the frames above the program's own."""
    if result[0] == "result":
        return result
    names = [name for name, _ in result[3]]
    return (*result[:3], result[3][names.index("program") :] if "program" in names else [])


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_same_as_cpython(program):
    assert inside(outcome(lambda: interpreter.run(program))) == inside(outcome(program))


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_handed_back_anywhere(program):
    """Each frame is left to CPython at a random instruction."""
    expected = inside(outcome(program))
    handed_back = 0
    for seed in range(20):
        for rate in (3, 20, 100):
            found = []

            def call(seed=seed, rate=rate, found=found):
                result, count = interpreter.hand_back_randomly(program, seed * 7919 + 1, rate)
                found.append(count)
                return result

            assert inside(outcome(call)) == expected
            handed_back += sum(found)
    assert handed_back > 20 or expected[0] == "raised"


@pytest.mark.parametrize("interpreted", [False, True], ids=["by CPython", "by the interpreter"])
@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__doc__)
def test_rebuilt_anywhere(program, interpreted):
    """At every instruction in turn: all frames are copied, and new ones finish the work."""
    expected = inside(outcome(program))
    rebuilt = 0
    for at in range(150 if program in programs.NOT_REBUILT else 1500):
        state = {}

        def call(at=at, state=state):
            state["reached"], state["rebuilt"], result = interpreter.interrupt(
                program, at, interpreted
            )
            return result

        assert inside(outcome(call)) == expected, f"rebuilt at instruction {at}"
        if (
            not state
        ):  # it raised, so what was reached is not told; the programs that raise are short
            if at > 400:
                break
            continue
        if not state["reached"]:
            break
        rebuilt += state["rebuilt"]
    assert rebuilt > 5 or expected[0] == "raised" or program in programs.NOT_REBUILT
