"""Programs written after public bug reports (`programs/`) and after what people compile from
libraries (`models/`): each runs under eager and under Ingot in processes of their own, and what
it returns must be the same.

The processes are forked from one that has imported PyTorch and Ingot, two at a time. A program
of a library that is not installed is skipped; one that eager itself does not run here is no test
and says so.
"""

import contextlib
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import world
from compare import differences

FOLDER = Path(__file__).parent
TIMEOUT = 240  # seconds; a program that takes longer hangs
# What is not eager's yet.
KNOWN = {
    "38_exact_counts_after_resize": "aligned corners round otherwise in the last bit",
    "51_fully_masked_attention": "gradients of attention lie in another order in memory",
}
PROGRAMS = sorted(FOLDER.glob("programs/[0-9]*.py"))
MODELS = sorted(FOLDER.glob("models/[0-9]*.py"))


@pytest.fixture(scope="session")
def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "ingot", "numpy"])
    return context


class Alone(subprocess.Popen):
    """A process of its own with the interface of those that multiprocessing makes."""

    def join(self, timeout):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    def is_alive(self):
        return self.poll() is None

    @property
    def exitcode(self):
        return self.returncode


def start(forks, path, arguments):
    # Workers of data loaders and of process groups do not live in a process that was forked.
    if any(word in path.read_text() for word in ("spawn", "num_workers")):
        return Alone([sys.executable, "-W", "ignore", world.__file__, *arguments])
    process = forks.Process(target=world.run_in, args=arguments)
    process.start()
    return process


def outcomes(forks, path, folder, runs_wanted):
    """What `path` gives in each of the runs, (mode, noise) pairs, which run side by side."""
    runs = {}
    for mode, noise in runs_wanted:
        out = folder / f"{mode}-{noise}.pickle"
        process = start(forks, path, (str(path), mode, str(out), str(noise)))
        runs[mode, noise] = process, out
    answers = {}
    for run, (process, out) in runs.items():
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            answers[run] = {"error": f"no end after {TIMEOUT} s"}
        elif out.exists():
            answers[run] = pickle.loads(out.read_bytes())
        else:
            answers[run] = {"error": f"died with {process.exitcode}"}
    return answers


def check(forks, path, folder):
    answers = outcomes(forks, path, folder, [("eager", 0), ("ingot", 0)])
    eager, compiled = answers["eager", 0], answers["ingot", 0]
    if "error" in eager:
        missing = "ModuleNotFoundError" in eager["error"] or "ImportError" in eager["error"]
        (pytest.skip if missing else pytest.fail)(eager["error"].strip().splitlines()[-1])
    assert "error" not in compiled, compiled["error"]
    found = differences(eager["value"], compiled["value"], eager["tolerance"])
    if found:
        again = outcomes(forks, path, folder, [("eager", seed) for seed in (1, 2, 3)])
        noisy = [answer["value"] for answer in again.values() if "value" in answer]
        found = differences(eager["value"], compiled["value"], eager["tolerance"], noisy=noisy)
    assert not found, "\n".join(found[:8])


@pytest.mark.parametrize("path", PROGRAMS + MODELS, ids=lambda path: path.stem)
def test_program(forks, path, tmp_path, request):
    if path.stem in KNOWN:
        request.applymarker(pytest.mark.xfail(reason=KNOWN[path.stem]))
    check(forks, path, tmp_path)
