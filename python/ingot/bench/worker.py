"""A rival's process: builds one model and answers the parent's commands, a JSON object a line.

Commands: `prepare` (model, batch, dtype, rival), `first`, `run` (calls), `output` (path), `exit`.
Every answer has `ok`; a failed one says `why`. Commands come on standard input, answers leave on a
descriptor of their own, so that nothing a library prints can mix with them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from . import models, rivals


def _status(key: str) -> float:
    """A memory figure of this process in MiB (`VmRSS` or the peak, `VmHWM`)."""
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    return float("nan")


def _forget_peak() -> None:
    """Start the peak again at what is resident now, where the kernel lets us."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


class Worker:
    """The state between commands: the case and the prepared callable."""

    def __init__(self) -> None:
        self._timer = rivals.Timer()
        self._call: Callable[[], Any] = lambda: None
        self._output: Any = None

    def prepare(self, model: str, batch: int, dtype: str, rival: str) -> dict[str, Any]:
        """Build the model; nothing is compiled yet. The rival `reference` is eager in fp64."""
        reference = rival == "reference"
        case = models.build(model, batch, dtype, reference)
        rival = "eager" if reference else rival
        self._call = rivals.prepare(rival, case, dtype, self._timer)
        self._rival = rival
        return {"resident_mib": _status("VmRSS")}

    def first(self) -> dict[str, Any]:
        """The first call, which compiles; the peak of memory from here to its end; the second call.

        What a compiler does beside the calls is over when this returns, and in use.
        """
        _forget_peak()
        before = _status("VmRSS")
        start = time.perf_counter()
        self._output = self._call()
        seconds = time.perf_counter() - start
        peak = _status("VmHWM")
        start = time.perf_counter()
        self._call()  # whatever is left to warm up
        second = time.perf_counter() - start
        if self._rival == "ingot":
            from ingot import _ingot

            _ingot.wait_for_background()
            self._call()  # goes over to what that has made
        _forget_peak()
        self._call()
        answer = {"seconds": seconds, "second_seconds": second,
                  "compile_seconds": self._timer.seconds,
                  "graphs": self._timer.graphs, "resident_before_mib": before,
                  "first_peak_mib": peak, "steady_peak_mib": _status("VmHWM")}  # fmt: skip
        if self._rival == "ingot":
            import ingot

            stats = ingot.stats()
            answer |= {"fallbacks": stats.fallbacks, "reasons": stats.reasons}
        return answer

    def run(self, calls: int) -> dict[str, Any]:
        """One call to find the caches again, then `calls` timed ones."""
        self._call()
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            self._call()
            times.append(time.perf_counter() - start)
        return {"times": times}

    def output(self, path: str) -> dict[str, Any]:
        """Save the floating-point outputs of the first call and of a further one."""
        again = self._call()
        torch.save([models.tensors_of(self._output), models.tensors_of(again)], path)
        self._output = None
        return {}


def main() -> None:
    """Answer commands until the parent closes the pipe."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    worker = Worker()
    with torch.no_grad():
        for line in sys.stdin:
            command = json.loads(line)
            name = command.pop("do")
            if name == "exit":
                break
            try:
                answer = {"ok": True, **getattr(worker, name)(**command)}
            except Exception as failure:  # the parent reports it and goes on with the others
                text = str(failure).strip().splitlines()
                kind = type(failure).__name__
                answer = {"ok": False, "why": f"{kind}: {text[0] if text else ''}"[:300]}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
