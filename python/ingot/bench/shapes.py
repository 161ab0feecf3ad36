"""Memory-bound programs of random shape: `python -m ingot.bench.shapes --seeds 0-99`.

A seed is a program: its kind, sizes (from 1, seldom powers of two), axes, order in memory and type
are drawn from it. Each is run by eager, Ingot and `torch.compile` in one process and compared with
double precision; printed is the share of a copy's bandwidth: the bytes of the inputs once and of
the outputs once, over the time, over what `x.clone()` reaches there. Sizes are scaled to about
`--elements`. On a GPU the share says what is lost; on a processor compare the columns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import ingot


@dataclass
class Program:
    """A drawn program: what it is called, what it computes, and of what."""

    name: str
    function: Callable
    inputs: tuple[torch.Tensor, ...]


class Writer:
    """Draws a program from a seed."""

    def __init__(self, seed: int, elements: int, device: str) -> None:
        self.r = random.Random(seed)
        self.elements, self.device = elements, device
        self.dtype = self.r.choice([torch.float32, torch.bfloat16, torch.float32, torch.float16])
        torch.manual_seed(seed)

    def size(self, least: int, most: int) -> int:
        """Between the two, spread evenly by magnitude; at times a power of two."""
        n = round(math.exp(self.r.uniform(math.log(least), math.log(most))))
        return 1 << (n.bit_length() - 1) if self.r.random() < 0.2 else n

    def sizes(self, rank: int) -> list[int]:
        """Of a tensor of about `elements` elements."""
        shares = sorted(self.r.random() for _ in range(rank - 1))
        bounds = [0.0, *shares, 1.0]
        whole = math.log(self.elements)
        found = [max(1, round(math.exp((b - a) * whole))) for a, b in itertools.pairwise(bounds)]
        self.r.shuffle(found)
        return found

    def tensor(self, sizes: list[int], order: list[int] | None = None) -> torch.Tensor:
        """Dense, its dims in memory in this order, outermost first."""
        if order is None:
            order = list(range(len(sizes)))
        x = torch.randn([sizes[d] for d in order], device=self.device, dtype=self.dtype)
        return x.permute([order.index(d) for d in range(len(sizes))])

    def order(self, rank: int) -> list[int]:
        """Row-major half the time."""
        order = list(range(rank))
        if self.r.random() < 0.5:
            self.r.shuffle(order)
        return order

    def dims(self, rank: int) -> list[int]:
        count = self.r.randint(1, rank)
        return sorted(self.r.sample(range(rank), count))

    def any_tensor(self) -> torch.Tensor:
        rank = self.r.randint(1, 5)
        return self.tensor(self.sizes(rank), self.order(rank))

    def write(self) -> Program:
        kind = self.r.choice(KINDS)
        program = kind(self)
        shapes = " ".join(
            f"{tuple(x.shape)}"
            + ("" if x.is_contiguous() else "/" + "".join(str(d) for d in order_of(x)))
            for x in program.inputs
        )
        program.name = f"{program.name} {shapes} {str(self.dtype)[6:]}"
        return program


def order_of(x: torch.Tensor) -> list[int]:
    return sorted(range(x.dim()), key=lambda d: -x.stride(d))


def reduction(w: Writer) -> Program:
    x = w.any_tensor()
    dims = w.dims(x.dim())
    keep = w.r.random() < 0.5
    name = w.r.choice(["sum", "mean", "var", "std", "amax", "amin", "norm", "logsumexp"])
    if name == "norm":
        return Program(f"norm {dims}", lambda x: torch.linalg.vector_norm(x, 2, dims, keep), (x,))
    return Program(f"{name} {dims}", lambda x: getattr(torch, name)(x, dims, keepdim=keep), (x,))


def argument(w: Writer) -> Program:
    x = w.any_tensor()
    d = w.r.randrange(x.dim())
    name = w.r.choice(["argmax", "argmin"])
    return Program(f"{name} {d}", lambda x: getattr(x, name)(d), (x,))


def standardised(w: Writer) -> Program:
    x = w.any_tensor()
    dims = w.dims(x.dim())

    def function(x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        return (x - mean) * (var + 1e-5).rsqrt()

    return Program(f"standardised {dims}", function, (x,))


def divided(w: Writer) -> Program:
    x = w.any_tensor()
    dims = w.dims(x.dim())
    return Program(
        f"divided by norm {dims}",
        lambda x: x / torch.linalg.vector_norm(x, 2, dims, True).clamp_min(1e-6),
        (x,),
    )


def softmax(w: Writer) -> Program:
    x = w.any_tensor()
    d = w.r.randrange(x.dim())
    name = w.r.choice(["softmax", "log_softmax"])
    return Program(f"{name} {d}", lambda x: getattr(F, name)(x, d), (x,))


def layer_norm(w: Writer) -> Program:
    rank = w.r.randint(2, 4)
    sizes = w.sizes(rank)
    n = w.r.randint(1, rank - 1)
    shape = sizes[-n:]
    x, weight, bias = w.tensor(sizes, w.order(rank)), w.tensor(shape), w.tensor(shape)
    return Program(
        f"layer norm {n}", lambda x, a, b: F.layer_norm(x, shape, a, b), (x, weight, bias)
    )


def rms_norm(w: Writer) -> Program:
    sizes = w.sizes(w.r.randint(2, 3))
    n = sizes[-1:]
    return Program("rms norm", lambda x, a: F.rms_norm(x, n, a), (w.tensor(sizes), w.tensor(n)))


def image(w: Writer, spatial: int) -> torch.Tensor:
    """A batch of images, channels last at times."""
    channels = w.size(3, 400)
    side = [w.size(5, 300) for _ in range(spatial)]
    batch = max(1, w.elements // (channels * math.prod(side)))
    last = [0, *range(2, spatial + 2), 1]
    order = last if w.r.random() < 0.5 else None
    return w.tensor([batch, channels, *side], order)


def group_norm(w: Writer) -> Program:
    x = image(w, w.r.randint(1, 3))
    c = x.shape[1]
    groups = w.r.choice([g for g in range(1, c + 1) if c % g == 0])
    return Program(
        f"group norm {groups}",
        lambda x, a, b: F.group_norm(x, groups, a, b),
        (x, w.tensor([c]), w.tensor([c])),
    )


def instance_norm(w: Writer) -> Program:
    x = image(w, w.r.randint(1, 3))
    return Program("instance norm", lambda x: F.instance_norm(x), (x,))


def batch_norm(w: Writer) -> Program:
    x = image(w, w.r.randint(1, 3))
    c = x.shape[1]
    return Program(
        "batch norm training",
        lambda x, a, b: F.batch_norm(x, None, None, a, b, True),
        (x, w.tensor([c]), w.tensor([c])),
    )


def chain(w: Writer) -> Program:
    """Operands in orders of their own, some repeated along dims."""
    rank = w.r.randint(1, 4)
    sizes = w.sizes(rank)
    inputs = [w.tensor(sizes, w.order(rank))]
    for _ in range(w.r.randint(0, 2)):
        own = [1 if w.r.random() < 0.3 else n for n in sizes]
        inputs.append(w.tensor(own, w.order(rank)))
    first = w.r.choice([F.gelu, F.silu, torch.tanh, F.mish, torch.relu, F.hardtanh])

    def function(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        y = first(x) * 0.5
        for o in others:
            y = y + o
        return y

    return Program(f"chain {first.__name__}", function, tuple(inputs))


def moved(w: Writer) -> Program:
    rank = w.r.randint(2, 4)
    x = w.tensor(w.sizes(rank), w.order(rank))
    to = list(range(rank))
    w.r.shuffle(to)
    return Program(f"moved {to}", lambda x: x.permute(to).contiguous() * 2, (x,))


def joined(w: Writer) -> Program:
    sizes = w.sizes(w.r.randint(1, 3))
    d = w.r.randrange(len(sizes))
    other = list(sizes)
    other[d] = w.size(1, max(2, sizes[d]))
    return Program(
        f"joined {d}", lambda x, y: torch.cat([x, y], d).relu(), (w.tensor(sizes), w.tensor(other))
    )


def pooled(w: Writer) -> Program:
    spatial = w.r.randint(1, 3)
    x = image(w, spatial)
    k = [w.r.randint(2, max(2, min(11, n // 2))) for n in x.shape[2:]]
    step = [w.r.randint(1, n) for n in k]
    name = w.r.choice(["avg_pool", "max_pool"])
    pool = getattr(F, f"{name}{spatial}d")
    return Program(f"{name} {k} by {step}", lambda x: pool(x, k, step), (x,))


def upsampled(w: Writer) -> Program:
    x = image(w, 2)
    mode = w.r.choice(["nearest", "bilinear"])
    return Program(f"{mode} by 2", lambda x: F.interpolate(x, scale_factor=2, mode=mode), (x,))


def shifted(w: Writer) -> Program:
    rank = w.r.randint(2, 4)
    x = w.tensor(w.sizes(rank), w.order(rank))
    if w.r.random() < 0.5:
        d = w.r.randrange(rank)
        return Program(f"roll {d}", lambda x: x.roll(1, d) + x, (x,))
    pads = [w.r.randint(0, 3) for _ in range(4)]
    return Program(f"pad {pads}", lambda x: F.pad(x, pads) + 1, (x,))


def gated(w: Writer) -> Program:
    x = w.tensor(w.sizes(w.r.randint(1, 3)))
    if x.shape[-1] % 2:
        x = w.tensor([*x.shape[:-1], x.shape[-1] + 1])
    return Program("swiglu", lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (x,))


def scanned(w: Writer) -> Program:
    x = w.any_tensor()
    d = w.r.randrange(x.dim())
    return Program(f"cumsum {d}", lambda x: x.cumsum(d), (x,))


KINDS: list[Callable[[Writer], Program]] = [
    *[reduction] * 4, argument, *[standardised] * 2, divided, *[softmax] * 3, *[layer_norm] * 2,
    rms_norm, *[group_norm] * 2, instance_norm, batch_norm, *[chain] * 4, *[moved] * 2, joined,
    *[pooled] * 2, upsampled, shifted, gated, scanned,
]  # fmt: skip


def error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, of the whole; of integers the share that differs."""
    if not result.is_floating_point():
        return (result != exact).double().mean().item()
    away = (result.double() - exact).norm().item()
    return away / max(exact.norm().item(), 1e-30)


def wrong(program: Program, eager: torch.Tensor, result: torch.Tensor) -> str:
    """What is wrong with a result; empty where nothing is."""
    if (result.dtype, result.shape) != (eager.dtype, eager.shape):
        return "another type or shape"
    if result.stride() != eager.stride():
        return f"strides {result.stride()} for {eager.stride()}"
    if not eager.is_floating_point():  # places of the greatest: as eager's
        return "" if torch.equal(result, eager) else "another place"
    exact = program.function(*(x.double() for x in program.inputs))
    ours, theirs = error(result, exact), error(eager, exact)
    rounding = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[eager.dtype]
    return "" if ours <= 2 * theirs + rounding / 8 else f"error {ours:.2e}, eager's {theirs:.2e}"


def timed(function: Callable, inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call, the median of a few runs."""
    cuda = inputs[0].is_cuda
    found = []
    for _ in range(3):
        function(*inputs)
    for _ in range(5):
        if cuda:
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            for _ in range(3):
                function(*inputs)
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / 3e3)
        else:
            begin = time.perf_counter()
            function(*inputs)
            found.append(time.perf_counter() - begin)
    return sorted(found)[len(found) // 2]


def measure(program: Program, ways: list[str], peak: float) -> dict[str, Any]:
    """The program by everybody asked for."""
    row: dict[str, Any] = {"program": program.name}
    eager = program.function(*program.inputs)
    moved_bytes = sum(x.numel() * x.element_size() for x in (*program.inputs, eager))
    for way in ways:
        try:
            function = program.function
            if way == "ingot":
                ingot.reset()
                function = ingot.compile(function, options={"fallback": False})
            elif way == "compile":
                torch._dynamo.reset()
                function = torch.compile(function)
            result = function(*program.inputs)
            problem = wrong(program, eager, result) if way == "ingot" else ""
            del result
            seconds = timed(function, program.inputs)
            row[way] = {"ms": seconds * 1e3, "share": moved_bytes / seconds / peak}
            if problem:
                row[way]["wrong"] = problem
        except Exception as e:
            row[way] = {"error": f"{type(e).__name__}: {e}"[:200]}
    return row


def bandwidth(device: str, elements: int) -> float:
    """Bytes a second of a copy."""
    x = torch.empty(max(elements, 1 << 22) * 2, device=device)
    return 2 * x.numel() * 4 / timed(lambda x: x.clone(), (x,))


def seeds_of(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-49")
    parser.add_argument("--against", default="eager,ingot,compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--elements", type=int, default=0, help="of the inputs (64 million; 8)")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds in all")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    elements = a.elements or (1 << 26 if a.device == "cuda" else 1 << 23)
    ways, begin = a.against.split(","), time.monotonic()
    shares: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        peak = bandwidth(a.device, elements)
        for seed in seeds_of(a.seeds):
            if time.monotonic() - begin > a.limit:
                print(f"out of time before seed {seed}")
                break
            program = Writer(seed, elements, a.device).write()
            row = {"seed": seed, **measure(program, ways, peak)}
            cells = []
            for way in ways:
                cell = row[way]
                shares[way] += [cell["share"]] if "share" in cell else []
                cells.append(f"{cell['share']:8.3f}" if "share" in cell else cell["error"])
                cells += [cell["wrong"]] if "wrong" in cell else []
            print(f"{seed:4} " + " ".join(cells) + f"  {program.name}", flush=True)
            if a.out:
                with a.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            del program
            if a.device == "cuda":
                torch.cuda.empty_cache()
    for way, found in shares.items():
        if found:
            mean = math.exp(sum(math.log(s) for s in found) / len(found))
            below = sum(s < 0.5 for s in found)
            print(f"{way}: geometric mean {mean:.3f}, below 0.5: {below} of {len(found)}")


if __name__ == "__main__":
    main()
