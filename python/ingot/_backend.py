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

from . import _options, _triton, _unseen_writes
from ._reproduce import write_reproducer

log = logging.getLogger("ingot")


@dataclass
class Stats:
    """What the compiler did in this process, whoever captured."""

    graphs: int = 0  # graphs captured
    programs: int = 0  # programs compiled (with symbolic sizes one serves many)
    fallbacks: int = 0  # graphs or sizes that run eagerly because they could not be compiled
    training: int = 0  # programs with a compiled backward
    eager_calls: int = 0  # calls of a program whose inputs it cannot serve, run eagerly
    compile_seconds: float = 0.0  # from a graph to a callable, summed
    kernels: int = 0  # distinct kernels of all programs
    externs: int = 0  # operators of all programs that PyTorch carries out
    reasons: list[str] = field(default_factory=list)  # one line for each fallback
    unseen_writes: int = 0  # parameters found changed although nothing had said so
    # Of own capture alone:
    recordings: int = 0  # calls that were recorded
    replays: int = 0  # calls served by a recording
    breaks: int = 0  # places where a recording had to run something for real
    guard_failures: int = 0  # calls that no recording fitted
    record_seconds: float = 0.0  # recording, without compiling
    # Under options={"codegen": "triton"}:
    triton_kernels: int = 0  # kernels that Triton compiled
    triton_refused: dict[str, int] = field(default_factory=dict)  # others, by one-line reason


_stats = Stats()
_lock = threading.Lock()
_said: set[str] = set()


def stats() -> Stats:
    """A copy of the counters."""
    with _lock:
        found = replace(_stats, reasons=list(_stats.reasons))
    found.triton_kernels, found.triton_refused = _triton.counts()
    found.unseen_writes = _unseen_writes.count()
    extension = sys.modules.get("ingot._ingot")
    if extension is not None:
        captured = extension.capture_counters()
        for name in ("recordings", "replays", "breaks", "guard_failures", "record_seconds"):
            setattr(found, name, captured[name])
        found.graphs += captured["graphs"]
        found.programs += captured["graphs"]
        found.training += captured["training"]
        found.eager_calls += captured["eager_calls"]
        found.kernels += captured["kernels"]
        found.externs += captured["externs"]
        found.compile_seconds += captured["compile_seconds"]
        found.fallbacks += sum(captured["reasons"].values())
        found.reasons += captured["reasons"]
    return found


def reset() -> None:
    """Start counting anew."""
    with _lock:
        vars(_stats).update(vars(Stats()))
    _triton.reset()
    _unseen_writes.reset()


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


def _symbol(size: torch.SymInt, otherwise: str) -> tuple[str, int, int]:
    """Name and range of a size that Dynamo leaves open; what is no plain symbol gets a name."""
    node, most = size.node, 2**63 - 1
    if not node.expr.is_symbol:
        return otherwise, 0, most
    known = node.shape_env.var_to_range.get(node.expr)
    least = 0
    if known is not None:
        least = int(known.lower) if known.lower.is_Integer else -most - 1
        most = int(known.upper) if known.upper.is_Integer else most
    return str(node.expr), least, most


def _symbolic_sizes(node: torch.fx.Node) -> list[tuple[str, int, int] | None]:
    """By dim of an input: None, or what `_symbol` says. Empty when all sizes are fixed."""
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor):
        return []
    sizes = [
        _symbol(size, f"{node.name}_{k}") if isinstance(size, torch.SymInt) else None
        for k, size in enumerate(example.shape)
    ]
    return sizes if any(sizes) else []


class _Slot:
    """What Dynamo says of an input; its own notes do not outlive the backend's call."""

    def __init__(self, node: torch.fx.Node, example: Any) -> None:
        self.name = node.name
        self.scalar = _is_scalar_in_disguise(node)
        self.frozen = _is_parameter(node, example)
        size = node.meta.get("example_value")
        self.symbol = _symbol(size, node.name) if isinstance(size, torch.SymInt) else None
        self.sizes = [] if self.scalar else _symbolic_sizes(node)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _record(
    gm: torch.fx.GraphModule,
    slots: Sequence[_Slot],
    inputs: Sequence[Any],
    options: _options.Options,
    missed: Callable | None = None,
) -> Callable:
    """Record the graph on promises of `inputs` and compile it: a callable over the same inputs.

    `missed` is called with a call's inputs where the program cannot serve them.
    """
    from . import _ingot

    recorder = _ingot.Recorder(options)
    training = torch.is_grad_enabled() and _any_requires_grad(inputs)
    arguments, given = [], []
    for position, (slot, value) in enumerate(zip(slots, inputs, strict=True)):
        if slot.symbol is not None and _is_number(value):
            hint = value.node.hint if isinstance(value, torch.SymInt) else value
            if training:  # a program with a backward serves one set of sizes
                arguments.append(hint)
                continue
            given.append(position)
            arguments.append(recorder.number(hint, *slot.symbol))
        elif not isinstance(value, torch.Tensor):
            arguments.append(value)
        elif slot.scalar:
            arguments.append(_Scalar(value.item()))
        else:
            given.append(position)
            gradient = training and value.requires_grad
            # What an optimizer changes at every step is not worth folding and packing.
            frozen = options.freezing and not gradient and slot.frozen
            sizes = [] if training or len(slot.sizes) != value.dim() else slot.sizes
            arguments.append(recorder.input(value, frozen, slot.name, sizes, gradient=gradient))
    # Calling `gm` prints a traceback of whatever is not supported, and so does its `forward` until
    # its code has been asked for.
    _ = gm.code
    with recorder:
        outputs = gm.forward(*arguments)
    outputs = list(outputs)
    results = [
        k for k, value in enumerate(outputs) if isinstance(value, (torch.Tensor, torch.SymInt))
    ]
    returned = [outputs[k] for k in results]
    if training and any(isinstance(v, torch.Tensor) and v.requires_grad for v in returned):
        program = recorder.compile_training(returned)
        with _lock:
            _stats.training += 1
    else:
        program = recorder.compile(returned)
    report = program.report()
    with _lock:
        _stats.kernels += report["kernels"]
        _stats.externs += report["externs"]
    # The graph itself, for calls that the program cannot serve (a tensor subclass, overlapping
    # memory): over the same inputs and the numbers this program was made for.
    taken = set(given)
    template = [None if k in taken else value for k, value in enumerate(arguments)]
    program.fallback = _Elsewhere(missed or _Eagerly(gm), template, given, results)
    if len(given) == len(inputs) and len(results) == len(outputs):
        return program
    return _Padded(program, given, outputs, results)


def _any_requires_grad(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


class _Eagerly:
    """The graph, run eagerly and counted."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm

    def __call__(self, *inputs: Any) -> tuple:
        with _lock:
            _stats.eager_calls += 1
        return self._gm(*inputs)


class _Elsewhere:
    """What a program calls with inputs it cannot serve: `target`, over all inputs of the graph."""

    def __init__(
        self, target: Callable, template: list[Any], given: list[int], results: list[int]
    ) -> None:
        self._target, self._template, self._given, self._results = target, template, given, results

    def __call__(self, *inputs: Any) -> tuple:
        arguments = list(self._template)
        for k, value in zip(self._given, inputs, strict=True):
            arguments[k] = value
        outputs = self._target(*arguments)
        return tuple(outputs[k] for k in self._results)


class _Padded:
    """A program whose graph also has inputs or outputs that the program does not know."""

    def __init__(
        self, program: Callable, given: list[int], outputs: list[Any], results: list[int]
    ) -> None:
        self._program, self._given, self._results = program, given, results
        keep = set(results)
        self._template = [None if k in keep else value for k, value in enumerate(outputs)]

    def __call__(self, *inputs: Any) -> tuple:
        computed = self._program(*[inputs[k] for k in self._given])
        outputs = list(self._template)
        for k, value in zip(self._results, computed, strict=True):
            outputs[k] = value
        return tuple(outputs)


class _Programs:
    """A graph with symbolic sizes: programs in order, each of which serves many sizes.

    A program that cannot serve a call hands it to the next; the last one has a new one compiled.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        slots: Sequence[_Slot],
        options: _options.Options,
    ) -> None:
        self._gm, self._slots, self._options = gm, slots, options
        self._eagerly = _Eagerly(gm)
        self._compiling = threading.RLock()
        self._fresh = threading.local()  # position of the program compiled for the call in progress
        self._next: list[Callable | None] = []  # by program: what comes after it

    def first(self, inputs: Sequence[Any]) -> Callable:
        return self._add(inputs)

    def _add(self, inputs: Sequence[Any]) -> Callable:
        position = len(self._next)
        self._next.append(None)

        def missed(*later: Any) -> tuple:
            following = self._next[position]
            if following is not None:
                return following(*later)
            # A program that cannot even serve what it was compiled for: no other one will.
            if getattr(self._fresh, "position", None) == position:
                return self._eagerly(*later)
            following = self._follow(position, later)
            self._fresh.position = position + 1
            try:
                return following(*later)
            finally:
                self._fresh.position = None

        return _compile_or_fall_back(self._gm, self._slots, inputs, self._options, missed)

    def _follow(self, position: int, inputs: Sequence[Any]) -> Callable:
        with self._compiling:
            if self._next[position] is not None:
                return self._next[position]
            limit = self._options.size_limit
            if len(self._next) < limit:
                self._next[position] = self._add(inputs)
            else:
                _count_fallback(f"more than {limit} sets of sizes")
                log.info("ingot: more than %d sets of sizes: the others run eagerly", limit)
                self._next[position] = self._eagerly
            return self._next[position]


class _PerScalar:
    """A graph with changing numbers that are no symbols: programs for each set of them."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        slots: Sequence[_Slot],
        options: _options.Options,
        training: bool,
    ) -> None:
        self._gm, self._slots, self._options = gm, slots, options
        self._floats = [k for k, slot in enumerate(slots) if slot.scalar]
        self._ints = [k for k, slot in enumerate(slots) if training and slot.symbol]
        self._programs: dict[tuple, Callable] = {}
        self._compiling = threading.Lock()
        self._full = False

    def __call__(self, *inputs: Any) -> tuple:
        key = (*[inputs[k].item() for k in self._floats], *[inputs[k] for k in self._ints])
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
                    _count_fallback(f"more than {limit} sets of numbers")
                    log.info("ingot: more than %d sets of numbers: the others run eagerly", limit)
                return self._gm.forward
            program = _Programs(self._gm, self._slots, self._options).first(inputs)
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
            report_failure(self._gm, inputs, self._reason, self._options)
        return outputs


def report_failure(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], reason: str, options: _options.Options
) -> None:
    """One line in the log, and a file that reproduces what the compiler failed on."""
    place = write_reproducer(gm, inputs, reason, options)
    found = f" (reproduce: {place})" if place else ""
    log.warning("ingot: a graph runs eagerly: %s%s", reason, found)


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
    slots: Sequence[_Slot],
    inputs: Sequence[Any],
    options: _options.Options,
    missed: Callable | None = None,
) -> Callable:
    start = time.perf_counter()
    if options.debug:
        write_reproducer(gm, inputs, "a graph compiled under INGOT_DEBUG", options)
    try:
        program = _record(gm, slots, inputs, options, missed)
    except Exception as error:  # KeyboardInterrupt is none of ours and goes through
        if not options.fallback or type(error).__name__ == "MissingCompiler":
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


# Operators over functions that only call them, wherever they run: they can be recorded.
_CALLS_ITS_FUNCTION = frozenset(
    {"autograd_function_apply", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"}
)


def _higher_order(gm: torch.fx.GraphModule) -> str | None:
    """The name of an operator over functions (`cond`, a nested region) that is PyTorch's to run."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                name = node.target.name()
                if name not in _CALLS_ITS_FUNCTION:
                    return name
    return None


def _by_aot_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str, fallback: bool
) -> Callable:
    """The graph with PyTorch's kernels, its gradients worked out ahead of the calls: run as it is,
    an operator over functions has none."""
    from torch._dynamo.backends.debugging import aot_eager

    from . import _ingot

    reason = f"a higher-order operator ({name})"
    if not fallback:
        raise _ingot.Unsupported(reason)
    _count_fallback(reason)
    log.info("ingot: a graph runs eagerly: %s", reason)
    return aot_eager(gm, list(example_inputs))


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
    if (name := _higher_order(gm)) is not None:
        return _by_aot_eager(gm, example_inputs, name, values.fallback)
    # A graph that switches gradients on by itself is left to eager.
    training = values.training and torch.is_grad_enabled()
    if not training and _may_enable_grad(gm) and _any_requires_grad(example_inputs):
        _say_once("ingot: inputs need a gradient and training is off; such graphs run eagerly")
        return gm.forward
    slots = [_Slot(node, value) for node, value in zip(placeholders, example_inputs, strict=True)]
    training = training and _any_requires_grad(example_inputs)
    if any(slot.scalar or (training and slot.symbol) for slot in slots):
        return _PerScalar(gm, slots, values, training)
    if any(slot.symbol or slot.sizes for slot in slots):
        return _Programs(gm, slots, values).first(example_inputs)
    return _compile_or_fall_back(gm, slots, example_inputs, values)
