"""What a compilation for a GPU says when there is none, or one that does not work.

A stand-in for NVIDIA's driver (fake_driver.c) fails in the way each test asks for, in a process of
its own, which must then still compile for the processor.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has opened the real driver"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]
PROGRAM = """
import torch
import ingot
from ingot import _ingot, _options

recorder = _ingot.Recorder(_options.resolve(None, {"cache": False}))
x = recorder.input(torch.randn(64, 4096), device=torch.device("cuda:0"))
try:
    with recorder:
        y = torch.softmax(x * 2, -1) + x.sum(0)
    recorder.compile([y])
    print("compiled")
except Exception as e:
    print(type(e).__name__ + ": " + str(e).splitlines()[0])
f = ingot.compile(lambda x: torch.softmax(x, -1) * 2, options={"fallback": False})
x = torch.randn(8, 100)
torch.testing.assert_close(f(x), torch.softmax(x, -1) * 2)
print("goes on")
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Folders with a libcuda.so.1, by kind."""
    folders = {}
    for kind, flags in {"whole": [], "old": ["-DOLD"]}.items():
        folders[kind] = tmp_path_factory.mktemp(kind)
        source = pathlib.Path(__file__).parent / "fake_driver.c"
        command = ["cc", "-shared", "-fPIC", *flags, "-o", folders[kind] / "libcuda.so.1", source]
        subprocess.run(command, check=True)
    return folders


def outcome(folder: pathlib.Path, **settings: str) -> str:
    path = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = os.environ | {"LD_LIBRARY_PATH": path} | settings
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()[-2:]
    assert second == "goes on"
    return first


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("old", {}, "it is too old"),
        ("whole", {"FAKE_FAILS": "cuInit"}, "does not start"),
        ("whole", {"FAKE_COUNT": "0"}, "there is no GPU 0"),
        ("whole", {"FAKE_MAJOR": "6"}, "compute capability 6.0; 7.0 is the oldest"),
        ("whole", {"FAKE_FAILS": "cuDevicePrimaryCtxRetain"}, "opening a GPU's context"),
        ("whole", {"FAKE_FAILS": "cuModuleLoadData"}, "loading a kernel: CUDA_ERROR_FAKE"),
        ("whole", {"FAKE_FAILS": "cuLinkAddData"}, "compiling PTX: CUDA_ERROR_FAKE"),
    ],
)
def test_failures_are_named_and_the_process_goes_on(
    drivers: dict[str, pathlib.Path], kind: str, settings: dict[str, str], message: str
) -> None:
    assert message in outcome(drivers[kind], **settings)


def test_the_driver_compiles_where_nvjitlink_is_missing(
    drivers: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "log"
    assert outcome(drivers["whole"], FAKE_LOG=str(log)) == "compiled"
    assert log.read_text().count("compiled") >= 1
