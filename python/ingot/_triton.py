"""Triton as a compiler of GPU kernels: what the C++ layer calls under `codegen=triton`.

Kernels arrive as Triton's Python and leave as cubins. Processes of their own compile them, one
kernel at a time each: Triton keeps Python's lock for half of its time, and a kernel on which it
aborts must not end the program. No GPU is needed. Costs one to three seconds a kernel and core; the
C++ layer keeps the results on disk.
"""

from __future__ import annotations

import base64
import collections
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

# (source, function, types of arguments, XBLOCK, RBLOCK, warps)
Wanted = tuple[str, str, Sequence[str], int, int, int]
# (cubin, the kernel's name in it, threads of a block, bytes of shared memory), or why there is none
Made = tuple[bytes, str, int, int] | str

_WORKER = pathlib.Path(__file__).with_name("_triton_worker.py")
_MISSING = (
    "options={'codegen': 'triton'} needs the package 'triton', which is not installed: "
    "pip install triton, or leave the option out"
)

_lock = threading.Lock()
_compiled = 0
_refused: collections.Counter[str] = collections.Counter()


def version() -> str:
    """What decides Triton's code. Raises ImportError, saying what to do, where it is missing."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:  # a mere folder of that name has none
        raise ImportError(_MISSING)
    for name in ("triton", "pytorch-triton", "triton-nightly"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    import triton

    return f"triton {triton.__version__}"


def compile_kernels(kernels: Sequence[Wanted], capability: int, threads: int) -> list[Made]:
    """The code of each kernel, in order, for a GPU of this capability (90 for 9.0)."""
    version()
    results: list[Made] = ["not compiled"] * len(kernels)
    # The longest first, so that none of those is left for the end.
    order = sorted(range(len(kernels)), key=lambda i: -len(kernels[i][0]))
    todo = collections.deque(order)
    workers: list[subprocess.Popen] = []
    stop = threading.Event()

    def work() -> None:
        worker = None
        while not stop.is_set():
            with _lock:
                if not todo:
                    break
                i = todo.popleft()
            if worker is None:
                worker = _start()
                workers.append(worker)
            results[i] = _ask(worker, kernels[i], capability)
            if worker.poll() is not None:
                worker = None
        if worker is not None:
            worker.stdin.close()
            worker.wait()

    pool = [threading.Thread(target=work) for _ in range(min(max(threads, 1), len(kernels)))]
    for thread in pool:
        thread.start()
    try:
        for thread in pool:
            while thread.is_alive():
                thread.join(0.1)
    except BaseException:  # a signal's: the kernels under way are given up
        stop.set()
        for worker in workers:
            worker.kill()
        raise
    finally:
        for thread in pool:
            thread.join()
    return results


def _start() -> subprocess.Popen:
    # Its own folder is not to be searched for modules: `-P`.
    command = [sys.executable, "-P", str(_WORKER)]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    worker.stdin.write(json.dumps(sys.path) + "\n")
    return worker


def _ask(worker: subprocess.Popen, kernel: Wanted, capability: int) -> Made:
    """One kernel, compiled by the worker; where that dies, the reason."""
    try:
        worker.stdin.write(json.dumps([*kernel, capability]) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except OSError:
        answer = ""
    if not answer:
        return f"Triton has ended with {worker.wait()}"
    made = json.loads(answer)
    if isinstance(made, str):
        return made
    return base64.b64decode(made[0]), made[1], made[2], made[3]


def count(made: int, refused: Mapping[str, int]) -> None:
    """Told of each program: how many kernels Triton has made, and by reason how many not."""
    global _compiled
    with _lock:
        _compiled += made
        _refused.update(refused)


def counts() -> tuple[int, dict[str, int]]:
    """What `count` was told, summed."""
    with _lock:
        return _compiled, dict(_refused)


def reset() -> None:
    """Start counting anew."""
    global _compiled
    with _lock:
        _compiled = 0
        _refused.clear()
