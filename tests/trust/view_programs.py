"""Random programs that write in place through views, compared with eager.

A program makes a tensor, takes views of it (and views of views), writes through them, and returns
some of what there is then; a loss uses some of the results, and gradients are asked for some of the
inputs. Every program runs several times, the sizes of its inputs changing, so that the first calls
have numbers for sizes and later ones symbols. Compared are results, strides, which results share
memory, what was written to inputs, gradients and their strides, and the types of exceptions.

    python tests/trust/view_programs.py --cases 10000 --seed 0      # prints what differs
    python tests/trust/view_programs.py --case 0:123                # one of them, with its text
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable

import torch

import ingot

warnings.filterwarnings("ignore")

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "c64": torch.complex64,
    "i64": torch.int64,
}
WEIGHTS = [6, 3, 3, 1, 4, 2]

# Views by the rank they need; `{v}` is what is looked into.
VIEWS = {
    0: ["{v}.view(-1)", "{v}.unsqueeze(0)", "{v}[None]", "{v}.detach()"],
    1: [
        "{v}[1:]",
        "{v}[:2]",
        "{v}[:-1]",
        "{v}[-2:]",
        "{v}[::2]",
        "{v}[1::2]",
        "{v}[0]",
        "{v}[-1]",
        "{v}.narrow(0, 0, 2)",
        "{v}.view({v}.shape[0], 1)",
        "{v}.unfold(0, 2, 2)",
        "{v}.unflatten(0, (-1, 2))",
        "{v}.unsqueeze(-1)",
        "{v}.view(-1)",
        "{v}.split(2)[0]",
        "{v}.chunk(2)[-1]",
        "{v}.as_strided(({v}.shape[0] // 2,), (2,))",
        "{v}.expand(2, -1)",
        "{v}.detach()",
        "{v}.view_as({v})",
    ],
    2: [
        "{v}[:, 1:]",
        "{v}[:, :2]",
        "{v}[1:, :-1]",
        "{v}[:, -2:]",
        "{v}[:, ::2]",
        "{v}[..., 1::2]",
        "{v}[::2, ::2]",
        "{v}[0]",
        "{v}[:, 0]",
        "{v}[:, -1]",
        "{v}[-1:]",
        "{v}.t()",
        "{v}.transpose(0, 1)",
        "{v}.view(-1)",
        "{v}.reshape(-1)",
        "{v}.flatten()",
        "{v}.diagonal()",
        "{v}.diagonal(1)",
        "{v}.diagonal(-1)",
        "{v}.view(1, {v}.shape[0], {v}.shape[1])",
        "{v}.unflatten(-1, (-1, 2))",
        "{v}.unfold(1, 2, 2)",
        "{v}.unfold(1, 2, 1)",
        "{v}.unfold(0, 2, 2)",
        "{v}.select(1, 1)",
        "{v}.narrow(1, 1, 2)",
        "{v}.split(2, 1)[0]",
        "{v}.chunk(2, 1)[-1]",
        "{v}.unbind(1)[0]",
        "{v}.unbind(0)[-1]",
        "{v}.tensor_split(2, 1)[0]",
        "{v}.mT",
        "{v}.squeeze(0)",
        "{v}.squeeze()",
        "{v}[None]",
        "{v}.as_strided(({v}.shape[0],), ({v}.shape[1],))",
        "{v}.as_strided(({v}.shape[0], 2), ({v}.shape[1], 1))",
        "{v}.as_strided(({v}.shape[0] - 1, 2), ({v}.shape[1], 1), 1)",
        "{v}.detach()",
        "{v}.data",
        "{v}.hsplit(1)[0]",
    ],
    3: [
        "{v}[:, 1:, :2]",
        "{v}[..., 0]",
        "{v}[:, 0]",
        "{v}[0]",
        "{v}[0, :, 1:]",
        "{v}[..., ::2]",
        "{v}[:, ::2, 1:]",
        "{v}[..., -1]",
        "{v}.transpose(1, 2)",
        "{v}.transpose(0, 2)",
        "{v}.permute(2, 0, 1)",
        "{v}.permute(1, 0, 2)",
        "{v}.movedim(0, -1)",
        "{v}.mT",
        "{v}.flatten(1)",
        "{v}.flatten(0, 1)",
        "{v}.view({v}.shape[0], -1)",
        "{v}.reshape(-1, {v}.shape[2])",
        "{v}.diagonal(0, 1, 2)",
        "{v}.diagonal(0, 0, 2)",
        "{v}.diagonal(1, 0, 1)",
        "{v}.unbind(0)[0]",
        "{v}.unbind(-1)[0]",
        "{v}.split(1, 2)[0]",
        "{v}.select(2, 1)",
        "{v}.narrow(2, 0, 2)",
        "{v}.unfold(2, 2, 1)",
        "{v}.squeeze()",
        "{v}.swapaxes(0, 1)[1:]",
        "{v}.as_strided(({v}.shape[0], {v}.shape[2]), ({v}.stride(0), {v}.stride(2)))",
    ],
    4: [
        "{v}[:, :, 1:, :-1]",
        "{v}[:, 0]",
        "{v}[..., 0]",
        "{v}.flatten(2)",
        "{v}.flatten(1, 2)",
        "{v}.permute(0, 2, 3, 1)",
        "{v}.transpose(1, 3)",
        "{v}[:, ::2]",
        "{v}[..., ::2, ::2]",
        "{v}.diagonal(0, 2, 3)",
        "{v}.chunk(2, 1)[0]",
        "{v}.view({v}.shape[0], {v}.shape[1], -1)",
        "{v}.select(3, 0)",
    ],
}
COMPLEX_VIEWS = ["{v}.real", "{v}.imag", "torch.view_as_real({v})", "{v}.conj()"]

SEVERAL = ("split", "chunk", "unbind")

WRITES = [
    "{v}.zero_()",
    "{v}.fill_(3)",
    "{v}.mul_(2)",
    "{v}.mul_(w)",
    "{v}.mul_(s)",
    "{v}.add_(1)",
    "{v}.add_(w)",
    "{v}.add_(w, alpha=2)",
    "{v}.sub_(s)",
    "{v}.div_(2)",
    "{v}.div_(s)",
    "{v}.neg_()",
    "{v}.copy_(s)",
    "{v}.copy_({v} * 2)",
    "{v}.add_({v})",
    "{v}.mul_({v})",
    "{v}.sin_()",
    "{v}.tanh_()",
    "{v}.exp_()",
    "{v}.sqrt_()",
    "{v}.sigmoid_()",
    "{v}.relu_()",
    "{v}.abs_()",
    "{v}.clamp_(min=0)",
    "{v}.clamp_(-1, 1)",
    "{v}.pow_(2)",
    "{v}.square_()",
    "{v}.reciprocal_()",
    "{v}.floor_()",
    "{v}.masked_fill_({v}.detach().abs() > 1, 0)",
    "{v}.addcmul_({v}.detach(), s)",
    "{v}.lerp_(s, 0.5)",
    "{v}.cumsum_(-1)",
    "{v}.tril_()",
    "{v}.triu_(1)",
    "{v}.index_fill_(0, torch.tensor([0]), 2)",
    "{v}.index_add_(0, torch.tensor([0]), {v}[:1].detach())",
    "{v}.t_()",
    "{v}.unsqueeze_(0)",
    "torch.nn.functional.relu({v}, inplace=True)",
    "torch.nn.functional.leaky_relu({v}, inplace=True)",
    "torch.sin({v}.detach(), out={v}.detach())",
    "{v}[...] = 0",
    "{v}[...] = s",
    "{v}[:1] = 5",
    "{v}[..., :2] = 1",
    "{v}[..., 1:] *= 2",
    "{v}[..., 0] = s",
    "{v} += 1",
    "{v} *= s",
    "{v} -= w",
]


class Case:
    """The text of a random program, and what it is called with."""

    def __init__(self, name: str, parts: bool = True) -> None:
        """`parts`: writes to one of several views that an operator gives (`split`) occur."""
        r = self.random = random.Random(name)
        self.name = name
        self.parts = parts
        self.dtype = r.choices(list(DTYPES), WEIGHTS)[0]
        self.rank = r.choice([1, 2, 2, 2, 3, 3, 4])
        self.base = r.choice(["x * 1", "x * 1", "x.clone()", "x + w", "x * s", "x", "x.sin()"])
        can = DTYPES[self.dtype].is_floating_point or DTYPES[self.dtype].is_complex
        self.needs = [can and r.random() < 0.7, can and r.random() < 0.3, can and r.random() < 0.3]
        self.layout = r.choice(["rows", "rows", "rows", "turned", "wide", "steps"])
        self.text = self.write()
        self.shapes = self.choose_sizes(r.random() < 0.3)
        self.used = r.randrange(1, 8)
        self.asked = r.choice(["all", "all", "first"])
        self.values = r.choice(["normal", "normal", "normal", "zeros"])

    def write(self) -> str:
        r = self.random
        complex_type = DTYPES[self.dtype].is_complex
        lines, ranks = [f"y = {self.base}"], {"y": self.rank}
        kinds = {"y": complex_type}
        for k in range(r.randrange(1, 5)):
            source = r.choice(list(ranks))
            if r.random() < 0.6 or k == 0:
                pattern = r.choice(VIEWS[min(ranks[source], 4)])
                if kinds[source] and r.random() < 0.3:
                    pattern = r.choice(COMPLEX_VIEWS)
                if not self.parts and any(p in pattern for p in SEVERAL):
                    continue
                made = f"v{k}"
                lines.append(f"{made} = " + pattern.format(v=source))
                real = any(p in pattern for p in ("view_as_real", ".real", ".imag"))
                kinds[made] = kinds[source] and not real
                ranks[made] = self.rank_of(lines, made)
                if ranks[made] is None:
                    lines.pop()
                    del ranks[made]
                    continue
                source = made
            if r.random() < 0.75:
                lines.append(r.choice(WRITES).format(v=source))
            elif r.random() < 0.3:
                lines.append(f"u{k} = {source} * 2")
                ranks[f"u{k}"], kinds[f"u{k}"] = ranks[source], kinds[source]
        names = list(ranks)
        results = r.sample(names, min(len(names), r.randrange(1, 4)))
        if "y" not in results and r.random() < 0.5:
            results.append("y")
        lines.append(f"return {', '.join(results)},")
        body = "".join(f"    {line}\n" for line in lines)
        return f"def f(x, w, s):\n{body}"

    def rank_of(self, lines: list[str], name: str) -> int | None:
        """How many dims the variable has, by eager; None: the program raises before."""
        space: dict = {}
        text = "def f(x, w, s):\n" + "".join(f"    {n}\n" for n in [*lines, f"return {name}"])
        try:
            exec(text, {"torch": torch}, space)
            x = torch.ones([4] * self.rank, dtype=DTYPES[self.dtype])
            rank = space["f"](x, x[(0,) * self.rank].clone(), x[(0,) * self.rank].clone()).dim()
        except Exception:
            return 2 if self.random.random() < 0.1 else None
        return rank if rank <= 4 else None

    def choose_sizes(self, static: bool) -> list[list[int]]:
        r = self.random
        sizes = [r.choice([2, 3, 4, 4, 5, 6, 8]) for _ in range(self.rank)]
        if r.random() < 0.03:
            sizes[r.randrange(self.rank)] = r.choice([0, 1])
        shapes = [sizes, sizes]
        if static:
            return shapes
        changing = r.sample(range(self.rank), r.randrange(1, self.rank + 1))
        for _ in range(3):
            sizes = list(sizes)
            for d in changing:
                sizes[d] = r.choice([2, 3, 4, 5, 6, 7, 9])
            shapes.append(sizes)
        return shapes

    def inputs(self, call: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 + call)
        dtype = DTYPES[self.dtype]

        def draw(sizes: list[int]) -> torch.Tensor:
            if dtype == torch.int64:
                return torch.randint(-4, 5, sizes, generator=generator)
            wide = torch.complex128 if dtype.is_complex else torch.float64
            made = torch.randn(sizes, generator=generator, dtype=wide)
            return (made * 0 if self.values == "zeros" else made).to(dtype)

        sizes = self.shapes[call]
        if self.layout == "turned":
            x = draw(sizes[::-1]).permute(*range(len(sizes))[::-1])
        elif self.layout == "wide":
            x = draw([*sizes[:-1], sizes[-1] + 2])[..., : sizes[-1]]
        elif self.layout == "steps":
            x = draw([*sizes[:-1], 2 * sizes[-1]])[..., ::2]
        else:
            x = draw(sizes)
        every = [x, draw([]), draw([])]
        return [t.detach().requires_grad_(need) for t, need in zip(every, self.needs, strict=True)]

    def function(self) -> Callable:
        space: dict = {}
        name = f"<case {self.name}>"
        exec(compile(self.text, name, "exec"), {"torch": torch}, space)
        return space["f"]


def outcome(case: Case, function: Callable, call: int) -> list:
    """What a call leaves: a list of (what, value)."""
    inputs = case.inputs(call)
    seen: list = []
    try:
        results = function(*inputs)
    except Exception as error:
        return [("raises", type(error).__name__), ("x after", inputs[0].detach().clone())]
    storages: dict[int, int] = {}
    for i, t in enumerate([*inputs, *results]):
        place = storages.setdefault(t.untyped_storage()._cdata, len(storages))
        t_sizes = (t.dtype, tuple(t.shape), t.stride(), t.requires_grad)
        seen.append((f"facts {i}", (*t_sizes, place if t.numel() else None)))
        seen.append((f"value {i}", t.detach().clone()))
    roots = [t for k, t in enumerate(results) if t.requires_grad and case.used >> k & 1]
    leaves = [t for t in inputs if t.requires_grad]
    if case.asked == "first":
        leaves = leaves[:1]
    if not roots or not leaves:
        return seen
    try:
        tangents = [torch.ones_like(t) for t in roots]
        gradients = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
    except Exception as error:
        return [*seen, ("gradient raises", type(error).__name__)]
    for i, g in enumerate(gradients):
        none = g is None
        seen.append((f"gradient facts {i}", None if none else (g.dtype, g.shape, g.stride())))
        seen.append((f"gradient {i}", None if none else g.clone()))
    return seen


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype in (torch.bfloat16, torch.float16):
        return torch.allclose(a.float(), b.float(), rtol=4e-2, atol=4e-2, equal_nan=True)
    tolerance = 1e-9 if a.dtype == torch.float64 else 1e-4
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def difference(expected: list, found: list, strides: bool = True) -> str | None:
    if not strides:  # of gradients
        expected, found = ([e for e in s if "t facts" not in e[0]] for s in (expected, found))
    if [k for k, _ in expected] != [k for k, _ in found]:
        return f"eager {expected[-1]}, found {found[-1]}"
    for (what, a), (_, b) in zip(expected, found, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or not near(a, b):
                return f"{what}: eager {a.tolist()}, found {b.tolist()}"
        elif a != b:
            return f"{what}: eager {a}, found {b}"
    return None


def failure(case: Case, strides: bool = True) -> str | None:
    """The first difference between eager and Ingot; None: there is none."""
    function = case.function()
    fast = ingot.compile(function)
    for call in range(len(case.shapes)):
        expected = outcome(case, function, call)
        found = outcome(case, fast, call)
        said = difference(expected, found, strides)
        if said is not None:
            return f"call {call}, sizes {case.shapes[call]}: {said[:600]}"
    return None


def run(
    first: int,
    count: int,
    seed: int,
    seconds: float = 1e9,
    parts: bool = True,
    strides: bool = True,
) -> tuple[int, list[str]]:
    failures, done, start = [], 0, time.monotonic()
    for k in range(first, first + count):
        if time.monotonic() - start > seconds:
            break
        case = Case(f"{seed}:{k}", parts)
        said = failure(case, strides)
        done += 1
        if said is not None:
            facts = f"{case.dtype} {case.layout} needs {case.needs} uses {case.used} {case.asked}"
            failures.append(f"== {case.name} {facts}\n{case.text}   {said}\n")
            print(failures[-1], flush=True)
        ingot.reset()
    return done, failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--case")
    parser.add_argument("--no-parts", action="store_true", help="no writes to views of split")
    parser.add_argument("--no-strides", action="store_true", help="of gradients are not compared")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case:
        case = Case(options.case, not options.no_parts)
        print(case.text, case.shapes, case.dtype, case.layout, case.needs, case.used, case.values)
        print(failure(case) or "right")
        print(ingot.stats())
        return
    done, failures = run(
        options.first,
        options.cases,
        options.seed,
        options.seconds,
        not options.no_parts,
        not options.no_strides,
    )
    print(f"{done} programs, {len(failures)} differ")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
