"""Faults around the compiler: the disk cache, fork, Ctrl-C. Each runs in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PROGRAM = """
    import os, sys, torch, ingot
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.LayerNorm(48)
    module = torch.nn.Sequential(*layers).eval()
    x = torch.randn(5, 32)

    @torch.no_grad()
    def check():
        compiled = ingot.compile(module)
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
        stats = ingot.stats()
        assert stats.programs and not stats.fallbacks, stats
        return compiled
"""


def run(tmp_path, body, limit=120, **environment):
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
    variables = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path / "cache"), **environment}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=variables,
        timeout=limit,
        capture_output=True,
        text=True,
    )


def succeeds(tmp_path, body="check()", **environment):
    done = run(tmp_path, body, **environment)
    assert done.returncode == 0, done.stderr


def entries(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "unreadable", "folder"])
def test_damaged_cache_is_compiled_again(tmp_path, damage):
    succeeds(tmp_path)
    assert entries(tmp_path)
    for path in entries(tmp_path):
        content = bytearray(path.read_bytes())
        if damage == "empty":
            path.write_bytes(b"")
        elif damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "flipped":
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
        elif damage == "unreadable":
            path.chmod(0)
        else:
            path.unlink()
            path.mkdir()
    succeeds(tmp_path)


@pytest.mark.parametrize("place", ["/proc/no/such/place", "/dev/null/cache"])
def test_unwritable_cache_costs_nothing(tmp_path, place):
    succeeds(tmp_path, INGOT_CACHE_DIR=place)


def test_full_disk(tmp_path):
    body = """
        import resource, signal
        torch.compile(lambda x: x + 1, backend="eager")(x)  # PyTorch itself needs a disk to import
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        check()
    """
    succeeds(tmp_path, body)
    succeeds(tmp_path)


def test_cache_switched_off(tmp_path):
    succeeds(tmp_path, INGOT_CACHE="0")
    assert not entries(tmp_path)


def test_two_processes_fill_one_cache(tmp_path):
    program = textwrap.dedent(PROGRAM) + "check()"
    variables = {**os.environ, "INGOT_CACHE_DIR": str(tmp_path / "cache")}
    both = [subprocess.Popen([sys.executable, "-c", program], env=variables) for _ in range(2)]
    assert [one.wait(120) for one in both] == [0, 0]


def test_fork_after_compilation(tmp_path):
    body = """
        compiled = check()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            with torch.no_grad():
                good = torch.allclose(compiled(x), module(x), rtol=1e-4, atol=1e-5)
                other = ingot.compile(lambda x: x.sin() * 2)
                good = good and torch.allclose(other(x), x.sin() * 2)
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        check()
    """
    succeeds(tmp_path, body)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_interrupt_during_compilation(tmp_path, monkeypatch, capture):
    monkeypatch.setenv("INGOT_CAPTURE", capture)
    body = """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent ignores
        ingot.compile(lambda x: x + 1)(x)  # Dynamo's own imports swallow an interrupt
        print("ready", flush=True)
        for k in range(10000):
            f = eval(f"lambda x: (x.sin() + {k}).softmax(-1) * x.exp()")
            ingot.compile(f)(x)
    """
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    # Python drops an exception that arises in a destructor or a callback of another library, so a
    # person may have to press Ctrl-C again; the program must end then, and in order.
    for _ in range(40):
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=1.3)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        process.kill()
        pytest.fail("interrupts are ignored")
    assert "KeyboardInterrupt" in errors
    assert process.returncode in (1, -signal.SIGINT), errors
