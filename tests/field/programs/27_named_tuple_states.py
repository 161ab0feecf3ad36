"""A simulator's state is a named tuple with methods, an own __add__ and extra attributes; its settings are a frozen dataclass.

Reported: pytorch/pytorch#161610 (attributes set on a named tuple lost), #158772 (_replace), #175943 (own __add__), #195838 (dataclasses.replace).
Right: classes, fields, attributes and equality are eager's, for states that come in, are made inside and go out.
"""

import dataclasses
from collections import namedtuple
from typing import NamedTuple

import torch


class State(NamedTuple):
    position: torch.Tensor
    speed: torch.Tensor
    step: int = 0

    def energy(self):
        return 0.5 * self.speed.pow(2).sum()


class Noted(State):
    pass


class Pair(namedtuple("Pair", ["a", "b"])):
    __slots__ = ()

    def __add__(self, other):
        return Pair(self.a + other.a, self.b + other.b)


@dataclasses.dataclass(frozen=True)
class Settings:
    dt: float = 0.1
    pull: float = 1.0
    names: tuple = ("x",)


@dataclasses.dataclass
class Report:
    state: State
    energy: torch.Tensor
    notes: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.notes["made"] = self.state.step


def advance(state, settings):
    settings = dataclasses.replace(settings, pull=settings.pull * 2)
    force = -settings.pull * state.position
    new = state._replace(speed=state.speed + settings.dt * force, step=state.step + 1)
    new = new._replace(position=new.position + settings.dt * new.speed)
    return new, settings, Report(new, new.energy())


def annotate(state, value):
    state.extra = value * 2
    state.tally = getattr(state, "tally", 0) + 1
    return state, state.extra + state.position


def add_pairs(x):
    base, delta = Pair(x.sin(), x.cos()), Pair(x.relu(), x.tanh())
    both = base + delta
    joined = tuple(base) + tuple(delta)
    return both, both.a * 0.5 - both.b.exp(), len(joined), both._fields, isinstance(both, Pair)


def look(x):
    return {
        "class": type(x).__name__,
        "fields": dict(x._asdict()) if hasattr(x, "_asdict") else dataclasses.asdict(x),
    }


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    fast = [compile_fn(f) for f in (advance, annotate, add_pairs)]
    state, settings = State(torch.randn(3), torch.randn(3)), Settings()
    for _ in range(4):
        state, settings, report = fast[0](state, settings)
        notes.append(
            [
                look(state),
                look(settings),
                type(report).__name__,
                report.energy,
                report.notes,
                hash(settings) == hash(Settings(0.1, settings.pull)),
            ]
        )
    noted = Noted(torch.randn(2), torch.randn(2))
    for k in range(3):
        out, total = fast[1](noted, torch.full((2,), float(k)))
        notes.append([out is noted, total, noted.extra.clone(), noted.tally, type(out).__name__])
    for n in (3, 3, 5):
        x = torch.randn(n, requires_grad=True)
        both, value, length, fields, same = fast[2](x)
        value.sum().backward()
        notes.append(
            [
                type(both).__name__,
                both.a.detach(),
                both.b.detach(),
                length,
                list(fields),
                same,
                x.grad,
            ]
        )
    return notes
