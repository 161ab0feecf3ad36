"""Example inputs with symbolic sizes and floats, for backends that take FX graphs.

A graph whose sizes are symbolic comes to its backend as one of `torch.compile`'s does: sizes as
PyTorch's symbolic integers, tensors without data whose sizes are made of them; a float as a 0-dim
tensor of doubles whose `item()` is a symbolic one. What the backend decides by them (two sizes are
equal, one is a number) is kept by PyTorch and asked at each call with other numbers. Costs some
milliseconds a graph, and nothing at a call with the last numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import sympy
import torch
from torch._guards import GuardSource, Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


class _Size(Source):
    """Where PyTorch is told that a symbol comes from; only its name is ever asked for."""

    def __init__(self, name: str) -> None:
        self._text = name

    @cached_property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL

    @property
    def _name_template(self) -> str:
        return self._text


class Examples:
    """The examples of a graph. `sizes`: names and numbers of the symbols; `given`: tensors and
    floats; `shapes`: of each tensor its sizes and strides over those names, or None where they are
    numbers."""

    def __init__(
        self, sizes: Mapping[str, int], given: Sequence[torch.Tensor | float], shapes: Sequence[Any]
    ) -> None:
        self._env = ShapeEnv(duck_shape=False)
        mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self._symbols: dict[str, sympy.Symbol] = {}
        self._integers: dict[str, Any] = {}
        for name, number in sizes.items():
            source = _Size(name)
            symbol = self._env.create_symbol(number, source, dynamic_dim=DimDynamic.DYNAMIC)
            self._symbols[name] = symbol
            self._integers[name] = self._env.create_symintnode(symbol, hint=number, source=source)
        self.inputs: list[Any] = list(self._integers.values())
        self._floats: dict[int, sympy.Symbol] = {}  # by place among `given`
        for place, (one, shape) in enumerate(zip(given, shapes, strict=True)):
            if isinstance(one, float):
                self.inputs.append(self._fake_float(mode, one, place))
            else:
                self.inputs.append(self._fake(mode, one, shape))
        self._served: set[tuple[float, ...]] = set()
        self._guards = -1

    def _fake(self, mode: FakeTensorMode, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        if shape is None:
            return mode.from_tensor(tensor, static_shapes=True)
        sizes, strides = ([self._integer(one) for one in part] for part in shape)
        with mode:
            fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
        return fake.requires_grad_(tensor.requires_grad)

    def _fake_float(self, mode: FakeTensorMode, number: float, place: int) -> torch.Tensor:
        source = _Size(f"float{place}")
        symbol = self._env.create_unspecified_symbol(number, source, DimDynamic.DYNAMIC)
        self._floats[place] = symbol
        with mode:
            fake: Any = torch.empty((), dtype=torch.float64)
        fake.item_memo = self._env.create_symfloatnode(symbol, hint=number, source=source)
        return fake

    def _integer(self, written: int | str) -> Any:
        if isinstance(written, int):
            return written
        functions = {"min": torch.sym_min, "max": torch.sym_max}
        return eval(written, {"__builtins__": {}}, {**functions, **self._integers})

    def _is_fixed(self, symbol: sympy.Symbol) -> bool:
        return isinstance(self._env.replacements.get(symbol), sympy.Number)

    @property
    def fixes(self) -> list[str]:
        """Sizes that the backend has needed as numbers."""
        return [name for name, symbol in self._symbols.items() if self._is_fixed(symbol)]

    @property
    def fixes_floats(self) -> list[int]:
        """The places of such floats."""
        return [place for place, symbol in self._floats.items() if self._is_fixed(symbol)]

    def serves(self, *numbers: float) -> bool:
        """Whether all that the backend has decided holds for these sizes and floats."""
        guards = self._env.guards
        if len(guards) != self._guards:  # a backward may be compiled later
            self._served.clear()
            self._guards = len(guards)
        if numbers in self._served:
            return True
        if not all(map(math.isfinite, numbers)):
            return False
        symbols = [*self._symbols.values(), *self._floats.values()]
        values = dict(zip(symbols, numbers, strict=True))
        if not all(guard.expr.subs(values) == sympy.true for guard in guards):
            return False
        if len(self._served) < 1000:
            self._served.add(numbers)
        return True
