"""What users give that cannot be meant: said where it is given, with what it was and what may be.

Arguments of the wrong type or out of range raise; what a run can do without (a variable that no
switch has, a folder that cannot be written) is said once in a process. Called at compile time only.
"""

from __future__ import annotations

import difflib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Variables of the build, the tests and the benchmarks: no switches of the package.
_OTHERS = frozenset({
    "INGOT_BLESS", "INGOT_EACH_WIDTH", "INGOT_INTERPRETER_TEST", "INGOT_LLVM_DIR",
    "INGOT_MATH_TABLE", "INGOT_OPINFO", "INGOT_PREBUILT_CORE", "INGOT_TEST_DATA", "INGOT_VENV",
})  # fmt: skip
_OTHER_PREFIXES = ("INGOT_BENCH_", "INGOT_BUILD_", "INGOT_TEST_")


def nearest(given: Any, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing where no known name is near."""
    if not isinstance(given, str):
        return ""
    found = difflib.get_close_matches(given.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def truth(name: str, value: Any, none: bool = False) -> None:
    """`value` is True or False; with `none` also None."""
    if isinstance(value, bool) or (none and value is None):
        return
    allowed = "True, False or None" if none else "True or False"
    raise TypeError(f"{name} is {value!r} of type {type(value).__name__}: {allowed}")


def text(name: str, value: Any) -> None:
    """`value` is a str or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}: a str or None")


def whole(name: str, value: Any, least: int | None = None, none: bool = True) -> None:
    """`value` is an int, at least `least`; or None."""
    if value is None and none:
        return
    allowed = "a whole number" + ("" if least is None else f" from {least} on")
    allowed += " or None" if none else ""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}: {allowed}")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}: {allowed}")


def function(name: str, value: Any) -> None:
    """`value` can be called."""
    if not callable(value):
        raise AssertionError(f"{name} must be callable, got {value!r}")


def shapes(name: str, value: Any, dynamic: bool | None) -> None:
    """`value` is what torch.compile takes for `shapes_spec`."""
    if value is None:
        return
    classes = {cls.__name__ for cls in type(value).__mro__}
    if not classes & {"dict", "ParamsSpec", "ShapesSpec"}:
        raise TypeError(
            f"{name} is {value!r} of type {type(value).__name__}: a dict, a ParamsSpec or a "
            "ShapesSpec of torch.fx.experimental.dynamic_spec, or None"
        )
    if dynamic is not None:
        raise ValueError(f"`dynamic` and `{name}` cannot both be set: {name} says what is dynamic")


def target(source: str, values: Mapping[str, Any]) -> None:
    """A processor that code can be generated for."""
    from . import _ingot

    try:
        _ingot.check_settings(dict(values))
    except (_ingot.Unsupported, RuntimeError) as error:
        raise RuntimeError(f"{source}: {error}") from None


@functools.cache
def _say(line: str) -> None:
    from ._backend import log

    log.warning(line)


def say_unknown_variables(environ: Mapping[str, str], known: Iterable[str]) -> None:
    """One line for each INGOT_ variable that nothing reads."""
    known = [*known, *_OTHERS]
    for name in environ:
        if not name.startswith("INGOT_") or name in known or name.startswith(_OTHER_PREFIXES):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        _say(
            f"ingot: the environment variable {name} is read by nothing"
            + (f": did you mean {near[0]}?" if near else "; ingot.list_options() has the switches")
        )


@functools.cache
def say_unwritable(source: str, folder: str) -> None:
    """One line if no file can be made in the folder, which is made where it is missing."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        _say(f"ingot: {source}: the folder cannot be written ({error}); no files will be there")


def each(check: Callable[[str, Any], None], values: Mapping[str, Any]) -> None:
    """`check` for each name and value."""
    for name, value in values.items():
        check(name, value)
