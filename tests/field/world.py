"""Runs one program of this folder in this process, under eager or under a compiler, and keeps what
it returned.

`run_in` is what a process forked for one program executes: it never returns to the parent's
code, so that a program that crashes or hangs is one that fails.
"""

import contextlib
import faulthandler
import importlib.util
import os
import pickle
import sys
import traceback
from pathlib import Path

import torch

FOLDER = Path(__file__).parent


def compiler_of(mode):
    """What the program compiles with, also as a decorator."""
    if mode == "eager":
        return lambda target=None, **options: target if target is not None else lambda t: t
    import ingot

    return ingot.compile


def load(path):
    spec = importlib.util.spec_from_file_location("field_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_in(path, mode, out, noise=0):
    """Runs `path`'s `run(compile)` and pickles its described result to `out`.

    With a `noise` other than 0 products and sums are off by a rounding each, drawn from that seed.
    """
    sys.path.insert(0, str(FOLDER))
    os.environ["FIELD_MODE"] = mode
    faulthandler.enable()
    torch.set_num_threads(1)
    import compare
    import field_common
    import roundings

    field_common.seed(0)
    try:
        program = load(Path(path))
        with roundings.Roundings(int(noise)) if int(noise) else contextlib.nullcontext():
            value = compare.describe(program.run(compiler_of(mode)))
        answer = {"value": value, "tolerance": getattr(program, "TOL", 1.0)}
    except BaseException:
        answer = {"error": traceback.format_exc()[-4000:]}
    partial = Path(str(out) + ".partial")
    partial.write_bytes(pickle.dumps(answer))
    partial.rename(out)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a program's own are no reason to wait


if __name__ == "__main__":
    run_in(*sys.argv[1:])
