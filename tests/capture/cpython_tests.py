"""Runs CPython's own tests under the interpreter, nothing recorded, and compares the outcomes.

    python tests/capture/cpython_tests.py --module-dir BUILD [--jobs N] [test_grammar ...]

Each test file runs twice in processes of its own: as it is, and with every frame of every thread
executed by the interpreter from before the test file is imported. The outcome of each single test
must be the same. `KNOWN` lists the exceptions with their reasons.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time

ALL = """
test_grammar test_generators test_coroutines test_asyncgen test_exceptions test_exception_group
test_raise test_scope test_with test_contextlib test_unpack test_unpack_ex test_patma
test_extcall test_keywordonlyarg test_positional_only_arg test_class test_descr test_super
test_property test_decorators test_dataclasses test_enum test_functools test_itertools
test_fstring test_named_expressions test_listcomps test_setcomps test_dictcomps test_genexps
test_augassign test_binop test_richcmp test_call test_iter test_dict test_list test_tuple
test_set test_collections test_traceback test_typing test_inspect test_weakref test_gc
""".split()  # noqa: SIM905

# What pytest runs: every kind of instruction, in seconds.
QUICK = """
test_grammar test_generators test_coroutines test_exceptions test_raise test_scope test_with
test_contextlib test_unpack_ex test_patma test_extcall test_class test_super test_dataclasses
test_fstring test_listcomps test_genexps test_call test_iter test_traceback
""".split()  # noqa: SIM905

# Test: why its outcome differs under the interpreter.
KNOWN = {
    "test.test_call.TestRecursion.test_super_deep": "Of 3.12. It recurses 90,000 deep, which works"
    " as long as calls of Python functions use no C stack; with a PEP 523 hook, any, they do.",
}


def run_one(name, module_dir, out):
    """In a process of its own: runs a test file and writes each test's outcome."""
    import unittest

    if module_dir:
        sys.path.insert(0, module_dir)
        import _interpreter_test

        sys.path.pop(0)
        _interpreter_test.everything(True)
    from test import support

    support.verbose = 0
    outcomes = {}

    class Result(unittest.TestResult):
        def note(self, test, outcome, detail=""):
            key = test.id()
            if outcomes.get(key, ("ok",))[0] == "ok":
                outcomes[key] = (outcome, detail)

        def addSuccess(self, test):
            self.note(test, "ok")

        def addError(self, test, error):
            super().addError(test, error)
            self.note(test, "error", self.errors[-1][1])

        def addFailure(self, test, error):
            super().addFailure(test, error)
            self.note(test, "failure", self.failures[-1][1])

        def addSkip(self, test, reason):
            self.note(test, "skipped", reason)

        def addExpectedFailure(self, test, error):
            self.note(test, "expected failure")

        def addUnexpectedSuccess(self, test):
            self.note(test, "unexpected success")

        def addSubTest(self, test, subtest, error):
            super().addSubTest(test, subtest, error)
            if error is not None:
                self.note(test, "failure", "".join(map(str, error[:2])))

    start = time.time()
    suite = unittest.defaultTestLoader.loadTestsFromName("test." + name)
    suite.run(Result())
    if module_dir:
        _interpreter_test.everything(False)
    with open(out, "w") as file:
        json.dump({"outcomes": outcomes, "seconds": time.time() - start}, file)


def start(name, module_dir, folder):
    """The outcomes of a test file in a fresh process; with the interpreter if `module_dir`."""
    out = os.path.join(folder, f"{name}.{'on' if module_dir else 'off'}.json")
    command = [sys.executable, "-X", "faulthandler", __file__, "--one", name, "--out", out]
    if module_dir:
        command += ["--module-dir", module_dir]
    work = os.path.join(folder, f"{name}.{'on' if module_dir else 'off'}.work")
    os.makedirs(work, exist_ok=True)
    run = subprocess.run(command, capture_output=True, text=True, cwd=work, errors="replace")
    if run.returncode != 0 or not os.path.exists(out):
        return {"outcomes": {"(process)": ["crash", run.stderr[-3000:]]}, "seconds": 0}
    with open(out) as file:
        return json.load(file)


def compare(names, module_dir, folder, jobs=1, report=print):
    """The tests whose outcomes differ: {test: (without, with, detail)}. A line for each file."""
    differences = {}
    tests = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {
            name: (
                pool.submit(start, name, "", folder),
                pool.submit(start, name, module_dir, folder),
            )
            for name in names
        }
        for name, (off, on) in runs.items():
            off, on = off.result(), on.result()
            here = {}
            for key in {**off["outcomes"], **on["outcomes"]}:
                a = off["outcomes"].get(key, ["missing", ""])
                b = on["outcomes"].get(key, ["missing", ""])
                if a[0] != b[0] and key not in KNOWN:
                    here[key] = (a[0], b[0], b[1])
            tests += len(off["outcomes"])
            report(
                f"{name:28} {len(off['outcomes']):5} tests, {len(here):3} differ, "
                f"{off['seconds']:6.1f} s, under the interpreter {on['seconds']:6.1f} s"
            )
            differences.update(here)
    report(f"{tests} tests, {len(differences)} differ")
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--module-dir", default="", help="the folder with _interpreter_test")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.one:
        return run_one(options.one, options.module_dir, options.out)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = options.names or (QUICK if options.quick else ALL)
        differences = compare(
            names,
            os.path.abspath(options.module_dir),
            folder,
            options.jobs,
            lambda line: print(line, flush=True),
        )
    for key, (off, on, detail) in differences.items():
        print(f"\n{key}: {off} without, {on} with the interpreter\n{detail}")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
