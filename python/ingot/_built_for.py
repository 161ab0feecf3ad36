"""Whether this build of Ingot fits the PyTorch and the Python that import it.

The extension is compiled against PyTorch's C++ interface, which is another one in each minor
version: beside another it would not load, or load and compute rubbish. So what it was built for,
which the build leaves beside it (cmake/torch_build.py), is compared before it is loaded, once at
import. Reads one small file.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

STAMP = "_ingot_built_for.json"
_AGAIN = (
    "Install the wheel of Ingot that was built for it, or build Ingot with it: "
    "`make build` in the source tree, `make wheel` for a wheel."
)


def check(folder: Path) -> None:
    """Raise ImportError unless the extension in `folder` is for what runs here."""
    import torch

    spec = PathFinder.find_spec("_ingot", [str(folder)])
    if spec is None or spec.origin is None:
        raise ImportError(_absent(folder))
    stamp = Path(spec.origin).resolve().parent / STAMP
    try:
        built = json.loads(stamp.read_text())
    except OSError:
        raise ImportError(
            f"Ingot does not know which PyTorch its extension was built for: {stamp} is missing. "
            "Build it again with scripts/build.sh."
        ) from None
    wrong = mismatch(built, here(torch))
    if wrong:
        raise ImportError(wrong)


def here(torch: Any) -> dict[str, Any]:
    """What runs here, as `facts` of cmake/torch_build.py says it of a build."""
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": ".".join(map(str, sys.version_info[:2])),
        "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
    }


def mismatch(built: dict[str, Any], here: dict[str, Any]) -> str | None:
    """Why a build cannot be used here, with the versions and what to do; None if it can."""
    if built["python"] != here["python"]:
        return (
            f"this build of Ingot is for Python {built['python']}, and this is Python "
            f"{here['python']}. {_AGAIN}"
        )
    if _interface(built["torch"]) != _interface(here["torch"]):
        return (
            f"this build of Ingot is for PyTorch {_interface(built['torch'])} (it was built with "
            f"{built['torch']}), and this is PyTorch {here['torch']}: their binary interfaces "
            f"differ. {_AGAIN} Or install the PyTorch it is for: torch=={_minor(built['torch'])}.*"
        )
    if built["cxx11_abi"] != here["cxx11_abi"]:
        return (
            f"this build of Ingot has _GLIBCXX_USE_CXX11_ABI={int(built['cxx11_abi'])}, and "
            f"PyTorch {here['torch']} has {int(here['cxx11_abi'])}: their strings and lists "
            f"differ. {_AGAIN}"
        )
    if built["cuda"] and not here["cuda"]:
        return (
            f"this build of Ingot is for a PyTorch with CUDA {built['cuda']}, whose libraries it "
            f"needs, and this is PyTorch {here['torch']} without. {_AGAIN}"
        )
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _interface(version: str) -> str:
    """What decides about the C++ interface: the minor version; of what is no release, all of it."""
    public = version.split("+")[0]
    release = all(part.isdigit() for part in public.split("."))
    return _minor(public) if release else version


def _absent(folder: Path) -> str:
    this = f"Python {platform.python_version()}"
    others = sorted(path.name for path in folder.glob("_ingot.*.so"))
    if others:
        return f"this build of Ingot is {', '.join(others)}, which {this} cannot load. {_AGAIN}"
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        return f"Ingot runs under Python 3.11 and 3.12, and this is {this}."
    return f"Ingot's extension is not in {folder}: it has not been built. {_AGAIN}"
