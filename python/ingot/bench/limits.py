"""`python -m ingot.bench.limits`: kernels beside the machine's limits; the compiler's own costs.

Memory-bound kernels beside the copy bandwidth, matmuls beside the peak of fused multiply-adds, the
cost of a call, and how compile time grows with the number of layers. The machine's limits are
measured between the kernels, since they move with whatever else the machine does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import ingot

from . import models

_PEAK = r"""
typedef float v16 __attribute__((vector_size(64)));
float fma_loop(long rounds) {
    v16 a[12], b = {0}, c = {0};
    /* No start is the fixed point of a * b + c, whose chain a compiler would drop. */
    for (int i = 0; i < 12; ++i) a[i] = b + ((float)i + 2.5f);
    for (int i = 0; i < 16; ++i) b[i] = 0.999f, c[i] = 0.001f;
    for (long r = 0; r < rounds; ++r)
        for (int i = 0; i < 12; ++i) a[i] = a[i] * b + c;
    float s = 0;
    for (int i = 0; i < 12; ++i)
        for (int j = 0; j < 16; ++j) s += a[i][j];
    return s;
}
"""


_OPTIONS = ["-O3", "-march=native", "-ffast-math", "-fPIC"]


def best(call: Callable[[], Any], seconds: float = 0.3, least: int = 3) -> float:
    """The shortest of repeated calls, in seconds."""
    call()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return min(times)


class Machine:
    """The limits of this machine, measured when asked."""

    def __init__(self) -> None:
        self._source = torch.ones(32 << 20)
        self._target = torch.ones(32 << 20)
        self._fma = self._build()

    @staticmethod
    def _build() -> Any:
        """The loop of multiply-adds, through the system's C compiler; None where there is none."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="ingot-peak-"))
        try:
            (folder / "peak.c").write_text(_PEAK)
            command = [compiler, *_OPTIONS, "-shared", "-o", str(folder / "peak.so"),
                       str(folder / "peak.c")]  # fmt: skip
            if subprocess.run(command, capture_output=True).returncode:
                return None
            loop = ctypes.CDLL(str(folder / "peak.so")).fma_loop
            loop.argtypes, loop.restype = [ctypes.c_long], ctypes.c_float
            return loop
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def copy_bandwidth(self) -> float:
        """Bytes a second of a copy past the caches, read and written bytes both counted."""
        seconds = best(lambda: self._target.copy_(self._source))
        return 2 * self._source.nbytes / seconds

    def fma_peak(self) -> float | None:
        """Floating-point operations a second in fp32 on all threads at once."""
        if self._fma is None:
            return None
        threads, rounds = torch.get_num_threads(), 4_000_000
        with ThreadPoolExecutor(threads) as pool:
            seconds = best(lambda: list(pool.map(self._fma, [rounds] * threads)))
        return threads * rounds * 12 * 16 * 2 / seconds


def _residual_gelu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + y)


def memory_bound(machine: Machine) -> list[dict[str, Any]]:
    """Kernels that should run as fast as memory lets them."""
    rows, columns = 4096, 4096
    x, y = torch.randn(rows, columns), torch.randn(rows, columns)
    norm = torch.nn.LayerNorm(columns).eval()
    one = x.nbytes
    kernels: list[tuple[str, Callable, tuple, int]] = [
        ("softmax", lambda x: torch.softmax(x, -1), (x,), 2 * one),
        ("layer norm", norm, (x,), 2 * one),
        ("residual + gelu", _residual_gelu, (x, y), 3 * one),
        ("trig toy", models.TrigToy(), (x,), 2 * one),
    ]
    results = []
    for name, function, arguments, size in kernels:
        torch.compiler.reset()
        compiled = ingot.compile(function)
        limits, speeds, eager = [], [], []
        for _ in range(3):
            limits.append(machine.copy_bandwidth())
            speeds.append(size / best(lambda: compiled(*arguments)))  # noqa: B023
            eager.append(size / best(lambda: function(*arguments)))  # noqa: B023
        share = statistics.median(s / limit for s, limit in zip(speeds, limits, strict=True))
        results.append({
            "name": f"{name} {rows}x{columns}", "unit": "GB/s", "value": max(speeds) / 1e9,
            "eager": max(eager) / 1e9, "limit": max(limits) / 1e9, "share": share,
        })  # fmt: skip
    return results


SHAPES = [(1024, 1024, 1024), (128, 768, 768), (128, 3072, 768), (128, 768, 3072),
          (1024, 3072, 768), (1024, 768, 3072)]  # fmt: skip


def matmuls(machine: Machine) -> list[dict[str, Any]]:
    """`linear` with a frozen weight: 1024 cubed, and BERT-base's at batch 1 and 8."""
    results = []
    for m, n, k in SHAPES:
        torch.compiler.reset()
        linear, x = torch.nn.Linear(k, n, bias=False), torch.randn(m, k)
        compiled, work = ingot.compile(linear), 2 * m * n * k
        limits, speeds, eager = [], [], []
        for _ in range(3):
            limits.append(machine.fma_peak())
            speeds.append(work / best(lambda: compiled(x)))  # noqa: B023
            eager.append(work / best(lambda: linear(x)))  # noqa: B023
        share = None
        if None not in limits:
            share = statistics.median(s / limit for s, limit in zip(speeds, limits, strict=True))
        results.append({
            "name": f"linear {m}x{n}x{k}", "unit": "GFLOP/s", "value": max(speeds) / 1e9,
            "eager": max(eager) / 1e9, "limit": max(limits) / 1e9 if share else None,
            "share": share,
        })  # fmt: skip
    return results


def call_cost(calls: int = 20_000, seconds: float = 1.0) -> list[dict[str, Any]]:
    """Microseconds of `x + 1` on 8 numbers: the program alone, with Dynamo's guards, and eager."""
    torch.compiler.reset()
    programs: list[Callable] = []

    def spy(gm: Any, example_inputs: Sequence[Any]) -> Callable:
        programs.append(ingot.dynamo_backend(gm, example_inputs))
        return programs[-1]

    x = torch.randn(8)
    compiled = torch.compile(lambda x: x + 1, backend=spy)
    compiled(x)
    program = programs[0]

    def cost(call: Callable[[], Any]) -> float:
        return 1e6 / calls * best(call, seconds)

    def loop(function: Callable, argument: torch.Tensor) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(calls):
                function(argument)

        return run

    eager = cost(loop(lambda x: x + 1, x))
    return [
        {
            "name": "x + 1, the program",
            "unit": "us",
            "value": cost(loop(program, x)),
            "eager": eager,
        },
        {
            "name": "x + 1, with guards",
            "unit": "us",
            "value": cost(loop(compiled, x)),
            "eager": eager,
        },
    ]


def growth(layers: Sequence[int]) -> list[dict[str, Any]]:
    """Compile milliseconds a layer of ever deeper BERTs (narrow ones: the graph is what counts)."""
    transformers = models.import_transformers()
    results = []
    for count in layers:
        torch.compiler.reset()
        config = transformers.BertConfig(num_hidden_layers=count, hidden_size=256,
                                         num_attention_heads=4, intermediate_size=1024)  # fmt: skip
        module = transformers.BertModel(config).eval()
        before = ingot.stats().compile_seconds
        ingot.compile(module)(torch.randint(0, 1000, (1, 128)))
        seconds = ingot.stats().compile_seconds - before
        name = f"compile BERT, {count} layers"
        results.append({"name": name, "unit": "ms/layer", "value": seconds * 1e3 / count})
    return results


def show(row: dict[str, Any]) -> str:
    """A line of the table."""
    line = f"{row['name']:<30} {row['value']:>9.2f} {row['unit']:<8}"
    if row.get("eager"):
        line += f"   eager {row['eager']:>8.2f}"
    if row.get("limit"):
        line += f"   limit {row['limit']:>8.2f}   {row['share']:>5.0%} of the limit"
    return line


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(prog="python -m ingot.bench.limits", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    parser.add_argument(
        "--layers", default="6,12,24,48,96", help="depths of the compile-time series"
    )
    settings = parser.parse_args(arguments)
    machine, results = Machine(), []
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="ingot-limits-") as cache:
        # Compile times are those of an empty cache.
        print(f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}", flush=True)
        os.environ["INGOT_CACHE_DIR"] = cache
        depths = [int(n) for n in settings.layers.split(",") if n]
        for part in (lambda: memory_bound(machine), lambda: matmuls(machine), call_cost,
                     lambda: growth(depths)):  # fmt: skip
            rows = part()
            results += rows
            print("\n".join(show(row) for row in rows), flush=True)
    print(f"graphs that ran eagerly: {ingot.stats().fallbacks}")
    if settings.json:
        Path(settings.json).write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
