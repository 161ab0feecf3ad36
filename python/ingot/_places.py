"""Places of a program, for people: which of its frames are the user's own.

A place is (file, line, function, in_loop) as capture gives it, outermost frame first. A frame is a
library's where its file is the standard library's, an installed package's, PyTorch's or ours.
"""

from __future__ import annotations

import functools
import inspect
import os
import site
import sysconfig
import traceback
from collections.abc import Sequence
from typing import Any

import torch

Place = tuple[str, int, str, bool]


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of the standard library and of packages."""
    paths = sysconfig.get_paths()
    names = {paths[one] for one in ("stdlib", "platstdlib", "purelib", "platlib")}
    names.update((site.getusersitepackages(), *site.getsitepackages()))
    names.update(os.path.dirname(file) for file in (torch.__file__, __file__))
    both = {one for name in names for one in (name, os.path.realpath(name))}
    return tuple(sorted(os.path.join(one, "") for one in both))


def is_library(file: str) -> bool:
    """Whether a user of the program cannot be expected to change this file."""
    return file.startswith(("<frozen ", "<eval_with_key>", *_libraries()))


def user_position(places: Sequence[Place]) -> int:
    """The innermost frame that is the user's; the innermost one where none is."""
    for position in range(len(places) - 1, -1, -1):
        if not is_library(places[position][0]):
            return position
    return len(places) - 1


def chain(places: Sequence[Place]) -> list[Place]:
    """The user's frames, and the innermost one where that is a library's."""
    shown = [one for one in places[:-1] if not is_library(one[0])]
    return [*shown, *places[-1:]]


def chain_of_frames(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The same of frames of a traceback."""
    return [one for one in frames[:-1] if not is_library(one.filename)] + frames[-1:]


def stack(places: Sequence[Place]) -> traceback.StackSummary:
    """The chain as Python's tracebacks have it."""
    return traceback.StackSummary.from_list(
        [traceback.FrameSummary(file, line, name) for file, line, name, _ in chain(places)]
    )


def text(places: Sequence[Place]) -> str:
    """The user's line, the chain to it, and where in a library it is: in one line; "" for none."""
    if not places:
        return ""
    here = places[user_position(places)]
    words = f"{here[0]}:{here[1]} in {here[2]}"
    outer = [one for one in chain(places) if one is not here and one is not places[-1]]
    if outer:
        called = " < ".join(f"{file}:{line} in {name}" for file, line, name, _ in outer[::-1])
        words += f" < {called}"
    if here is not places[-1]:
        file, line, name, _ = places[-1]
        words += f" (inside {file}:{line} in {name})"
    return words


def loop(places: Sequence[Place]) -> Place | None:
    """The innermost frame that stands in a loop of the program, not of what it calls last."""
    if not places:
        return None
    outside = places[: user_position(places) + 1]
    return next((one for one in reversed(outside) if one[3]), None)


def described(function: Any) -> tuple[str, str]:
    """What messages call a callable, and its "file:line" ("" where it has none)."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__qualname__", None)
    if isinstance(target, torch.nn.Module):
        name, target = type(target).__qualname__, target.forward
    elif name is None:
        name, target = type(target).__qualname__, type(target).__call__
    owner = getattr(target, "__self__", None)
    calls = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")  # but the first PyTorch's
    if isinstance(owner, torch.nn.Module) and target.__name__ in calls:
        name, target = type(owner).__qualname__, type(owner).forward
    code = getattr(inspect.unwrap(getattr(target, "__func__", target)), "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    return name or type(function).__qualname__, place
