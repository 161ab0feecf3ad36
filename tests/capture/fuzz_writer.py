"""Writes random Python programs over tensors: control flow, containers, closures, mutation.

A program is a tree of statements, so that a failing one can be made smaller. Everything it does is
valid Python most of the time; what raises is compared like everything else. Values stay small (sin
and tanh are strewn in), so that rounding does not decide a branch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from capture.fuzz_phrases import (
    CHANGES,
    COMPOUNDS,
    CONDITIONS,
    HEAD,
    NUMBERS,
    STATEMENTS,
    TENSORS,
)

# A node is a line, or a compound statement: parts of (header, body).
Node = "str | Compound"


@dataclass
class Compound:
    """A statement with bodies: `if ...:` with its `else:` and so on."""

    parts: list[tuple[str, list]] = field(default_factory=list)


def lines(block: list, indent: int) -> list[str]:
    """The text of a block."""
    out = []
    for node in block:
        if isinstance(node, str):
            out += ["    " * indent + row for row in node.splitlines()]
            continue
        for header, body in node.parts:
            out.append("    " * indent + header)
            out += lines(body, indent + 1)
    return out or ["    " * indent + "pass"]


@dataclass
class Script:
    """A program: the body of the compiled function, and what happens around its calls."""

    body: list
    steps: list[str]

    def text(self) -> str:
        rows = [HEAD, "    def f(x, y, n, flag, s):", "        nonlocal count, state, mode"]
        rows += lines(self.body, 2)
        rows += ["", "    f = w.compile(f)"]
        rows += ["    " + step for step in self.steps]
        return "\n".join(rows) + "\n"


class Writer:
    """Writes one program from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._tensors = ["x", "y"]
        self._numbers = ["n", "s"]
        self._fresh = 0
        self._loops = 0
        self._statements = 0

    def script(self) -> Script:
        body = self._block(0, self._random.randint(3, 7))
        body.append(self._return())
        grad = self._random.random() < 0.15
        steps = []
        for _ in range(self._random.randint(3, 5)):
            steps += self._step(grad)
        return Script(body, steps)

    def _pick(self, *choices):
        return self._random.choice(choices)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    # Calls, and changes between them.

    def _step(self, grad: bool) -> list[str]:
        size = 4 if self._chance(0.6) else self._pick(2, 3, 5, 6, 7)
        if size == 4:
            made = ["w.t(4, grad=True)" if grad else "w.t(4)", "w.t(4)"]
        else:
            made = [f"w.t({size})"] * 2
        number = self._pick("0", "1", "2", "3", "2", "-1")
        rows = []
        if self._chance(0.2):
            rows.append("same = w.t(4)")
            made = ["same", "same"]
        flag = self._pick("True", "False")
        real = self._pick("0.5", "1.5", "0.25", "2.0", "0.1", "-0.75", "0.0", "3.25")
        call = f"w.call(f, {made[0]}, {made[1]}, {number}, {flag}, {real})"
        rows += [call, "w.note(vars(thing), items, table, count, scale)"]
        rows.append("w.note(state, net.gain, net.mean, net.training, mode, weight.grad)")
        if self._chance(0.5):
            rows.append(self._random.choice(CHANGES))
        return rows

    # Statements.

    def _block(self, depth: int, count: int) -> list:
        known = list(self._tensors), list(self._numbers)
        block = [self._statement(depth) for _ in range(count)]
        if depth:  # what a branch defines is not known behind it
            self._tensors, self._numbers = known
        return block

    def _statement(self, depth: int):
        self._statements += 1
        if depth >= 3 or self._statements > 40 or self._chance(0.62):
            return self._simple()
        kinds = [self._if, self._if, self._with, self._try, self._inner]
        kinds += [self._phrase_with_bodies] * 3
        if depth < 2:
            kinds += [self._for, self._while]
        return self._random.choice(kinds)(depth)

    def _new(self, names: list[str], prefix: str) -> str:
        self._fresh += 1
        name = f"{prefix}{self._fresh}"
        names.append(name)
        return name

    def _filled(self, phrase: str, depth: int = 1) -> str:
        """A phrase with names and expressions in its places."""
        return phrase.format_map(
            {
                "t": self._random.choice(self._tensors),
                "u": self._random.choice(self._tensors),
                "a": self._tensor(depth) if "{a}" in phrase else "",
                "n": self._number() if "{n}" in phrase else "",
                "c": self._condition() if "{c}" in phrase else "",
            }
        )

    def _phrase_with_bodies(self, depth: int) -> Compound:
        return Compound(self._parts(self._random.choice(COMPOUNDS), depth))

    def _parts(self, parts: list, depth: int) -> list[tuple[str, list]]:
        made = []
        for header, body in parts:
            block: list = []
            for one in [body] if isinstance(body, str) else body:
                if one == "...":
                    block += self._block(depth + 1, self._random.randint(1, 2))
                elif isinstance(one, str):
                    block.append(self._filled(one))
                else:
                    block.append(Compound(self._parts(one, depth + 1)))
            made.append((self._filled(header), block))
        return made

    def _simple(self) -> str:
        if self._chance(0.4):
            return self._filled(self._random.choice(STATEMENTS))
        r = self._random.random()
        if r < 0.28:
            value = self._tensor(2)
            return f"{self._new(self._tensors, 't')} = {value}"
        if r < 0.36:
            value = self._number()
            return f"{self._new(self._numbers, 'i')} = {value}"
        t = self._random.choice(self._tensors)
        if r < 0.48:
            return self._pick(
                f"{t} = {self._tensor(2)}",
                f"{t} += {self._tensor(1)}",
                f"{t} *= 0.5",
                f"{t}.add_({self._tensor(1)})",
                f"{t}[0] = {self._number()}",
                f"{t}[1:3].mul_(0.5)",
                f"{t}.view(-1)[::2].sub_(1)",
                f"{t} = {t}.clone()",
            )
        if r < 0.66:
            return self._container(t)
        if r < 0.82:
            return self._pick(
                "count += 1",
                "thing.scale *= 0.9",
                f"thing.value = {self._tensor(1)}",
                f"thing.scale = {self._number()}",
                "thing.count += 2",
                f"thing.log.append({self._number()})",
                f"thing.made = [{t}, {{'k': {t}}}]",
                f"setattr(thing, 'name{self._pick(1, 2)}', {t})",
                f"{t} = thing.bump({t})",
            )
        if r < 0.9:
            return self._pick(
                f"print({self._number()}, {t}.shape)",
                f"assert {self._condition()} or True, 'never'",
                f"{t} = {t} * ({t}.sum().item() > 0.3)",
                f"i0 = int({t}.sum().tanh().item() * 7.3 + 0.123)",
                "if count > 50: raise RuntimeError(f'count {count}')",
                f"{t}, {self._random.choice(self._tensors)} = {self._tensor(1)}, {t}",
            )
        return self._pick(
            f"{t} = {t} + torch.rand(4)[0]",
            f"{t} = torch.where({t} > 0, {t}, {self._tensor(1)})",
            f"{t} = torch.stack([{t}, {self._tensor(1)}]).sum(0)",
            f"{t} = sum(parts({t}, 2))",
            f"{t} = max([{t}, {t} * 2], key=lambda v: float(v.sum()))",
        )

    def _container(self, t: str) -> str:
        return self._pick(
            f"items.append({t}) if len(items) < 6 else None",
            f"items[-1] = {self._tensor(1)}",
            "items.pop() if len(items) > 2 else None",
            f"items.insert(0, {t} * 2) if len(items) < 6 else None",
            "items.reverse()",
            "del items[3:]",
            f"items[0].add_({self._number()})",
            f"table['{self._pick('a', 'b', 'c')}'] = {t}",
            f"table.setdefault('list', []).append({self._number()})",
            "table.pop('b', None)",
            "table['n'] = table['n'] + 1",
            f"table.update(c={t}, n={self._number()})",
            f"{t} = {t} + table['a']",
            f"{t} = sum(items) * 0.1",
            f"{t} = [v * 2 for v in items][-1]",
            f"{t} = {t} * (len(items) + len(table))",
            "first, *middle, last = items + [x, y]",
            f"{t} = {{k: v for k, v in table.items() if k == 'a'}}['a'] - {t}",
        )

    def _if(self, depth: int) -> Compound:
        parts = [(f"if {self._condition()}:", self._block(depth + 1, self._random.randint(1, 3)))]
        if self._chance(0.25):
            parts.append((f"elif {self._condition()}:", self._block(depth + 1, 1)))
        if self._chance(0.5):
            parts.append(("else:", self._block(depth + 1, self._random.randint(1, 2))))
        if depth and self._chance(0.15):
            parts[0][1].append(self._return())
        return Compound(parts)

    def _for(self, depth: int) -> Compound:
        self._loops += 1
        k, t = f"k{self._loops}", f"e{self._loops}"
        kind = self._random.randrange(5)
        header = [
            f"for {k} in range({self._pick('2', '3', 'n', 'len(items)')}):",
            f"for {k}, {t} in enumerate(list(items)):",
            f"for {t}, {k} in zip(items[:], [1, 2, 3]):",
            f"for {k}, {t} in enumerate(parts({self._random.choice(self._tensors)}, 2)):",
            f"for {k} in sorted(key for key in table if key != 'list'):",
        ][kind]
        known = list(self._tensors), list(self._numbers)
        if kind in (1, 2, 3):
            self._tensors.append(t)
        if kind != 4:
            self._numbers.append(k)
        body = self._block(depth + 1, self._random.randint(1, 3))
        if self._chance(0.35):
            leave = self._pick("break", "continue")
            place = self._random.randrange(len(body) + 1)
            body.insert(place, Compound([(f"if {self._condition()}:", [leave])]))
        self._tensors, self._numbers = known
        parts = [(header, body)]
        if self._chance(0.2):
            parts.append(("else:", self._block(depth + 1, 1)))
        return Compound(parts)

    def _while(self, depth: int) -> Compound:
        self._loops += 1
        k = f"w{self._loops}"
        body = [f"{k} += 1", *self._block(depth + 1, self._random.randint(1, 2))]
        condition = f"{k} < {self._pick('2', '3', 'n')}"
        if self._chance(0.4):
            condition += f" and ({self._condition()})"
        # The counter is set in front of the loop by a block that always runs.
        return Compound([("if True:", [f"{k} = 0", Compound([(f"while {condition}:", body)])])])

    def _with(self, depth: int) -> Compound:
        header = self._pick(
            "with torch.no_grad():",
            "with Scope(thing, False) as entered:",
            "with Scope(thing, True), Scope(thing, False):",
        )
        body = self._block(depth + 1, self._random.randint(1, 3))
        if "True" in header and self._chance(0.5):
            body.append(f"raise ValueError({self._number()})")
        return Compound([(header, body)])

    def _try(self, depth: int) -> Compound:
        body = self._block(depth + 1, self._random.randint(1, 2))
        body.append(
            self._pick(
                "raise ValueError('planned')",
                "table['missing']",
                "items[99]",
                f"{self._random.choice(self._tensors)} @ torch.ones(9)",
                "thing.nothing",
                "count += 1",
                f"if {self._condition()}: raise KeyError(n)",
            )
        )
        parts = [("try:", body)]
        if self._chance(0.85):
            kind = self._pick("Exception", "(ValueError, LookupError)", "RuntimeError")
            handler = ["thing.log.append(type(error).__name__)"]
            parts.append((f"except {kind} as error:", handler + self._block(depth + 1, 1)))
        if len(parts) == 1 or self._chance(0.4):
            parts.append(("finally:", self._block(depth + 1, 1)))
        return Compound(parts)

    def _inner(self, depth: int) -> Compound:
        self._fresh += 1
        name, t = f"inner{self._fresh}", self._random.choice(self._tensors)
        known = list(self._tensors), list(self._numbers)
        self._tensors, self._numbers = ["v", t], ["n"]
        value = self._tensor(2)
        self._tensors, self._numbers = known
        body = ["nonlocal count", "count += 1", f"return {value}"]
        use = f"{t} = {self._pick(f'{name}({t})', f'[{name}(v) for v in items[:2]][0]')}"
        return Compound([("if True:", [Compound([(f"def {name}(v):", body)]), use])])

    def _return(self) -> str:
        t, u = self._random.choice(self._tensors), self._random.choice(self._tensors)
        return "return " + self._pick(
            t,
            f"{t}, {u}, {self._number()}",
            f"{{'t': {t}, 'items': items, 'n': {self._number()}}}",
            f"[{t}, [{u}, {t}]], thing.count",
            f"{t}.sum(), {u}.view(2, -1) if {u}.dim() == 1 and {u}.shape[0] % 2 == 0 else {u}",
            f"Thing({t})",
        )

    # Expressions.

    def _tensor(self, depth: int) -> str:
        if depth == 0 or self._chance(0.25):
            return self._random.choice(self._tensors)
        if self._chance(0.25):
            return self._filled(self._random.choice(TENSORS), depth - 1)
        a = self._tensor(depth - 1)
        r = self._random.random()
        if r < 0.3:
            return f"({a} {self._pick('+', '-', '*')} {self._tensor(depth - 1)})"
        if r < 0.5:
            return f"({a} {self._pick('+', '-', '*')} {self._number()})"
        if r < 0.7:
            return f"{a}.{self._pick('sin', 'tanh', 'cos', 'relu', 'abs', 'neg')}()"
        if r < 0.85:
            return self._pick(
                f"helper({a})",
                f"helper({a}, {self._tensor(depth - 1)}, 1, k={self._number()})",
                f"thing.bump({a})",
                f"torch.tanh({a})",
                f"torch.maximum({a}, {self._tensor(depth - 1)})",
                f"(lambda v, s=scale: v * s)({a})",
            )
        return self._pick(
            f"({a} if {self._condition()} else -{a})",
            "thing.twice",
            "items[0]",
            "table['a']",
            f"{a}.flip(0)",
            f"({a} - {a}.mean())",
            f"{a}.clamp(-2, {self._pick('1', '2.5')})",
            f"({a} * scale)",
        )

    def _number(self) -> str:
        if self._chance(0.3):
            return self._filled(self._random.choice(NUMBERS))
        return self._pick(
            self._random.choice(self._numbers),
            self._random.choice(self._numbers),
            "2",
            "0.5",
            "len(items)",
            "count",
            "(n % 3)",
            "x.shape[0]",
            "thing.count",
            "table['n']",
            "(count and 3)",
            "s",
            "thing.scale",
            f"(s {self._pick('+', '-', '*', '/')} {self._pick('2', 'scale', '(1 + n * n)')})",
            f"{self._pick('max', 'min')}(s, {self._pick('0.75', 'n', 'scale')})",
            "(-s if s < 1 else abs(s))",
            "(s or 0.25) ** 2",
        )

    def _condition(self) -> str:
        if self._chance(0.3):
            return self._filled(self._random.choice(CONDITIONS))
        t = self._random.choice(self._tensors)
        return self._pick(
            "flag",
            "not flag",
            f"{self._number()} > 1",
            f"0 <= {self._number()} < 3",
            "n == 2 or flag",
            "'b' in table",
            "len(items) > 2",
            f"{t}.sum() > 0.3",
            f"({t} > 0).any()",
            f"{t}.dim() == 1",
            f"{t} is x",
            "isinstance(thing, Thing)",
            "thing.count % 2",
        )


def write(seed: str) -> Script:
    """The program of a seed."""
    return Writer(seed).script()
