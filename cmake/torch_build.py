"""What a build of Ingot is made for: read from the PyTorch of this Python, without importing it.

CMake runs it as a script and keeps what it prints beside the extension, where
`python/ingot/_built_for.py` compares it with what is there when the package is imported.
scikit-build-core asks it for the wheel's requirements: the minor version that was built against and
no other, since PyTorch's C++ interface changes with each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

SUPPORTED = "torch>=2.11,<2.15"  # what a build from source can be made against


def torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return None if spec is None else Path(spec.submodule_search_locations[0])


def facts(folder: Path, cxx11_abi: bool) -> dict[str, Any]:
    """Versions, as the package compares them."""
    version = runpy.run_path(str(folder / "version.py"))
    return {
        "torch": version["__version__"],
        "cuda": version["cuda"],
        "python": ".".join(map(str, sys.version_info[:2])),
        "soabi": sysconfig.get_config_var("SOABI"),
        "cxx11_abi": cxx11_abi,
    }


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None, *_: Any) -> list[str]:
    """The requirements of the wheel that is about to be built."""
    if field != "dependencies":
        raise ValueError(f"no metadata of Ingot's is computed but dependencies, not {field}")
    folder = torch_folder()
    if folder is None:  # the metadata alone, or a source distribution
        return [SUPPORTED]
    version = runpy.run_path(str(folder / "version.py"))["__version__"]
    major, minor = version.split(".")[:2]
    return [f"torch=={major}.{minor}.*"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="the torch package's folder")
    parser.add_argument("--cxx11-abi", type=int, required=True)
    arguments = parser.parse_args()
    print(json.dumps(facts(arguments.folder, bool(arguments.cxx11_abi)), indent=1))
