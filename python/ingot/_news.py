"""What capture tells people, in the log and as errors; called by `src/capture/news.cpp`.

At the default level there is one line, once a function and reason, where speed is lost unawares:
a whole call runs eagerly, the limit of recordings is reached, a break stands in a loop (logger
`ingot`). At INFO every break (`ingot.graph_breaks`) and every new recording (`ingot.recompiles`)
has one, with the user's line and what to do; at DEBUG `ingot.guards` has the guards. Nothing else
is set up: handlers and levels are the program's.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence

from . import _errors, _hints, _places
from ._places import Place

log = logging.getLogger("ingot")
breaks = logging.getLogger("ingot.graph_breaks")
recompiles = logging.getLogger("ingot.recompiles")
guards = logging.getLogger("ingot.guards")

_lock = threading.Lock()
_said: set[tuple[str, ...]] = set()


def reset() -> None:
    """What was said once may be said again."""
    with _lock:
        _said.clear()


def _first_time(*words: str) -> bool:
    key = tuple(re.sub(r"\d+", "#", one) for one in words[1:])  # a line for all sizes
    with _lock:
        if (words[0], *key) in _said:
            return False
        _said.add((words[0], *key))
    return True


def _who(name: str, place: str) -> str:
    return f"{name} ({place})" if place else name


def _line(name: str, place: str, what: str, reason: str, places: Sequence[Place]) -> str:
    parts = [f"ingot: {_who(name, place)}: {what}: {reason}"]
    if where := _places.text(places):
        parts.append(f"at {where}")
    if cure := _hints.hint(reason):
        parts.append(f"hint: {cure}")
    return "; ".join(parts)


# Called with the function's name and place, the reason, the frames (outermost first) and details.


def eager(name: str, place: str, reason: str, places: list[Place], details: list[str]) -> None:
    """A whole call runs eagerly."""
    line = _line(name, place, "whole calls run eagerly", reason, places)
    if _first_time(f"{name} {place}", "eager", reason):
        log.warning("%s", line)
    else:
        breaks.info("%s", line)


def rest(name: str, place: str, reason: str, places: list[Place], details: list[str]) -> None:
    """What is behind a break runs eagerly."""
    what = "the rest of the call runs eagerly"
    breaks.info("%s", _line(name, place, what, reason, places))


def graph_break(
    name: str, place: str, reason: str, places: list[Place], details: list[str]
) -> None:
    """A break: what is before and behind it is compiled."""
    found = _places.loop(places)
    if found is not None and _first_time(f"{name} {place}", "loop", reason, found[0], found[2]):
        what = f"a graph break in the loop at {found[0]}:{found[1]}"
        log.warning("%s", _line(name, place, what, reason, places))
    else:
        breaks.info("%s", _line(name, place, "graph break", reason, places))


def recompile(name: str, place: str, reason: str, places: list[Place], details: list[str]) -> None:
    """Another recording is made: `reason` is the last guard that failed, `details` all of them."""
    recompiles.info("%s", _line(name, place, "recompiles", reason, places))
    for number, one in enumerate(details):
        guards.debug("ingot: %s: recording %d does not fit: %s", _who(name, place), number, one)


def limit(name: str, place: str, reason: str, places: list[Place], details: list[str]) -> None:
    """The limit of recordings is reached: other calls run eagerly."""
    most = int(details[0])
    log.warning(
        "ingot: %s: more than %d recordings; the last guard that failed: %s; calls that match none "
        "run eagerly; hint: %s",
        _who(name, place), most, reason, _hints.LIMIT,
    )  # fmt: skip


def compiled(name: str, place: str, reason: str, places: list[Place], details: list[str]) -> None:
    """A recording is complete, with these guards."""
    listed = "".join(f"\n  {one}" for one in details)
    guards.debug("ingot: %s: %d guards:%s", _who(name, place), len(details), listed)


def guards_wanted() -> bool:
    """Whether guards are to be written down."""
    return guards.isEnabledFor(logging.DEBUG)


# Errors.


def unsupported(
    name: str, place: str, reason: str, places: list[Place], details: None
) -> Exception:
    """The error of a call that `fullgraph` refuses."""
    if not places and place:  # before anything of the function has run, or behind its end
        file, _, line = place.rpartition(":")
        places = [(file, int(line), name, False)]
    return _errors.Unsupported(reason, _places.stack(places), _hints.hint(reason))


def limit_error(
    name: str, place: str, reason: str, places: list[Place], details: None
) -> Exception:
    """The same for the limit of recordings."""
    return _errors.FailOnRecompileLimitHit(f"{_who(name, place)}: {reason}; hint: {_hints.LIMIT}")


def recompile_error(
    name: str, place: str, reason: str, places: list[Place], details: None
) -> Exception:
    """The error of the stance `fail_on_recompile`."""
    return RuntimeError(
        f"Detected recompile when torch.compile stance is 'fail_on_recompile': "
        f"{_who(name, place)}: {reason}"
    )
