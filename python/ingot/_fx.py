"""An FX graph from what was recorded, for backends that take one.

The recording's log holds the ATen calls in the order in which they were made, in-place operators
and views included: the graph makes the same calls on real tensors, so that running it has eager's
results and eager's effects. Costs some 20 µs a call, at compile time only.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64,
    5: torch.float16, 6: torch.float32, 7: torch.float64, 8: torch.complex32,
    9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
_FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last,
            3: torch.channels_last_3d}  # fmt: skip
# Symbolic integers as they are written in the log.
_ARITHMETIC: Mapping[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip
_EXTREMES: Mapping[str, Callable] = {"min": torch.sym_min, "max": torch.sym_max}
# PyTorch's C++ hands these types over as numbers; here they are for people to read.
_NAMED: Mapping[str, Mapping[int, Any]] = {
    "ScalarType": _DTYPES,
    "MemoryFormat": _FORMATS,
    "Layout": {0: torch.strided},
}


def operator_of(name: str) -> Any:
    """The operator that the log calls `aten::add.Tensor`."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


class _Builder:
    """A graph being written; knows which node holds which recorded tensor."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        self._of_constant: dict[int, torch.fx.Node] = {}
        self._sizes: dict[str, torch.fx.Node] = {}  # by text
        self._floats: set[torch.fx.Node] = set()

    def node(self, index: int) -> torch.fx.Node:
        return self._nodes[index]

    def add_input(self, index: int, name: str, example: torch.Tensor | float) -> None:
        node = self.graph.placeholder(name)
        if isinstance(example, float):  # read as TorchDynamo reads it
            node = self.graph.call_method("item", (node,))
            self._floats.add(node)
        self._nodes[index] = node

    def add_size(self, name: str) -> None:
        self._sizes[name] = self.graph.placeholder(name)

    def _size(self, text: str) -> Any:
        """The node of an integer that is written over the names of sizes."""
        return self._computed(ast.parse(text, mode="eval").body)

    def _computed(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Constant):
            return tree.value
        text = ast.unparse(tree)
        if text not in self._sizes:
            if isinstance(tree, ast.BinOp):
                target, operands = _ARITHMETIC[type(tree.op)], [tree.left, tree.right]
            elif isinstance(tree, ast.UnaryOp):
                target, operands = _ARITHMETIC[type(tree.op)], [tree.operand]
            else:
                target, operands = _EXTREMES[tree.func.id], tree.args
            values = tuple(self._computed(one) for one in operands)
            if not any(isinstance(one, torch.fx.Node) for one in values):
                return target(*values)
            self._sizes[text] = self.graph.call_function(target, values)
        return self._sizes[text]

    def add_call(self, name: str, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        if name == "ingot::set_grad_enabled":
            self.graph.call_function(torch._C._set_grad_enabled, tuple(arguments))
            return
        if name == "ingot::apply":
            self._add_function(*arguments, results)
            return
        target = operator_of(name)
        args, kwargs = [], {}
        given = list(zip(target._schema.arguments, arguments, strict=True))
        while given and _is_default(*given[-1]):
            given.pop()
        for row, value in given:
            value = self._written(_named(row, value))
            if not row.kwarg_only:
                args.append(value)
            elif not _is_default(row, value):
                kwargs[row.name] = value
        target = self._with_numbers(name, target, args)
        node = self.graph.call_function(target, tuple(args), kwargs)
        self._bind(node, results[0] if len(results) == 1 else list(results))

    def _with_numbers(self, name: str, target: Any, arguments: list[Any]) -> Any:
        """The overload for floats where tensors are asked for; some take them themselves."""
        formal = target._schema.arguments
        numbers = {
            row.name
            for row, value in zip(formal, arguments, strict=False)
            if str(row.type) == "Tensor"
            and isinstance(value, torch.fx.Node)
            and value in self._floats
        }
        plain = name.partition("::")[2].partition(".")[0]
        if not numbers or torch._C._should_allow_numbers_as_tensors(plain):
            return target
        wanted = [(row.name, "number" if row.name in numbers else str(row.type)) for row in formal]
        packet = target.overloadpacket
        for overload in map(packet.__getattr__, packet.overloads()):
            if [(row.name, str(row.type)) for row in overload._schema.arguments] == wanted:
                return overload
        raise NotImplementedError(f"a float in the place of a tensor in {name}")

    def _add_function(self, cls: type, arguments: list[Any], results: Sequence[Any]) -> None:
        """A custom `autograd.Function`. Tensors are the node's arguments; the rest is its own."""
        tensors: list[Any] = []

        def without_tensors(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(without_tensors(one) for one in value)
            if type(value).__name__ == "Shape":
                return _Shape(without_tensors(value.items))
            written = self._tensor(value)
            if written is None:
                return value
            tensors.append(written)
            return _Place(len(tensors) - 1)

        target = _applied(cls, without_tensors(arguments))
        self._bind(self.graph.call_function(target, tuple(tensors)), results[0])

    def _tensor(self, value: Any) -> torch.fx.Node | None:
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        if type(value).__name__ == "Size" and isinstance(getattr(value, "text", None), str):
            return self._size(value.text)
        return self._nodes[value.index] if _is_value(value) else None

    def _bind(self, node: torch.fx.Node, result: Any) -> None:
        """`result` is in `node`; parts of lists get nodes of their own."""
        index = getattr(result, "index", None)
        if isinstance(index, int):
            self._nodes[index] = node
        elif isinstance(result, (list, tuple)):
            for k, part in enumerate(result):
                if part is not None:
                    self._bind(self.graph.call_function(operator.getitem, (node, k)), part)

    def _written(self, value: Any) -> Any:
        """An argument as FX has it."""
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self._written(one) for one in value]
        if type(value).__name__ == "Size":
            return self._size(value.text)
        if isinstance(value, torch.device):  # has an index too
            return value
        index = getattr(value, "index", None)
        return self._nodes[index] if isinstance(index, int) else value

    def _constant(self, value: torch.Tensor) -> torch.fx.Node:
        if id(value) not in self._of_constant:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = value  # keeps it alive, so that the id stays its own
            self._of_constant[id(value)] = self.graph.get_attr(name)
        return self._of_constant[id(value)]


class _Place:
    """Where an argument of a custom function is a tensor of the call."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Shape:
    """Where it is a `torch.Size`."""

    def __init__(self, items: tuple) -> None:
        self.items = items


def _applied(cls: type, arguments: list[Any]) -> Callable:
    """`cls.apply` as a function of the tensors among its arguments.

    The classes of custom operators over lists have an `apply` of their own before it: here it is
    the one that autograd knows, whose arguments are what was recorded.
    """
    apply = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)

    def filled(value: Any, tensors: tuple) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(filled(one, tensors) for one in value)
        if isinstance(value, _Shape):
            return torch.Size(filled(value.items, tensors))
        return tensors[value.index] if isinstance(value, _Place) else value

    def function(*tensors: torch.Tensor) -> Any:
        return apply(*filled(arguments, tensors))

    function.__name__ = function.__qualname__ = f"{cls.__name__}_apply"
    return function


def _is_value(value: Any) -> bool:
    return type(value).__name__ == "Value" and isinstance(getattr(value, "index", None), int)


def _named(row: Any, value: Any) -> Any:
    """A dtype instead of the number that stands for it."""
    if type(value) is not int:
        return value
    names = _NAMED.get(str(row.real_type).removeprefix("Optional[").removesuffix("]"))
    return value if names is None else names.get(value, value)


def _is_default(row: Any, value: Any) -> bool:
    if not row.has_default_value() or isinstance(value, torch.Tensor):
        return False
    default = _named(row, row.default_value)
    value = _named(row, value)
    return type(default) is type(value) and default == value


def graph_module(
    calls: Sequence[tuple[str, Sequence[Any], Sequence[Any]]],
    examples: Mapping[int, torch.Tensor | float],
    outputs: Sequence[int | None],
    sizes: Iterable[str] = (),
) -> torch.fx.GraphModule:
    """The graph of a log. `calls`, `examples` and `outputs` as capture hands them to a backend.

    Takes the integers that `sizes` names, then the tensors of `examples`, in order, 0-dim ones of
    doubles for its floats, and returns a tuple of those that `outputs` names.
    """
    builder = _Builder()
    for name in sizes:
        builder.add_size(name)
    for position, (index, example) in enumerate(examples.items()):
        builder.add_input(index, f"arg{position}", example)
    for name, arguments, results in calls:
        builder.add_call(name, arguments, results)
    builder.graph.output(tuple(None if k is None else builder.node(k) for k in outputs))
    _drop_unused_copies(builder.graph)
    return torch.fx.GraphModule(builder.constants, builder.graph, "Recorded")


def _drop_unused_copies(graph: torch.fx.Graph) -> None:
    """PyTorch copies a result that a backward is going to need; the graph makes its own."""
    for node in reversed(list(graph.nodes)):
        if node.target is torch.ops.aten.detach.default and not node.users:
            graph.erase_node(node)


def below_autocast(compiled: Callable) -> Callable:
    """`compiled` with autocast off: the casts it made are calls of the log."""

    def run(*inputs: torch.Tensor) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return compiled(*inputs)
        with torch.autocast("cpu", enabled=False):
            return compiled(*inputs)

    return run
