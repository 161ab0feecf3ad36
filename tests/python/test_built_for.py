"""A build beside another PyTorch, Python or C++ ABI is refused at import, and says what to do."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ingot import _built_for

HERE = {"torch": "2.13.0+cpu", "cuda": None, "python": "3.11", "cxx11_abi": True}
PACKAGE = Path(_built_for.__file__).parent


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({"torch": "2.14.1+cu130"}, ["PyTorch 2.13 ", "PyTorch 2.14.1+cu130", "torch==2.13.*"]),
        ({"torch": "2.12.0"}, ["PyTorch 2.13 ", "PyTorch 2.12.0"]),
        ({"torch": "2.13.0.dev20260101+cpu"}, ["2.13.0.dev20260101+cpu"]),
        ({"torch": "3.13.0"}, ["PyTorch 3.13.0"]),
        ({"python": "3.12"}, ["Python 3.11", "Python 3.12"]),
        ({"cxx11_abi": False}, ["_GLIBCXX_USE_CXX11_ABI=1", "has 0"]),
    ],
)
def test_what_differs_is_named(other, parts):
    said = _built_for.mismatch(HERE, HERE | other)
    assert said is not None
    for part in [*parts, "make build", "make wheel"]:
        assert part in said


def test_what_does_not_matter_is_let_pass():
    assert _built_for.mismatch(HERE, HERE) is None
    for other in ({"torch": "2.13.1"}, {"torch": "2.13.4+cu130", "cuda": "13.0"}):
        assert _built_for.mismatch(HERE, HERE | other) is None
    cuda = HERE | {"torch": "2.13.0+cu130", "cuda": "13.0"}
    assert "CUDA 13.0" in _built_for.mismatch(cuda, HERE)


def import_from(folder):
    return subprocess.run(
        [sys.executable, "-c", "import ingot"],
        env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_check_stands_before_the_extension(tmp_path):
    """The build at hand, said to be for another PyTorch: nothing of it is loaded."""
    package = tmp_path / "ingot"
    package.mkdir()
    for one in PACKAGE.glob("*.py"):
        shutil.copy(one, package)
    done = import_from(tmp_path)
    assert "ImportError" in done.stderr and "it has not been built" in done.stderr
    (extension,) = PACKAGE.glob("_ingot.*.so")
    (package / extension.name).write_bytes(b"no library at all")
    done = import_from(tmp_path)
    assert "ImportError" in done.stderr and _built_for.STAMP in done.stderr
    stamp = json.loads((extension.resolve().parent / _built_for.STAMP).read_text())
    assert stamp["torch"] == torch.__version__ and _built_for.mismatch(
        stamp, _built_for.here(torch)
    ) is None  # fmt: skip
    (package / _built_for.STAMP).write_text(json.dumps(stamp | {"torch": "2.9.1"}))
    done = import_from(tmp_path)
    assert "ImportError: this build of Ingot is for PyTorch 2.9" in done.stderr
    (package / extension.name).rename(package / "_ingot.cpython-39-x86_64-linux-gnu.so")
    done = import_from(tmp_path)
    assert "ImportError: this build of Ingot is _ingot.cpython-39" in done.stderr


def test_the_wheel_requires_what_it_was_built_with():
    sys.path.insert(0, str(PACKAGE.parents[1] / "cmake"))
    try:
        import torch_build
    finally:
        sys.path.pop(0)
    major, minor = torch.__version__.split(".")[:2]
    assert torch_build.dynamic_metadata("dependencies", {}) == [f"torch=={major}.{minor}.*"]
