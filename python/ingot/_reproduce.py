"""A program that reproduces a graph: its code and inputs of the same sizes and types.

Written when a graph cannot be compiled, and for every graph under `INGOT_DEBUG`. Never raises: a
full disk or an unwritable folder costs the file, not the run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_HEAD = '''"""{reason}"""

import math  # noqa: F401
from math import inf, nan  # noqa: F401

import torch
from torch import device  # noqa: F401
{imports}
NoneType = type(None)


def make(size, stride, dtype, where):
    """A tensor of this layout with small, seeded values."""
    if not size:
        return torch.ones((), dtype=dtype, device=where)
    room = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(room, device=where).to(dtype)
    else:
        flat = torch.randint(0, 2, (room,), device=where).to(dtype)
    return flat.as_strided(size, stride)


class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
{attributes}
'''

_TAIL = """

if __name__ == "__main__":
    import ingot

    torch.manual_seed(0)
    inputs = [
{inputs}
    ]
    with torch.no_grad():
        expected = Graph()(*inputs)
        actual = ingot.compile(Graph(), options={{"fallback": False}})(*inputs)
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, equal_nan=True)
    print("equal")
"""


def _make(value: torch.Tensor) -> str:
    return f'make({tuple(value.shape)}, {tuple(value.stride())}, {value.dtype}, "{value.device}")'


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.dim() == 0 and value.device.type == "cpu":
        return f"torch.tensor({value.item()!r}, dtype={value.dtype})"
    if isinstance(value, torch.nn.Parameter):
        return f"torch.nn.Parameter({_make(value)}, requires_grad=False)"
    return _make(value)


def _attributes(gm: torch.fx.GraphModule) -> list[str]:
    """Statements that give the module the tensors which its graph reads by name."""
    lines = []
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = gm
            for part in node.target.split("."):
                value = getattr(value, part)
            if isinstance(value, torch.Tensor) and "." not in node.target:
                lines.append(f"        self.{node.target} = {_make(value)}")
    return lines


def _imports(gm: torch.fx.GraphModule) -> list[str]:
    """Imports of the graph's globals beyond torch itself."""
    known = {"torch", "device", "inf", "nan", "NoneType", "math"}
    lines = []
    for name, value in gm.graph.python_code("self").globals.items():
        module, qualified = getattr(value, "__module__", None), getattr(value, "__name__", None)
        if name in known or not module or not qualified:
            continue
        lines.append(f"from {module} import {qualified} as {name}")
    return lines


def program_text(gm: torch.fx.GraphModule, inputs: Sequence[Any], reason: str) -> str:
    """The text of the program; running it compares Ingot with eager."""
    code = "\n".join(f"    {line}" if line.strip() else "" for line in gm.code.strip().splitlines())
    rows = "\n".join(f"        {_describe(value)}," for value in inputs)
    head = _HEAD.format(
        reason=reason.replace("\\", "\\\\").replace('"', "'"),
        imports="\n".join(_imports(gm)),
        attributes="\n".join(_attributes(gm)),
    )
    return head + "\n" + code + _TAIL.format(inputs=rows)


def write_reproducer(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], reason: str, options: Any
) -> str | None:
    """Write the program into the debug folder, or the user's temporary one; its path, or None."""
    try:
        text = program_text(gm, inputs, reason)
        folder = Path(options.debug or Path(tempfile.gettempdir()) / f"ingot-{os.getuid()}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The reason is not part of the name: one graph, one file.
        name = hashlib.sha256(program_text(gm, inputs, "").encode()).hexdigest()[:12]
        path = folder / f"graph_{name}.py"
        path.write_text(text)
        return str(path)
    except Exception:  # the run goes on without the file
        return None
