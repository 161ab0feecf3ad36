"""What a call costs beside the work it does: `python -m ingot.bench.calls`.

Small programs whose arithmetic is next to nothing, called again and again by eager, by
`torch.compile` and by Ingot in one process, in turn: the best of several rounds each, in
microseconds. `--memory` makes ten million calls and a thousand compilations instead and prints the
process's memory along the way; it takes some minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ingot

from . import models
from .limits import best


def add_one() -> tuple[Callable, tuple, dict]:
    """`x + 1` on 8 elements."""
    return (lambda x: x + 1), (torch.randn(8),), {}


def narrow_bert() -> tuple[Callable, tuple, dict]:
    """A 12-layer BERT of width 16 on 4 tokens: all of it is overhead."""
    transformers = models.import_transformers()
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=12, num_attention_heads=2, intermediate_size=32
    )
    module = transformers.BertModel(config).eval()
    tokens = torch.randint(0, 1000, (1, 4))
    return module, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def deep_module() -> tuple[Callable, tuple, dict]:
    """200 modules in a chain that return what they get: guards and dispatch alone."""
    module = torch.nn.Sequential(*[torch.nn.Dropout() for _ in range(200)]).eval()
    return module, (torch.randn(8),), {}


PROGRAMS = {"x + 1": add_one, "BERT 12x16": narrow_bert, "200 modules": deep_module}


def rivals(program: Callable) -> dict[str, Callable]:
    """The program by everybody who runs it."""
    return {
        "eager": program,
        "torch.compile": torch.compile(program),
        "Ingot, TorchDynamo's capture": ingot.compile(program, options={"capture": "dynamo"}),
        "Ingot, own capture": ingot.compile(program, options={"capture": "own"}),
    }


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """By program and rival: microseconds a call."""
    found: dict[str, dict[str, float]] = {}
    for name, make in PROGRAMS.items():
        program, args, kwargs = make()
        row: dict[str, list[float]] = {}
        with torch.no_grad():
            everybody = rivals(program)
            for _ in range(rounds):
                for rival, function in everybody.items():
                    seconds = best(lambda f=function: f(*args, **kwargs), 0.2)  # noqa: B023
                    row.setdefault(rival, []).append(seconds * 1e6)
            captured = everybody["Ingot, own capture"]
            captured = getattr(captured, "_ingot_call", captured)
            row["its guards alone"] = [captured.guard_seconds(*args, **kwargs) * 1e6]
        found[name] = {rival: min(times) for rival, times in row.items()}
    return found


def resident() -> float:
    """The process's memory in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def memory(calls: int, compilations: int) -> dict[str, list[float]]:
    """The process's memory in MB at eleven points of many calls and of many compilations."""
    x = torch.randn(8)
    function = ingot.compile(lambda x: (x + 1).relu(), options={"capture": "own"})
    found: dict[str, list[float]] = {"calls": [], "compilations": []}
    with torch.no_grad():
        for _ in range(11):
            for _ in range(calls // 10):
                function(x)
            found["calls"].append(resident())
        for part in range(11):
            for k in range(compilations // 10):
                scope: dict[str, Any] = {}
                exec(f"def f(x):\n    return (x * {part * compilations + k}.5).sin() + 1", scope)
                ingot.compile(scope["f"], options={"capture": "own"})(x)
            ingot.reset()
            gc.collect()
            found["compilations"].append(resident())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="memory over time instead")
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--compilations", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    if arguments.memory:
        figures: dict = memory(arguments.calls, arguments.compilations)
        for name, values in figures.items():
            print(f"{name}: " + " ".join(f"{value:.0f}" for value in values) + " MB")
    else:
        figures = measure(arguments.rounds)
        header = list(next(iter(figures.values())))
        print("| µs a call | " + " | ".join(header) + " |")
        print("| --- |" + " --- |" * len(header))
        for name, row in figures.items():
            print(f"| {name} | " + " | ".join(f"{row[rival]:.2f}" for rival in header) + " |")
    print(f"{time.perf_counter() - start:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
