"""All switches of Ingot in one table, read once and passed down as a value.

A switch is set, from weakest to strongest, by its default, by its environment variable, by a mode,
or by `options={...}` of `ingot.compile`. Nothing else in the package reads an `INGOT_*` variable.
A value of another type, or out of its range, raises where it is given; a variable that is none of
the table's and a folder that cannot be written are said once (`_checks.py`).
Costs nothing at run time: the values are gathered once for each call of the backend.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _checks


@dataclass(frozen=True)
class Option:
    """One row: name, type, default, environment variable, doc, and what values are allowed."""

    name: str
    type: type
    default: Any
    env: str | None
    doc: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


TABLE: tuple[Option, ...] = (
    Option("debug", str, "", "INGOT_DEBUG",
           "folder that gets every IR level, the kernels as text and assembly, and a reproducer"),
    Option("cache_dir", str, "", "INGOT_CACHE_DIR",
           "folder of the disk cache of machine code; empty: the user's cache folder"),
    Option("cache", bool, True, "INGOT_CACHE",
           "keep compiled machine code on disk and load it from there"),
    Option("target", str, "", "INGOT_TARGET",
           "a lesser processor to generate code for, e.g. x86-64-v3; empty: this machine"),
    Option("perf_map", bool, False, "INGOT_PERF_MAP",
           "tell the profiler `perf` the names of compiled functions"),
    Option("freezing", bool, True, "INGOT_FREEZING",
           "fold and pack parameters; a changed parameter is folded and packed again"),
    Option("weight_checks", str, "part", "INGOT_WEIGHT_CHECKS",
           "how much of folded and packed parameters a call compares with what they were made "
           "from: part (about 1 % of a call), all, none",
           ("part", "all", "none")),
    Option("background", bool, True, "INGOT_BACKGROUND",
           "prepare the packing of large weights beside the calls; off: the second call waits"),
    Option("emulate_precision_casts", bool, True, "INGOT_EMULATE_PRECISION_CASTS",
           "round low-precision intermediates where eager does"),
    Option("emulate_precision_casts_on_gpus", bool, False, "INGOT_EMULATE_PRECISION_CASTS_ON_GPUS",
           "the same on GPUs, where otherwise only what is stored or converted is rounded"),
    Option("max_autotune", bool, False, "INGOT_MAX_AUTOTUNE",
           "on a GPU, measure the forms of products and costly kernels beside the calls"),
    Option("cudagraphs", bool, False, "INGOT_CUDAGRAPHS",
           "on a GPU, record a program's steps once and replay them as one CUDA graph"),
    Option("gpu_products", bool, True, "INGOT_GPU_PRODUCTS",
           "on a GPU, generate products that win together with what follows them"),
    Option("codegen", str, "llvm", "INGOT_CODEGEN",
           "who compiles a GPU's kernels: llvm (Ingot itself) or triton (the installed Triton)",
           ("llvm", "triton")),
    Option("size_limit", int, 64, "INGOT_SIZE_LIMIT",
           "programs kept for one graph with changing sizes; beyond it the graph runs eagerly",
           least=1),
    Option("capture", str, "own", "INGOT_CAPTURE",
           "who captures the Python: own (Ingot's recorder) or dynamo (TorchDynamo)",
           ("own", "dynamo")),
    Option("training", bool, True, "INGOT_TRAINING",
           "compile graphs that need gradients, with their backward; off: they run eagerly"),
    Option("memory_budget", float, 1.0, "INGOT_MEMORY_BUDGET",
           "of what training keeps for the backward: 1 all, 0 as little as possible (recomputes)",
           least=0, most=1),
    Option("fallback", bool, True, "INGOT_FALLBACK",
           "run a graph eagerly when it cannot be compiled; off: raise instead"),
)  # fmt: skip

_BY_NAME = {row.name: row for row in TABLE}

# torch.compile's names for switches that are here.
_ALIASES = {"triton.cudagraphs": "cudagraphs"}

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}

# Options of torch.compile that people set and that have no meaning here: accepted with one warning.
_FOREIGN = frozenset({
    "coordinate_descent_tuning", "cpp_wrapper", "epilogue_fusion", "fallback_random",
    "fx_graph_cache", "shape_padding", "size_asserts", "trace.enabled", "trace.graph_diagram",
    "guard_filter_fn",
})  # fmt: skip

BOTH = "Either mode or options can be specified, but both can't be specified at the same time."

_TRUE, _FALSE = {"1", "true", "on", "yes"}, {"0", "false", "off", "no", ""}


class Options(dict):
    """The value of every switch, by name; also readable as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _from_environment(row: Option, text: str) -> Any:
    if row.type is bool:
        low = text.strip().lower()
        if low not in _TRUE | _FALSE:
            raise RuntimeError(f"{row.env}={text!r} is not a truth value: use 0 or 1")
        return low in _TRUE
    if row.type is int:
        try:
            return int(text)
        except ValueError:
            raise RuntimeError(f"{row.env}={text!r} is not a whole number") from None
    if row.type is float:
        try:
            return float(text)
        except ValueError:
            raise RuntimeError(f"{row.env}={text!r} is not a number") from None
    return text


def list_options() -> list[str]:
    """Names that `ingot.compile(options=...)` knows."""
    return [row.name for row in TABLE]


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """What each mode sets; `dynamic` is accepted for the signature's sake."""
    if mode is None:
        return {name: dict(values) for name, values in MODES.items()}
    if mode not in MODES:
        raise RuntimeError(
            f"Unrecognized mode={mode}{_checks.nearest(mode, MODES)}, should be one of: "
            f"{', '.join(MODES)}"
        )
    return dict(MODES[mode])


def resolve(
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Options:
    """The whole table with defaults, environment, mode and options applied in this order.

    Raises RuntimeError naming an unknown mode, an unknown option or a value of the wrong type.
    """
    if mode is not None and options is not None:
        raise RuntimeError(BOTH)
    environ = os.environ if environ is None else environ
    _checks.say_unknown_variables(environ, [row.env for row in TABLE if row.env])
    values = Options((row.name, row.default) for row in TABLE)
    given = {}  # where a value comes from, for what is said of it
    for row in TABLE:
        if row.env and row.env in environ:
            values[row.name] = _from_environment(row, environ[row.env])
            given[row.name] = f"{row.env}={environ[row.env]!r}"
    if mode is not None:
        values.update(list_mode_options(mode))
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options is {options!r}: a dict of options, or None")
    for key, value in (options or {}).items():
        if not isinstance(key, str):
            raise TypeError(f"the option {key!r} is no text: known options are {list_options()}")
        row = _BY_NAME.get(_ALIASES.get(key, key).replace("-", "_"))
        if row is None:
            if key in _FOREIGN:
                warnings.warn(f"option {key} has no meaning for ingot and is ignored", stacklevel=3)
                continue
            raise RuntimeError(
                f"Unexpected optimization option {key}{_checks.nearest(key, _BY_NAME)}, "
                f"known options are {list_options()}"
            )
        if row.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if row.type is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, row.type) or (row.type is int and isinstance(value, bool)):
            raise RuntimeError(
                f"Unexpected type of attr {key}, got {type(value).__name__} "
                f"should be {row.type.__name__}"
            )
        values[row.name] = value
        given[row.name] = f"the option {key}={value!r}"
    for row in TABLE:
        _check_value(row, values, given.get(row.name, row.name))
    return values


def _cache_folder() -> str | None:
    """Where the cache is by default, as src/runtime/driver.cpp has it."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return os.path.join(base, "ingot")
    home = os.environ.get("HOME")
    return os.path.join(home, ".cache", "ingot") if home else None


def _check_value(row: Option, values: Options, source: str) -> None:
    value = values[row.name]
    if row.choices and value not in row.choices:
        known = " or ".join(row.choices)
        raise RuntimeError(f"{source}{_checks.nearest(value, row.choices)}: {known}")
    low = row.least is not None and not value >= row.least  # a NaN is in no range
    if low or (row.most is not None and not value <= row.most):
        most = "" if row.most is None else f" to {row.most:g}"
        raise RuntimeError(f"{source} is out of range: from {row.least:g}{most or ' on'}")
    if row.name in ("debug", "cache_dir") and value:
        _checks.say_unwritable(source, value)
    if row.name == "cache_dir" and not value and values.cache and (folder := _cache_folder()):
        _checks.say_unwritable("the cache of machine code", folder)
    if row.name == "target" and value:
        _checks.target(source, values)
