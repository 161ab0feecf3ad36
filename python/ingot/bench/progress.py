"""A progress line: rewritten in place on a terminal, one line a model elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable


def progress(prefix: str) -> Callable[[str], None]:
    """A function that shows what is being done for `prefix`."""
    if not sys.stderr.isatty():
        print(f"{prefix} ...", file=sys.stderr, flush=True)
        return lambda text: None

    def say(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{prefix}: {text}")
        sys.stderr.flush()

    return say


def clear() -> None:
    """Wipe the line before something else is printed."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
