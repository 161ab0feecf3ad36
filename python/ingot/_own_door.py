"""Capture by Ingot itself: the C++ recorder of `src/capture`, whose border is `capture.h`.

A compiled function is the C++ object itself, so that a call meets no Python of ours.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from . import _backend, _errors, _fx, _news, _options, _places, _registry, _torch_controls
from ._explain import Break, Explanation, frame_of
from ._reproduce import write_reproducer
from ._settings import Settings
from ._stance import Stance


def compile(function: Callable, settings: Settings) -> Callable:
    """`function` captured by Ingot and compiled by the backend of the settings."""
    from . import _ingot

    mark_known()
    _torch_controls.watch()
    if settings.shapes_spec is not None:
        _backend._say_once(
            "ingot: shapes_spec is not followed by Ingot's own capture, which takes sizes for "
            "symbolic once they change; options={'capture': 'dynamo'} follows it"
        )
    captured = _ingot.capture(function, _capture_options(function, settings, settings.backend))
    captured._ingot_settings = settings
    with contextlib.suppress(AttributeError):
        functools.update_wrapper(captured, function)
    return captured


def _capture_options(
    function: Callable, settings: Settings, backend: Callable | None
) -> dict[str, Any]:
    """The settings as `_ingot.capture` takes them."""
    name, place = _places.described(function)
    options = {
        "name": settings.name or name,
        "place": place,
        "fullgraph": settings.fullgraph,
        "dynamic": settings.dynamic,
        "settings": dict(_options.resolve(settings.mode, settings.options))
        if settings.backend is None
        else dict(_options.resolve()),
    }
    if settings.recompile_limit is not None:
        options["recompile_limit"] = settings.recompile_limit
    if backend is not None:
        options["backend"] = _hook(backend, settings)
    else:
        options["reproduce"] = _reproducer(_options.resolve(settings.mode, settings.options))
    return options


def _reproducer(options: _options.Options) -> Callable:
    """What capture calls for a program that repeats a recording; see `capture.h`."""

    def reproduce(
        reason: str | None, calls: list, examples: dict, outputs: list, sizes: dict, shapes: list
    ) -> None:
        gm = _fx.graph_module(calls, examples, outputs)
        inputs = _tensors(examples)
        if reason is None:
            write_reproducer(gm, inputs, "a graph compiled under INGOT_DEBUG", options)
        else:
            line = reason.strip().splitlines()
            _backend.report_failure(gm, inputs, line[0] if line else "", options)

    return reproduce


def _tensors(examples: dict[int, torch.Tensor | float]) -> list[torch.Tensor]:
    return [
        torch.tensor(one, dtype=torch.float64) if isinstance(one, float) else one
        for one in examples.values()
    ]


def _hook(backend: Callable, settings: Settings) -> Callable:
    """What capture calls once a graph, around a backend that takes FX graphs."""
    extra = {key: getattr(settings, key) for key in ("mode", "options") if getattr(settings, key)}

    def compile_log(
        calls: list, examples: dict, outputs: list, sizes: dict, shapes: list
    ) -> Callable:
        gm = _fx.graph_module(calls, examples, outputs, sizes)
        given = list(examples.values())
        changes = sizes or any(isinstance(one, float) for one in given)
        symbolic = _symbolic_examples(sizes, given, shapes) if changes else None
        try:
            compiled = backend(gm, given if symbolic is None else symbolic.inputs, **extra)
        except Exception as error:
            failed = _errors.BackendCompilerFailed(backend, error)
            if settings.fullgraph or not _torch_controls.suppresses_errors():
                raise failed from error
            _backend.log.warning(
                "ingot: %s; the graph runs eagerly", str(failed).replace("\n", " ")
            )
            return _fx.below_autocast(gm.forward)
        run = _fx.below_autocast(compiled)
        if symbolic is not None:
            run.serves = symbolic.serves
            run.fixes, run.fixes_floats = symbolic.fixes, symbolic.fixes_floats
        return run

    return compile_log


def _symbolic_examples(sizes: dict, given: list, shapes: list) -> Any:
    from ._shapes import Examples  # PyTorch's own symbols, which take a second to import

    return Examples(sizes, given, shapes)


def explain(function: Callable, settings: Settings, args: tuple, kwargs: dict) -> Explanation:
    """What Ingot's capture makes of one call."""
    from . import _ingot

    mark_known()
    _torch_controls.watch()
    graphs: list[torch.fx.GraphModule] = []

    def collect(gm: torch.fx.GraphModule, example_inputs: list, **_: Any) -> Callable:
        graphs.append(gm)
        return gm.forward

    captured = _ingot.capture(function, _capture_options(function, settings, collect))
    captured(*args, **kwargs)
    segments = captured.explain()
    broken = [one for one in segments if one["end"] == "break" or one["kind"] != "graph"]
    counters = captured.counters()
    operators = [one["operators"] for one in segments if one["operators"]]
    reasons = []
    for one in broken:
        lines = one.get("stack") or [one.get("line") or ""]
        frames = [frame for frame in map(frame_of, lines) if frame is not None]
        reasons.append(Break(one.get("reason") or "", _places.chain_of_frames(frames)))
    return Explanation(
        graphs=graphs,
        graph_count=len(operators),
        graph_break_count=len(reasons),
        break_reasons=reasons,
        op_count=sum(map(len, operators)),
        ops_per_graph=operators,
        out_guards=[guard for one in segments for guard in one["guards"]],
        compile_times=f"recording {counters['record_seconds']:.4f} s, "
        f"compiling {counters['compile_seconds']:.4f} s",
    )


@functools.cache
def _mark_own() -> None:
    from . import _control, _ingot

    _ingot.capture_mark(_control.graph_break, "break")
    _ingot.capture_mark(_control.is_compiling, "true")


def mark_known() -> None:
    """The words that capture must know: ours, and TorchDynamo's where the program uses it."""
    from . import _ingot

    _mark_own()
    _ingot.capture_mark(torch.compiler.is_compiling, "true")
    _ingot.capture_mark(torch.compiler.is_dynamo_compiling, "true_for_programs")
    _ingot.capture_mark(torch.autograd.profiler.record_function, "annotation")
    # The count of an optimizer's steps, which eager reads as a number: what is computed from it
    # (1 - beta ** step) is as exact here.
    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is not None and hasattr(optimizer, "_get_value"):
        _ingot.capture_mark(optimizer._get_value, "wide")
    # They set the state of generators, some through C code that counts calls.
    for one in (torch.manual_seed, torch.seed, torch.set_rng_state, torch.random.fork_rng):
        _ingot.capture_mark(one, "disable")
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    if checkpoint is not None:
        _ingot.capture_mark(checkpoint.checkpoint, "checkpoint")
    # Collectives with gradients refuse to be compiled, and are breaks anyway.
    collectives = sys.modules.get("torch.distributed.nn.functional")
    for name, one in vars(collectives).items() if collectives is not None else ():
        if inspect.isfunction(one) and one.__module__ == collectives.__name__ and name[0] != "_":
            _ingot.capture_mark(one, "disable")
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "graph_break"):
        _ingot.capture_mark(dynamo.graph_break, "break")
    guard = sys.modules.get("torch._dynamo.mutation_guard")
    if guard is not None:  # TorchDynamo numbers the modules that are made; ours need no number
        _ingot.capture_mark(guard.GenerationTracker.tag.__func__, "true")


def is_compiling() -> bool:
    """Whether this thread is recording."""
    extension = sys.modules.get("ingot._ingot")
    return extension is not None and extension.is_recording()


def set_stance(stance: Stance) -> None:
    """The stance of the functions captured here."""
    from . import _ingot

    name = stance.stance
    _ingot.capture_stance("eager_then_compile" if name == "aot_eager_then_compile" else name)
    _ingot.capture_force(None if stance.force_backend is None else _forced(stance.force_backend))


def _forced(name: str | Callable) -> Callable:
    """What makes all calls while `name` takes the place of every backend."""
    from . import _dynamo_door, _ingot

    backend = _registry.canonical(name)

    def call(captured: Any, *args: Any, **kwargs: Any) -> Any:
        made = captured.__dict__.setdefault("_ingot_forced", {})
        if backend not in made:
            given = captured.__dict__.get("_ingot_settings", Settings())
            settings = replace(given, backend=backend, mode=None, options=None)
            if isinstance(backend, str):  # PyTorch's own
                made[backend] = _dynamo_door.compile(captured.function, settings)
            else:
                options = _capture_options(captured.function, settings, backend) | {"forced": True}
                made[backend] = _ingot.capture(captured.function, options)
        return made[backend](*args, **kwargs)

    return call


def graph_break() -> None:
    """Nothing by itself: capture knows the function of the interface that calls this one."""


def disable(function: Callable, recursive: bool, reason: str | None) -> Callable:
    """`function`, run with capture off (not recursive: only its own frame is not recorded)."""
    from . import _ingot

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # As PyTorch's functions are marked, so that TorchDynamo understands it as well.
    disabled._torchdynamo_disable = True
    disabled._torchdynamo_disable_msg = reason
    disabled._torchdynamo_disable_recursive = recursive
    disabled._torchdynamo_orig_callable = function
    disabled._torchdynamo_wrapper_id = id(disabled)
    _ingot.capture_mark(disabled, "disable" if recursive else "disable_once")
    return disabled


def allow_in_graph(function: Callable) -> Callable:
    """`function`, whose Python decides nothing that needs a guard."""
    from . import _ingot

    _ingot.capture_mark(function, "allow")
    return function


def assume_constant(function: Callable) -> None:
    """Say that calls of `function` always give the same."""
    from . import _ingot

    _ingot.capture_mark(function, "constant")


def reset() -> None:
    """Forget what was recorded."""
    _news.reset()
    extension = sys.modules.get("ingot._ingot")
    if extension is not None:
        extension.capture_reset()
