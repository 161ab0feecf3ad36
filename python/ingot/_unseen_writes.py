"""What is said and counted of parameters that something has written unseen.

The program compares its folded and packed copies with what they were made from; when it finds a
difference that no version counter has shown, it makes them anew and calls `told`. A call that
finds nothing comes here never.
"""

from __future__ import annotations

import re
import threading
import warnings

_lock = threading.Lock()
_said: set[str] = set()
_count = 0


def count() -> int:
    """How often such a parameter was found."""
    return _count


def reset() -> None:
    """Start counting anew."""
    global _count
    with _lock:
        _count = 0


def told(name: str) -> None:
    """Count the parameter that capture calls `name`, and warn where it is the first time."""
    global _count
    name = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", name)
    name = re.sub(r"^the function\.__self__\.", "", name)
    with _lock:
        _count += 1
        if name in _said:
            return
        _said.add(name)
    warnings.warn(
        f"ingot: parameter {name} was written in a way that PyTorch does not count, and calls may "
        "have read its old contents. torch.autograd.graph.increment_version(tensor) after such a "
        'write says so at once; options={"weight_checks": "all"} looks at every call.',
        RuntimeWarning,
        stacklevel=2,
    )
