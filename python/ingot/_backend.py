"""The backend Dynamo calls: an FX graph and example inputs in, a callable out.

The graph is run once on promise tensors while the C++ recorder listens; what it recorded becomes a
program of machine code. Costs one pass over the graph's nodes in Python at compile time; a call of
a graph with fixed sizes goes straight to the C++ program. What cannot be compiled runs eagerly and
is counted in `stats()`. Beyond that it depends on whose fault it is: what is not supported is no
news (one line at the level INFO); an error that eager raises too is the user's;
any other is a mistake of the compiler, logged in one line and left behind as a reproducing file.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import _options
from ._reproduce import write_reproducer

log = logging.getLogger("ingot")


@dataclass
class Stats:
    """What the compiler did in this process, whoever captured."""

    graphs: int = 0  # graphs captured
    programs: int = 0  # programs compiled (one for each set of sizes)
    fallbacks: int = 0  # graphs or sizes that run eagerly because they could not be compiled
    training: int = 0  # programs with a compiled backward
    eager_calls: int = 0  # calls of a program whose inputs it cannot serve, run eagerly
    compile_seconds: float = 0.0  # from a graph to a callable, summed
    kernels: int = 0  # distinct kernels of all programs
    externs: int = 0  # operators of all programs that PyTorch carries out
    reasons: list[str] = field(default_factory=list)  # one line for each fallback
    # Of own capture alone:
    recordings: int = 0  # calls that were recorded
    replays: int = 0  # calls served by a recording
    breaks: int = 0  # places where a recording had to run something for real
    guard_failures: int = 0  # calls that no recording fitted
    record_seconds: float = 0.0  # recording, without compiling


_stats = Stats()
_lock = threading.Lock()
_said: set[str] = set()


def stats() -> Stats:
    """A copy of the counters."""
    with _lock:
        found = replace(_stats, reasons=list(_stats.reasons))
    extension = sys.modules.get("ingot._ingot")
    if extension is not None:
        captured = extension.capture_counters()
        for name in ("recordings", "replays", "breaks", "guard_failures", "record_seconds"):
            setattr(found, name, captured[name])
        found.graphs += captured["graphs"]
        found.programs += captured["graphs"]
        found.eager_calls += captured["eager_calls"]
        found.compile_seconds += captured["compile_seconds"]
        found.fallbacks += sum(captured["reasons"].values())
        found.reasons += captured["reasons"]
    return found


def _say_once(line: str) -> None:
    with _lock:
        if line in _said:
            return
        _said.add(line)
    log.warning(line)


def _is_scalar_in_disguise(node: torch.fx.Node) -> bool:
    """A float of a dynamic graph: Dynamo passes it as a 0-d tensor and asks for `.item()`."""
    arg = node.meta.get("grapharg")
    return (
        arg is not None
        and getattr(arg, "pass_arg_as_tensor", False)
        and all(user.op == "call_method" and user.target == "item" for user in node.users)
    )


class _Scalar:
    """Stands in for such a tensor while the graph is recorded."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value


def _is_parameter(node: torch.fx.Node, example: Any) -> bool:
    """Parameters and buffers may be frozen; the program still checks them at each call."""
    static = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return isinstance(example, torch.nn.Parameter) or static is not None


def _record(
    gm: torch.fx.GraphModule,
    placeholders: Sequence[torch.fx.Node],
    inputs: Sequence[Any],
    options: _options.Options,
) -> Callable:
    """Record the graph on promises of `inputs` and compile it: a callable over the same inputs."""
    from . import _ingot

    recorder = _ingot.Recorder(options)
    training = torch.is_grad_enabled() and _any_requires_grad(inputs)
    arguments, tensors = [], []
    for position, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
        if not isinstance(value, torch.Tensor):
            arguments.append(value)
        elif _is_scalar_in_disguise(node):
            arguments.append(_Scalar(value.item()))
        else:
            tensors.append(position)
            gradient = training and value.requires_grad
            # What an optimizer changes at every step is not worth folding and packing.
            frozen = options.freezing and not gradient and _is_parameter(node, value)
            arguments.append(recorder.input(value, frozen, node.name, gradient=gradient))
    with recorder:
        outputs = gm(*arguments)
    outputs = list(outputs)
    results = [k for k, value in enumerate(outputs) if isinstance(value, torch.Tensor)]
    returned = [outputs[k] for k in results]
    if training and any(value.requires_grad for value in returned):
        program = recorder.compile_training(returned)
        with _lock:
            _stats.training += 1
    else:
        program = recorder.compile(returned)
    # The graph itself, for calls that the program cannot serve (a tensor subclass, overlapping
    # memory): over the same tensors and the numbers this program was made for.
    template = [None if isinstance(v, torch.Tensor) else v for v in arguments]
    program.fallback = _Eagerly(gm, template, tensors, results)
    report = program.report()
    with _lock:
        _stats.kernels += report["kernels"]
        _stats.externs += report["externs"]
    if len(tensors) == len(inputs) and len(results) == len(outputs):
        return program
    return _Padded(program, tensors, outputs, results)


def _any_requires_grad(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


class _Eagerly:
    """The graph over a program's tensors, run eagerly."""

    def __init__(
        self, gm: torch.fx.GraphModule, template: list[Any], tensors: list[int], results: list[int]
    ) -> None:
        self._gm, self._template, self._tensors, self._results = gm, template, tensors, results

    def __call__(self, *inputs: torch.Tensor) -> tuple:
        with _lock:
            _stats.eager_calls += 1
        arguments = list(self._template)
        for k, value in zip(self._tensors, inputs, strict=True):
            arguments[k] = value
        outputs = self._gm(*arguments)
        return tuple(outputs[k] for k in self._results)


class _Padded:
    """A program whose graph also has inputs or outputs that are no tensors."""

    def __init__(
        self, program: Callable, tensors: list[int], outputs: list[Any], results: list[int]
    ) -> None:
        self._program, self._tensors, self._results = program, tensors, results
        keep = set(results)
        self._template = [None if k in keep else value for k, value in enumerate(outputs)]

    def __call__(self, *inputs: Any) -> tuple:
        computed = self._program(*[inputs[k] for k in self._tensors])
        outputs = list(self._template)
        for k, value in zip(self._results, computed, strict=True):
            outputs[k] = value
        return tuple(outputs)


class _PerSize:
    """A graph whose numbers change: a program for each set of numbers, compiled on demand."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        placeholders: Sequence[torch.fx.Node],
        options: _options.Options,
    ) -> None:
        self._gm, self._placeholders, self._options = gm, placeholders, options
        self._numbers, self._scalars = [], []
        for k, node in enumerate(placeholders):
            if _is_scalar_in_disguise(node):
                self._scalars.append(k)
            elif not isinstance(node.meta.get("example_value"), torch.Tensor):
                self._numbers.append(k)
        self._programs: dict[tuple, Callable] = {}
        self._compiling = threading.Lock()
        self._full = False

    def __call__(self, *inputs: Any) -> tuple:
        key = (*[inputs[k] for k in self._numbers], *[inputs[k].item() for k in self._scalars])
        program = self._programs.get(key)
        if program is None:
            program = self._compile(key, inputs)
        return program(*inputs)

    def _compile(self, key: tuple, inputs: Sequence[Any]) -> Callable:
        with self._compiling:
            if key in self._programs:
                return self._programs[key]
            limit = self._options.size_limit
            if len(self._programs) >= limit:
                if not self._full:
                    self._full = True
                    _count_fallback(f"more than {limit} sets of sizes")
                    log.info("ingot: more than %d sets of sizes: the others run eagerly", limit)
                return self._gm.forward
            program = _compile_or_fall_back(self._gm, self._placeholders, inputs, self._options)
            self._programs[key] = program
            return program


def _count_fallback(reason: str) -> None:
    with _lock:
        _stats.fallbacks += 1
        _stats.reasons.append(reason)


class _Suspect:
    """A graph that the compiler failed on: run eagerly, and a bug as soon as eager runs it."""

    def __init__(self, reason: str, gm: torch.fx.GraphModule, options: _options.Options) -> None:
        self._reason, self._gm, self._options = reason, gm, options
        self._reported = False

    def __call__(self, *inputs: Any) -> Any:
        outputs = self._gm.forward(*inputs)  # raises where the user's program is wrong
        if not self._reported:
            self._reported = True
            place = write_reproducer(self._gm, inputs, self._reason, self._options)
            log.warning(
                "ingot: a graph runs eagerly: %s%s",
                self._reason,
                f" (reproduce: {place})" if place else "",
            )
        return outputs


def _eager_after(error: Exception, gm: torch.fx.GraphModule, options: _options.Options) -> Callable:
    """The graph as eager runs it, after `error` ended its compilation."""
    from . import _ingot

    line = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {line[0] if line else ''}"
    _count_fallback(reason)
    if isinstance(error, _ingot.Unsupported):
        log.info("ingot: a graph runs eagerly: %s", reason)
        return gm.forward
    return _Suspect(reason, gm, options)


def _compile_or_fall_back(
    gm: torch.fx.GraphModule,
    placeholders: Sequence[torch.fx.Node],
    inputs: Sequence[Any],
    options: _options.Options,
) -> Callable:
    start = time.perf_counter()
    if options.debug:
        write_reproducer(gm, inputs, "a graph compiled under INGOT_DEBUG", options)
    try:
        program = _record(gm, placeholders, inputs, options)
    except Exception as error:  # KeyboardInterrupt is none of ours and goes through
        if not options.fallback:
            raise
        return _eager_after(error, gm, options)
    finally:
        with _lock:
            _stats.compile_seconds += time.perf_counter() - start
    with _lock:
        _stats.programs += 1
    return program


def _may_enable_grad(gm: torch.fx.GraphModule) -> bool:
    """Whether some of the graph runs with gradients enabled."""
    return torch.is_grad_enabled() or any(
        node.target is torch._C._set_grad_enabled and node.args[0] for node in gm.graph.nodes
    )


def dynamo_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable:
    """The entry point `ingot` of the group `torch_dynamo_backends`."""
    values = _options.resolve(mode, options)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    with _lock:
        _stats.graphs += 1
    # A graph that switches gradients on by itself is left to eager.
    training = values.training and torch.is_grad_enabled()
    if not training and _may_enable_grad(gm) and _any_requires_grad(example_inputs):
        _say_once("ingot: inputs need a gradient and training is off; such graphs run eagerly")
        return gm.forward
    fixed = all(
        isinstance(value, torch.Tensor) and not _is_scalar_in_disguise(node)
        for node, value in zip(placeholders, example_inputs, strict=True)
    )
    if fixed:
        return _compile_or_fall_back(gm, placeholders, example_inputs, values)
    return _PerSize(gm, placeholders, values)
