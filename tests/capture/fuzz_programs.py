"""Random Python programs, compiled and eager: `python tests/capture/fuzz_programs.py --seconds 60`.

Each program runs in the two worlds of the harness. A failing one is made smaller while it goes on
failing, and written to a file that runs by itself. Programs run in a child process a batch at a
time, so that one that kills the process is a failure like any other. Exits with 1 on failures.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import linecache
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from capture.fuzz_writer import Compound, Script, write
from capture.harness import Difference, amplifies_rounding, compare, run

FOOT = """

if __name__ == "__main__":
    import sys

    sys.path.insert(0, {tests!r})
    from capture.harness import compare

    import ingot

    compare(build, ingot.compile)
    print("equal")
"""


def load(text: str) -> Callable:
    """The function `build` of a program's text."""
    name = f"<fuzz {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = types.ModuleType("fuzzed")
    sys.modules[module.__name__] = module  # dataclasses look there
    exec(compile(text, name, "exec"), module.__dict__)
    return module.build


def failure(text: str, compiler: Callable) -> str | None:
    """What is wrong with the compiled program; None when nothing is, or it is no program."""
    try:
        build = load(text)
        run(build, None)
    except Exception:
        return None
    try:
        compare(build, compiler)
    except Difference as error:
        # Numbers of which eager itself has no digit that another order of its sums would keep.
        if error.step is not None and amplifies_rounding(build, error.step):
            return None
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def smaller(script: Script) -> Iterator[Script]:
    """All scripts with one thing less."""
    for k in range(len(script.steps)):
        yield Script(script.body, script.steps[:k] + script.steps[k + 1 :])
    for body in _less(script.body):
        yield Script(body, script.steps)


def _less(block: list) -> Iterator[list]:
    for k, node in enumerate(block):
        before, after = block[:k], block[k + 1 :]
        yield before + after
        if isinstance(node, str):
            continue
        for part, (header, body) in enumerate(node.parts):
            yield before + body + after
            if part:
                rest = node.parts[:part] + node.parts[part + 1 :]
                yield [*before, Compound(rest), *after]
            for shorter in _less(body):
                parts = [*node.parts]
                parts[part] = (header, shorter)
                yield [*before, Compound(parts), *after]


def minimise(script: Script, fails: Callable[[str], bool], seconds: float) -> Script:
    """A script from which nothing can be taken without the failure going away."""
    end = time.monotonic() + seconds
    again = True
    while again:
        again = False
        for candidate in smaller(script):
            if time.monotonic() > end:
                return script
            if fails(candidate.text()):
                script, again = candidate, True
                break
    return script


def compiler_of(name: str) -> Callable:
    """The compile function under test."""
    if name == "eager":  # checks the programs themselves
        return lambda function, **_: function
    if name == "torch":
        import torch

        return lambda function, **kw: torch.compile(function, backend="ingot", **kw)
    import ingot

    return ingot.compile


def forget() -> None:
    """Drop what was compiled, as a limit on memory."""
    import ingot

    ingot.reset()


def child(arguments: argparse.Namespace) -> int:
    """Run programs from `first` on, saying what begins and what fails, a line of JSON each."""
    faulthandler.enable()
    compiler = compiler_of(arguments.compiler)
    end = time.monotonic() + arguments.seconds
    number = arguments.first
    while time.monotonic() < end and number < arguments.first + arguments.batch:
        print(json.dumps({"begin": number}), flush=True)
        script = write(f"{arguments.seed}:{number}")
        reason = failure(script.text(), compiler)
        if reason is not None:
            script = minimise(
                script, lambda text: failure(text, compiler) is not None, arguments.minimise
            )
            reason = failure(script.text(), compiler) or reason
            print(json.dumps({"failed": number, "why": reason, "text": script.text()}), flush=True)
        number += 1
        if number % 20 == 0:
            forget()
    print(json.dumps({"end": number}), flush=True)
    return 0


def _crash_is_minimised(arguments: argparse.Namespace, number: int) -> str:
    """The text of a program that kills its process, made smaller by trying in children."""

    def dies(text: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(text + FOOT.format(tests=str(Path(__file__).resolve().parents[1])))
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    [sys.executable, str(path)], capture_output=True, timeout=60, check=False
                )
                return done.returncode < 0
            return True

    script = write(f"{arguments.seed}:{number}")
    if not dies(script.text()):
        return script.text()
    return minimise(script, dies, arguments.minimise * 3).text()


def parent(arguments: argparse.Namespace) -> int:
    """Run children until the time is over; print and keep what fails."""
    end = time.monotonic() + arguments.seconds
    number, failures = arguments.first, 0
    folder = Path(arguments.out or tempfile.mkdtemp(prefix="ingot-fuzz-"))
    while (left := end - time.monotonic()) > 0.5:
        command = [sys.executable, __file__, "--child", "--seed", str(arguments.seed)]
        command += [
            "--first",
            str(number),
            "--seconds",
            str(left),
            "--compiler",
            arguments.compiler,
        ]
        command += ["--minimise", str(arguments.minimise), "--batch", str(arguments.batch)]
        last = None
        with (
            tempfile.TemporaryFile("w+") as said_badly,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said_badly, text=True
            ) as process,
        ):
            for row in process.stdout:
                if not row.startswith("{"):
                    continue
                said = json.loads(row)
                if "begin" in said:
                    last = said["begin"]
                if "failed" in said:
                    failures += 1
                    _keep(folder, arguments, said["failed"], said["why"], said["text"])
                if "end" in said:
                    number = said["end"]
            process.wait()
            said_badly.seek(0)
            errors = said_badly.read()
        if process.returncode != 0:
            if last is None:
                sys.stderr.write(errors)
                return 2
            failures += 1
            why = f"the process ended with {process.returncode}\n{errors[-3000:]}"
            _keep(folder, arguments, last, why, _crash_is_minimised(arguments, last))
            number = last + 1
        if failures >= arguments.stop_after:
            break
    print(f"{number - arguments.first} programs, {failures} failures (seed {arguments.seed})")
    return 1 if failures else 0


def _keep(folder: Path, arguments: argparse.Namespace, number: int, why: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{arguments.seed}_{number}.py"
    comment = "".join(f"# {row}\n" for row in why.splitlines())
    foot = FOOT.format(tests=str(Path(__file__).resolve().parents[1]))
    path.write_text(comment + text.lstrip("\n") + foot)
    print(f"failed: {path}\n{why.splitlines()[0]}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--compiler", default="ingot", choices=("ingot", "torch", "eager"))
    parser.add_argument("--minimise", type=float, default=20, help="seconds for each failure")
    parser.add_argument("--stop-after", type=int, default=20, help="failures")
    parser.add_argument("--out", help="folder for failing programs (a temporary one)")
    parser.add_argument("--batch", type=int, default=200, help="programs of one process")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONHASHSEED", "0")
    return child(arguments) if arguments.child else parent(arguments)


if __name__ == "__main__":
    sys.exit(main())
