"""What capture makes of a program: `ingot.explain(f)(*args)`, `torch._dynamo.explain`'s fields."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Break:
    """One place where a graph ended early: why, and the user's frames, innermost last."""

    reason: str
    user_stack: list[traceback.FrameSummary] = field(default_factory=list)
    graph_break: bool = True


@dataclass
class Explanation:
    """The graphs of one call, their breaks, operators and guards; prints as a short report."""

    graphs: list[torch.fx.GraphModule]
    graph_count: int
    graph_break_count: int
    break_reasons: list[Break]
    op_count: int
    ops_per_graph: list[list[Any]] | None = None
    out_guards: list[Any] | None = None
    compile_times: str | None = None

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, one in enumerate(self.break_reasons, 1):
            lines += [f"  Break Reason {number}:", f"    Reason: {one.reason}", "    User Stack:"]
            for frame in traceback.format_list(one.user_stack):
                lines += [f"    {line}" for line in frame.splitlines()]
        for title, rows in (("Ops", self.ops_per_graph), ("Guard", self.out_guards)):
            if rows is not None:
                lines.append("Ops per Graph:" if title == "Ops" else "Out Guards:")
                for number, row in enumerate(rows, 1):
                    lines.append(f"  {title} {number}:")
                    lines += [f"    {one}" for one in (row if title == "Ops" else [row])]
        if self.compile_times is not None:
            lines.append(f"Compile Times: {self.compile_times}")
        return "\n".join(lines) + "\n"


def frame_of(line: str) -> traceback.FrameSummary | None:
    """A place that capture writes as `file:line in function`; None for any other text."""
    found = re.fullmatch(r"(.*):(\d+) in (.*)", line)
    return traceback.FrameSummary(found[1], int(found[2]), found[3]) if found else None


def explain(function: Callable, *extra_args: Any, **extra_kwargs: Any) -> Any:
    """Run `function` once while it is being captured and say what happened.

    `explain(f)(*args, **kwargs)` returns an `Explanation`; the function runs for real, effects and
    all. Nothing that was compiled before is used or changed.
    """
    from . import _doors
    from ._original import original
    from ._settings import Settings

    function = original(function)

    def inner(*args: Any, **kwargs: Any) -> Explanation:
        return _doors.current().explain(function, Settings(), args, kwargs)

    if extra_args or extra_kwargs:
        return inner(*extra_args, **extra_kwargs)
    return inner
