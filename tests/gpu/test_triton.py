"""options={"codegen": "triton"}: what is compiled by whom, on a stand-in for NVIDIA's driver.

What Triton's code computes is test_on_gpu.py's business. The compiler itself is tried where it is
installed; it needs no GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys

import pytest
import torch
import triton_programs

import ingot
from ingot import _ingot, _options

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has opened the real driver"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    command = ["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", HERE / "fake_driver.c"]
    subprocess.run(command, check=True)
    return folder


def outcome(driver: pathlib.Path, way: str, cache: pathlib.Path) -> dict:
    path = f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = os.environ | {"LD_LIBRARY_PATH": path, "INGOT_CACHE_DIR": str(cache)}
    command = [sys.executable, HERE / "triton_programs.py", way]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_compiler_is_asked_once_and_its_refusals_are_counted(
    driver: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    first = outcome(driver, "fake", tmp_path)
    assert first["made"] > 5
    assert first["refused"].keys() == {"no sums"}
    for report in first["reports"]:
        assert report["by_triton"] + sum(report["refused"].values()) == report["kernels"]
    again = outcome(driver, "fake", tmp_path)
    assert all(r["compiled"] == 0 for r in again["reports"])
    assert (again["made"], again["refused"]) == (first["made"], first["refused"])


def test_without_triton_the_first_call_says_so(
    driver: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    said = outcome(driver, "refuse", tmp_path)
    assert said["error"] == "MissingCompiler"
    assert "needs the package 'triton'" in said["text"]


def test_every_kernel_has_text_that_is_python(tmp_path: pathlib.Path) -> None:
    options = _options.resolve(None, {"debug": str(tmp_path), "cache": False})
    for program in triton_programs.programs():
        with pytest.raises(_ingot.Unsupported, match="NVIDIA driver"):
            triton_programs.compile_for_gpu(*program, options)
    files = sorted(tmp_path.rglob("*.triton.py"))
    assert len(files) > 15
    for file in files:
        text = file.read_text()
        assert not text.startswith("not expressed"), text
        assert '__name__ == "__main__"' in text
        py_compile.compile(str(file), str(tmp_path / "x.pyc"), doraise=True)
    assert any("runflat" in file.read_text() for file in files)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_takes_every_kernel(driver: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = outcome(driver, "real", tmp_path)
    assert result["refused"] == {}
    assert result["made"] == sum(r["kernels"] for r in result["reports"]) > 15


def test_other_code_generators_are_refused() -> None:
    with pytest.raises(RuntimeError, match="the option codegen='cuda': llvm or triton"):
        ingot.compile(lambda x: x, options={"codegen": "cuda"})


def test_programs_for_the_processor_ask_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    function = ingot.compile(
        lambda x: x.sin() + 1, options={"codegen": "triton", "fallback": False}
    )
    x = torch.randn(10)
    torch.testing.assert_close(function(x), x.sin() + 1)
