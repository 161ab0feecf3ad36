"""The parent: starts a worker for each rival, lets them run in turns, and gathers the figures.

Turns are what makes ratios hold on a busy machine: in each round every rival makes a few calls, so
that a slow minute hits all of them. Workers that wait cost memory only.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from . import models


class WorkerFailed(Exception):
    """A worker answered no, died or took too long; the message says which."""


class Process:
    """A worker process and the pipe to it."""

    def __init__(self, caches: str, threads: int | None) -> None:
        read, write = os.pipe()
        environment = dict(os.environ)
        environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(caches, "inductor")
        environment["INGOT_CACHE_DIR"] = os.path.join(caches, "ingot")
        if threads:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ingot.bench.worker", str(write)], stdin=subprocess.PIPE,
            stdout=self._log, stderr=self._log, pass_fds=[write], env=environment, text=True,
            start_new_session=True,  # so that a rival's own helpers end with it
        )  # fmt: skip
        os.close(write)
        self._answers = os.fdopen(read)

    def ask(self, do: str, limit: float = 900, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, at most `limit` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"died before {do}: {self._last_line()}") from None
        with selectors.DefaultSelector() as ready:
            ready.register(self._answers, selectors.EVENT_READ)
            if not ready.select(limit):
                self.close()
                raise WorkerFailed(f"{do} took more than {limit:.0f} s")
        line = self._answers.readline()
        if not line:
            raise WorkerFailed(f"died during {do}: {self._last_line()}")
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise WorkerFailed(answer["why"])
        return answer

    def _last_line(self) -> str:
        self._process.wait(10)
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        return f"exit status {self._process.returncode}; {last}"

    def close(self) -> None:
        """End the process; it holds nothing that needs saving."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # what it never read
                self._process.stdin.close()
        self._answers.close()
        self._log.close()


@dataclass
class Figures:
    """What was measured of one rival on one model."""

    rival: str
    failed: str = ""
    cold_first_s: float | None = None
    warm_first_s: float | None = None
    second_s: float | None = None
    compile_s: float | None = None  # within the first call
    warm_compile_s: float | None = None
    graphs: int = 0
    fallbacks: int = 0
    reasons: list[str] = field(default_factory=list)
    median_ms: float | None = None
    fastest_ms: float | None = None
    peak_mib: float | None = None
    first_peak_mib: float | None = None
    error: float | None = None
    speedup: float | None = None  # eager's median over this one's, round by round
    round_medians_ms: list[float] = field(default_factory=list)


@dataclass
class Plan:
    """How much to measure."""

    rounds: int = 7
    seconds_a_turn: float = 0.25
    calls_a_turn: int = 20
    warm: bool = True
    threads: int | None = None


Say = Callable[[str], None]


def _reference(model: str, batch: int, dtype: str, folder: str, plan: Plan) -> list[torch.Tensor]:
    """The outputs of an fp64 run of the same rounded weights and inputs."""
    process = Process(folder, plan.threads)
    try:
        process.ask("prepare", model=model, batch=batch, dtype=dtype, rival="reference")
        process.ask("first")
        path = os.path.join(folder, "reference.pt")
        process.ask("output", path=path)
        return torch.load(path)[0]
    finally:
        process.close()


def _start(
    rival: str,
    case: dict[str, Any],
    folder: str,
    reference: list[torch.Tensor],
    plan: Plan,
    figures: Figures,
) -> Process | None:
    """Start a rival's worker, make its first calls and judge its outputs."""
    caches = os.path.join(folder, rival)
    process = Process(caches, plan.threads)
    try:
        process.ask("prepare", rival=rival, **case)
        first = process.ask("first")
        path = os.path.join(folder, f"{rival}.pt")
        process.ask("output", path=path)
    except WorkerFailed as failure:
        figures.failed = str(failure)
        process.close()
        return None
    figures.error = max(models.error(outputs, reference) for outputs in torch.load(path))
    os.remove(path)
    figures.cold_first_s, figures.compile_s = first["seconds"], first["compile_seconds"]
    figures.second_s = first["second_seconds"]
    figures.graphs, figures.fallbacks = first["graphs"], first.get("fallbacks", 0)
    figures.reasons = first.get("reasons", [])
    figures.peak_mib, figures.first_peak_mib = first["steady_peak_mib"], first["first_peak_mib"]
    if plan.warm:
        _warm(rival, case, caches, plan, figures)
    return process


def _warm(rival: str, case: dict[str, Any], caches: str, plan: Plan, figures: Figures) -> None:
    """The first call of a further process that finds the caches filled."""
    process = Process(caches, plan.threads)
    try:
        process.ask("prepare", rival=rival, **case)
        answer = process.ask("first")
        figures.warm_first_s = answer["seconds"]
        figures.warm_compile_s = answer["compile_seconds"]
    except WorkerFailed as failure:
        figures.failed = f"second process: {failure}"
    finally:
        process.close()


def _turns(
    processes: dict[str, Process], figures: dict[str, Figures], plan: Plan, say: Say
) -> None:
    """Rounds of timed calls, every rival in each."""
    calls = {}
    times: dict[str, list[float]] = {rival: [] for rival in processes}
    for rival, process in processes.items():
        once = min(process.ask("run", calls=2)["times"])
        calls[rival] = max(1, min(plan.calls_a_turn, int(plan.seconds_a_turn / max(once, 1e-9))))
    for turn in range(plan.rounds):
        say(f"round {turn + 1} of {plan.rounds}")
        for rival, process in processes.items():
            spent = process.ask("run", calls=calls[rival])["times"]
            times[rival] += spent
            figures[rival].round_medians_ms.append(statistics.median(spent) * 1e3)
    for rival, spent in times.items():
        figures[rival].median_ms = statistics.median(spent) * 1e3
        figures[rival].fastest_ms = min(spent) * 1e3
    if "eager" in processes:
        eager = figures["eager"].round_medians_ms
        for rival in processes:
            pairs = zip(eager, figures[rival].round_medians_ms, strict=True)
            figures[rival].speedup = statistics.median(one / other for one, other in pairs)


def measure(
    model: str, batch: int, dtype: str, against: list[str], plan: Plan, say: Say = lambda text: None
) -> dict[str, Any]:
    """All rivals on one model: a record ready for JSON."""
    started = time.perf_counter()
    folder = tempfile.mkdtemp(prefix="ingot-bench-")
    case = {"model": model, "batch": batch, "dtype": dtype}
    figures = {rival: Figures(rival) for rival in against}
    processes: dict[str, Process] = {}
    try:
        say("fp64 reference")
        reference = _reference(model, batch, dtype, folder, plan)
        for rival in against:
            say(f"first call of {rival}")
            process = _start(rival, case, folder, reference, plan, figures[rival])
            if process is not None:
                processes[rival] = process
        try:
            _turns(processes, figures, plan, say)
        except WorkerFailed as failure:
            for one in figures.values():
                one.failed = one.failed or (f"in turns: {failure}" if one.median_ms is None else "")
    except WorkerFailed as failure:
        for one in figures.values():
            one.failed = f"no reference: {failure}"
    finally:
        for process in processes.values():
            process.close()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - started
    return {**case, "seconds": seconds, "rivals": [vars(one) for one in figures.values()]}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    name = "unknown processor"
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return {"processor": name, "cpus": len(os.sched_getaffinity(0)), "torch": torch.__version__,
            "threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d")}  # fmt: skip
