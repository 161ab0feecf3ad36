"""`python -m ingot.bench.updates`: optimizers' updates of a model beside the bandwidth of a copy.

An update reads and writes each parameter and each state once and reads each gradient: so many
bytes, through memory, cannot take less time than a copy that moves as many. Eager's update, the
compiled one and a copy past the caches take turns in one process; the share is the median of the
turns' ratios, which a machine with other work changes little. Eager's, which is the slowest by far,
takes every fifth turn only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import ingot

from .training import MODELS, build

# Kind, settings, and how often an update touches each parameter's size in memory.
UPDATES: dict[str, tuple[type[torch.optim.Optimizer], dict, int]] = {
    "adam": (torch.optim.Adam, {"lr": 1e-4}, 7),
    "adamw": (torch.optim.AdamW, {"lr": 1e-4}, 7),
    "sgd": (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9}, 5),
}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(
    model: torch.nn.Module, name: str, rounds: int, seconds: float = 30.0
) -> dict[str, float]:
    """Bytes a second of eager's update, the compiled one and a copy; the share of the copy's.

    No round begins after `seconds`, as long as there are three.
    """
    end = time.perf_counter() + seconds
    kind, settings, touches = UPDATES[name]
    parameters = [p for p in model.parameters() if p.requires_grad]
    count = sum(p.numel() for p in parameters)
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-3
    optimizer = kind(parameters, **settings)
    compiled = ingot.compile(optimizer.step)
    source, target = torch.randn(count), torch.empty(count)
    calls = (compiled, lambda: target.copy_(source))
    work = 4 * touches * count
    optimizer.step()  # makes the states
    for _ in range(3):
        for call in calls:
            call()
    eager, rates = [], []
    while len(rates) < rounds and (len(rates) < 3 or time.perf_counter() < end):
        if len(rates) % 5 == 0:
            eager.append(work / _seconds(optimizer.step))
        rates.append([w / _seconds(call) for w, call in zip((work, 8 * count), calls, strict=True)])
    mine, copy = (statistics.median(r) for r in zip(*rates, strict=True))
    share = statistics.median(r[0] / r[1] for r in rates)
    return {"eager": statistics.median(eager), "ingot": mine, "copy": copy, "share": share,
            "rounds": len(rates)}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ingot.bench.updates", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="bert-base")
    parser.add_argument("--optimizers", default="adam,adamw", help=",".join(UPDATES))
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="for an optimizer, about")
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    settings = parser.parse_args(arguments)
    model, _ = build(settings.model, 1)
    print(f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}, {settings.model}")
    print(
        f"{'optimizer':<10} {'eager GB/s':>10} {'Ingot GB/s':>10} {'copy GB/s':>10} "
        f"{'of copy':>8} {'rounds':>6}"
    )
    rows = {}
    for name in settings.optimizers.split(","):
        row = rows[name] = measure(model, name, settings.rounds, settings.seconds)
        print(f"{name:<10} {row['eager'] / 1e9:>10.2f} {row['ingot'] / 1e9:>10.2f} "
              f"{row['copy'] / 1e9:>10.2f} {row['share']:>8.0%} "
              f"{row['rounds']:>6}", flush=True)  # fmt: skip
    if settings.json:
        with open(settings.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
