"""How often capture breaks, beside TorchDynamo: `python -m ingot.bench.breaks [names]`.

Prints a table for documents: `ingot.explain` and `torch._dynamo.explain` on the same models and
inputs, with whichever capture is chosen (INGOT_CAPTURE=own). Without names: the main list and the
small models. Each row takes seconds, most of it TorchDynamo's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import ingot

from . import models
from .small import SMALL


def case_of(name: str) -> tuple[torch.nn.Module, tuple, dict[str, Any]]:
    """The module of a name with its arguments; `small/NAME` is one of the small models."""
    if name.startswith("small/"):
        small = SMALL[name.removeprefix("small/")]
        return small.build(), (), small.arguments()
    case = models.build(name, 1, "fp32")
    return case.module, case.args, case.kwargs


def explained(explain: Callable, name: str) -> tuple[int, int, float, list[str]]:
    """Graphs, breaks, seconds, and the reasons of the breaks."""
    module, args, kwargs = case_of(name)
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        found = explain(module)(*args, **kwargs)
    seconds = time.perf_counter() - start
    reasons = [str(one.reason).strip().splitlines()[0] for one in found.break_reasons]
    return found.graph_count, max(found.graph_break_count, 0), seconds, reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of ingot.bench, or small/NAME")
    parser.add_argument("--reasons", action="store_true", help="also print why Ingot broke")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    names = arguments.names or [*models.MAIN, *(f"small/{name}" for name in SMALL)]
    # Ours first: TorchDynamo's explain leaves its own functions in PyTorch's classes.
    ours = {name: explained(ingot.explain, name) for name in names}
    import torch._dynamo

    print("| model | Ingot: graphs | breaks | s | TorchDynamo: graphs | breaks | s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        rows = [ours[name], explained(torch._dynamo.explain, name)]
        cells = [f"{graphs} | {breaks} | {seconds:.2f}" for graphs, breaks, seconds, _ in rows]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if arguments.reasons:
        for name in names:
            print(*(f"{name}: {reason}" for reason in ours[name][3]), sep="\n")


if __name__ == "__main__":
    main()
