"""Random programs around a break: whatever they catch and clean up, `fullgraph` refuses them.

Each program is a random nest of handlers, clean-ups, contexts, generators, callbacks and calls with
a break in its middle. It is written twice: with handlers that would take the error and clean-ups
that would replace it, and plainly, with neither. The second, run eagerly with an error of its own
at that place, says what has to be cleaned up, and in which order.
"""

import contextlib
import random

import pytest
import torch

import ingot

HANDLERS = ("Exception", "BaseException", "RuntimeError", "(KeyError, RuntimeError)", "")


class Place(Exception):
    """What the plain program raises in place of the break."""


class Context:
    """Logs that it is left; may suppress what leaves it, or replace it."""

    def __init__(self, log, name, how="plain"):
        self.log, self.name, self.how = log, name, how

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.log.append(self.name)
        if self.how == "raises":
            raise KeyError(self.name)
        return self.how == "suppresses"


@contextlib.contextmanager
def generator(log, name, how="plain"):
    try:
        yield
    except Exception:
        if how == "plain":
            raise
        log.append("taken")
    finally:
        log.append(name)


class Writer:
    """Writes both forms of a program; `self.odd` decides nothing but the text of a handler."""

    def __init__(self, seed):
        self.random, self.count = random.Random(seed), 0

    def name(self):
        self.count += 1
        return f"n{self.count}"

    def nest(self, depth):
        """Lines of the greedy and of the plain form."""
        if depth == 0:
            return (
                ["x = x * 2 if x.sum() > 0 else x"],
                ["raise Place"],
            )
        greedy, plain = self.nest(depth - 1)
        greedy, plain = [*greedy, "log.append('taken')"], [*plain, "log.append('taken')"]
        kind = self.random.choice(
            ("handler", "handler", "clean", "clean", "context", "generator", "call", "loop",
             "iterates", "callback", "within", "comprehension")
        )  # fmt: skip
        return getattr(self, kind)(greedy, plain)

    @staticmethod
    def indent(lines):
        return [f"    {line}" for line in lines]

    def handler(self, greedy, plain):
        handlers = []
        for one in self.random.sample(HANDLERS[:-1], self.random.randint(1, 2)):
            alias = self.random.choice(("", " as error"))
            handlers += [f"except {one}{alias}:", "    log.append('taken')"]
        if self.random.random() < 0.3:
            handlers += ["except:", "    log.append('taken')"]
        missed = ["except ZeroDivisionError:", "    pass"]
        return (
            ["try:", *self.indent(greedy), *handlers],
            ["try:", *self.indent(plain), *missed],
        )

    def clean(self, greedy, plain):
        name = self.name()
        end = self.random.choice(
            ([], [], ["return x"], ["raise KeyError(log)"], ["raise"],
             ["try:", "    raise KeyError", "except KeyError:", "    pass"])
        )  # fmt: skip
        handler = self.random.choice(([], ["except Exception:", "    log.append('taken')"]))
        logs = f"    log.append('{name}')"
        return (
            ["try:", *self.indent(greedy), *handler, "finally:", logs, *self.indent(end)],
            ["try:", *self.indent(plain), "finally:", logs],
        )

    def context(self, greedy, plain):
        name, how = self.name(), self.random.choice(("plain", "suppresses", "raises"))
        return (
            [f"with Context(log, '{name}', '{how}'):", *self.indent(greedy)],
            [f"with Context(log, '{name}'):", *self.indent(plain)],
        )

    def generator(self, greedy, plain):
        name, how = self.name(), self.random.choice(("plain", "suppresses"))
        return (
            [f"with generator(log, '{name}', '{how}'):", *self.indent(greedy)],
            [f"with generator(log, '{name}'):", *self.indent(plain)],
        )

    def call(self, greedy, plain):
        name = self.name()
        forms = []
        for lines in (greedy, plain):
            forms.append([f"def {name}(x):", *self.indent(lines), "    return x", f"x = {name}(x)"])
        return tuple(forms)

    def loop(self, greedy, plain):
        head = self.random.choice(("for _ in range(3):", "while True:"))
        end = self.random.choice(("break", "continue" if head.startswith("for") else "break"))
        tries = ["try:", *self.indent(greedy), "except Exception:", "    log.append('taken')"]
        return (
            [head, *self.indent([*tries, end])],
            [head, *self.indent([*plain, "break"])],
        )

    def iterates(self, greedy, plain):
        name = self.name()
        catches = ["except Exception:", "    log.append('taken')", "    yield x"]
        tries = ["try:", *self.indent([*greedy, "yield x"]), *catches]
        items = [f"for y in {name}(x):", "    x = x + y"]
        return (
            [f"def {name}(x):", *self.indent(tries), *items],
            [f"def {name}(x):", *self.indent([*plain, "yield x"]), *items],
        )

    def callback(self, greedy, plain):
        name = self.name()
        forms = []
        for lines in (greedy, plain):
            forms.append(
                [f"def {name}(k, x=x):", *self.indent(lines), "    return k",
                 f"x = x * sorted([2, 1], key={name})[0]"]
            )  # fmt: skip
        return tuple(forms)

    def comprehension(self, greedy, plain):
        name = self.name()
        forms = []
        for lines in (greedy, plain):
            forms.append(
                [f"def {name}(k, x=x):", *self.indent(lines), "    return k",
                 f"x = x * sum([{name}(k) for k in (1, 2)])"]
            )  # fmt: skip
        return tuple(forms)

    def within(self, greedy, plain):
        head = ["try:", "    raise ValueError", "except ValueError:"]
        catches = ["except Exception:", "    log.append('taken')"]
        return (
            [*head, *self.indent(["try:", *self.indent(greedy), *catches])],
            [*head, *self.indent(plain)],
        )

    def functions(self, depth):
        made = []
        for lines in self.nest(depth):
            text = "\n".join(["def program(x, log):", *self.indent([*lines, "return x"])])
            scope = {"Place": Place, "Context": Context, "generator": generator}
            exec(compile(text, "<a random program>", "exec"), scope)
            made.append((scope["program"], text))
        return made


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_random_programs_are_refused(start, monkeypatch):
    monkeypatch.setenv("INGOT_CAPTURE", "own")
    for seed in range(start, start + 25):
        writer = Writer(seed)
        (program, text), (plain, _) = writer.functions(writer.random.randint(1, 5))
        expected, logs = [], ([], [])
        with pytest.raises(Place):
            plain(torch.ones(2), expected)
        compiled = ingot.compile(program, fullgraph=True)
        for log in logs:
            with pytest.raises(ingot.Unsupported):
                compiled(torch.ones(2), log)
        assert logs == (expected, []), f"seed {seed}: {logs} instead of {expected}\n{text}"
