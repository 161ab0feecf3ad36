"""Random programs: a short run of the fuzzer, and that it finds and shrinks what is wrong."""

import subprocess
import sys
from pathlib import Path

from capture import fuzz_programs
from capture.fuzz_writer import write

FUZZER = Path(fuzz_programs.__file__)


def fuzz(*arguments):
    command = [sys.executable, str(FUZZER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def test_random_programs(tmp_path):
    done = fuzz(
        "--seconds", 20, "--seed", 2, "--minimise", 10, "--stop-after", 2, "--out", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_run_and_say_the_same_twice(tmp_path):
    done = fuzz("--seconds", 3, "--seed", 1, "--compiler", "eager", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 5


def test_most_programs_return_something():
    from capture.harness import run

    results = []
    for number in range(40):
        record = run(fuzz_programs.load(write(f"3:{number}").text()), None)
        results += [value for kind, value in record if kind == "result"]
    errors = [v for v in results if isinstance(v, tuple) and str(v[0]).endswith("Error")]
    assert len(results) > 100 and len(errors) < 0.6 * len(results)


def test_a_failure_is_found_and_made_small():
    def forgets_to_append(function, **_):
        def compiled(x, y, n, flag):
            cells = function.__closure__ or ()
            lists = [c.cell_contents for c in cells if isinstance(c.cell_contents, list)]
            before = [list(one) for one in lists]
            result = function(x, y, n, flag)
            for one, old in zip(lists, before, strict=True):
                one[:] = old
            return result

        return compiled

    def fails(text):
        return fuzz_programs.failure(text, forgets_to_append) is not None

    script = next(s for k in range(200) if fails((s := write(f"4:{k}")).text()))
    small = fuzz_programs.minimise(script, fails, 60)
    assert fails(small.text())
    assert len(small.text()) < len(script.text())
    assert len(small.steps) <= 3 and len(small.body) <= 2


def test_amplified_rounding_is_no_failure():
    text = """
def build(w):
    import torch

    def f(x):
        return torch.sin(x * {scale})

    w.call(w.compile(f), w.t(4))
"""

    def away_by(part):
        return lambda function, **_: lambda x: function(x * (1 + part))

    assert fuzz_programs.failure(text.format(scale=1.0), away_by(2.0**-23)) is None
    assert fuzz_programs.failure(text.format(scale=1.0), away_by(1e-2)) is not None
    assert fuzz_programs.failure(text.format(scale=1e4), away_by(2.0**-22)) is None
