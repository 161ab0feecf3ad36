"""`python -m ingot.bench.kernels`: single kernels against the machine's limits.

Memory-bound kernels are quoted as a share of the bandwidth of a copy that runs beside them in the
same process, in turns; matrix products as GFLOP/s beside PyTorch's. Sizes are past the cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

import ingot


@dataclass
class Row:
    """One kernel: medians in seconds, and what they come to."""

    name: str
    eager: float
    ingot: float
    copy: float  # of as many bytes as the kernel must move
    work: float  # bytes, or floating-point operations
    unit: str  # GB/s or GFLOP/s

    @property
    def rate(self) -> float:
        return self.work / self.ingot / 1e9

    @property
    def share_of_copy(self) -> float:
        return self.copy / self.ingot


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _in_turns(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    for call in calls:
        call()
        call()
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for k, call in enumerate(calls):
            taken[k].append(_time(call))
    return [statistics.median(t) for t in taken]


def _toy(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.sin(x) ** 2 + torch.cos(x) ** 2 * x
    return torch.softmax(F.gelu(x), -1)


def memory_bound(rows: int, columns: int) -> dict[str, tuple[Callable, tuple, int]]:
    """Name: the function, its inputs, and how often it must touch [rows, columns] floats."""
    x, r = torch.randn(rows, columns), torch.randn(rows, columns)
    w, b = torch.randn(columns), torch.randn(columns)
    return {
        "double": (lambda x: x * 2, (x,), 2),
        "residual+gelu": (lambda x, r: F.gelu(x + r), (x, r), 3),
        "layer norm": (lambda x, w, b: F.layer_norm(x, (columns,), w, b), (x, w, b), 2),
        "residual+layer norm": (
            lambda x, r, w, b: F.layer_norm(x + r, (columns,), w, b), (x, r, w, b), 3),
        "softmax": (lambda x: torch.softmax(x, -1), (x,), 2),
        "row sum": (lambda x: x.sum(-1), (x,), 1),
        "trig toy": (_toy, (x,), 2),
    }  # fmt: skip


SHAPES = {
    "1024x1024x1024": (1024, 1024, 1024),
    "128x768x768": (128, 768, 768),
    "128x768x3072": (128, 768, 3072),
    "128x3072x768": (128, 3072, 768),
}


def measure(rows: int, columns: int, rounds: int) -> list[Row]:
    """Every kernel, eager and compiled in turns beside a copy of as many bytes."""
    out = []
    with torch.no_grad():
        for name, (fn, args, touches) in memory_bound(rows, columns).items():
            count = rows * columns * touches // 2  # a copy touches each element twice
            source, target = torch.randn(count), torch.empty(count)
            compiled = ingot.compile(fn)
            calls = [
                lambda f=fn, a=args: f(*a),
                lambda f=compiled, a=args: f(*a),
                lambda s=source, t=target: t.copy_(s),
            ]
            eager, mine, copy = _in_turns(calls, rounds)
            out.append(Row(name, eager, mine, copy, rows * columns * touches * 4, "GB/s"))
        for name, (m, k, n) in SHAPES.items():
            linear = torch.nn.Linear(k, n)
            x = torch.randn(m, k)
            compiled = ingot.compile(linear)
            calls = [lambda f=linear, x=x: f(x), lambda f=compiled, x=x: f(x)]
            eager, mine = _in_turns(calls, rounds * 4)
            out.append(Row("linear " + name, eager, mine, 0.0, 2.0 * m * k * n, "GFLOP/s"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ingot.bench.kernels", description=__doc__)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    settings = parser.parse_args()
    rows = measure(settings.rows, settings.columns, settings.rounds)
    print(f"{'kernel':24s} {'eager ms':>9s} {'Ingot ms':>9s} {'rate':>16s} {'of copy':>8s}")
    for row in rows:
        share = f"{100 * row.share_of_copy:.0f} %" if row.copy else ""
        rate = f"{row.rate:.1f} {row.unit}"
        times = f"{row.eager * 1e3:9.3f} {row.ingot * 1e3:9.3f}"
        print(f"{row.name:24s} {times} {rate:>16s} {share:>8s}")
    if settings.json:
        with open(settings.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
