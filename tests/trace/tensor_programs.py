"""Random programs of tensor operators: views, writes, mixed types.

A program is a list of steps over a growing pool of tensors. What hypothesis draws are numbers that
are taken modulo whatever fits, so every list is a program and smaller ones are simpler. Steps that
eager refuses are dropped. Values start as small multiples of 1/2; operators that jump (floor,
comparisons) are given only what has been computed exactly, so that no rounding decides.
As a program: python tests/trace/tensor_programs.py [--seconds 60] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import opinfo
import torch

SHAPES = [(4, 6), (6,), (), (1, 6), (4, 1), (2, 3, 4), (0, 6), (17,), (4, 4), (3, 5, 2)]
DTYPES = [getattr(torch, name) for name in opinfo.DTYPES]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
T = torch.Tensor


def _dim(x: T, n: int) -> int:
    return n % x.dim()


def _index(x: T, n: int, size: int) -> T:
    return torch.arange(n, n + size) % max(size - 1, 1)


def _masked(x: T, y: T, n: int) -> T:
    x.masked_fill_(y.bool(), n % 3)
    return x


def _set_slice(x: T, y: T, n: int) -> T:
    x[n % 2 :: 2] = y
    return x


def _set_row(x: T, y: T, n: int) -> T:
    x[n % x.shape[0]] = n % 5
    return x


def _put(x: T, y: T, n: int) -> T:
    x[_index(x, n, x.shape[0])] = n % 4
    return x


def _data_write(x: T, y: T, n: int) -> T:
    x.data.add_(1)
    return x


# Each takes two tensors of the pool and a number. Jumps and in-place forms are told apart.
EXACT: list[Callable[[T, T, int], T]] = [
    lambda x, y, n: x + y,
    lambda x, y, n: x - y,
    lambda x, y, n: x * 2,
    lambda x, y, n: x + n % 5,
    lambda x, y, n: 3 - x,
    lambda x, y, n: x.abs(),
    lambda x, y, n: torch.maximum(x, y),
    lambda x, y, n: torch.relu(x),
    lambda x, y, n: x.clamp(-2, n % 5),
    lambda x, y, n: -x,
    lambda x, y, n: x.to(DTYPES[n % len(DTYPES)]),
    lambda x, y, n: torch.cat([x, y], n % max(x.dim(), 1)),
    lambda x, y, n: torch.stack([x, y], n % (x.dim() + 1)),
    lambda x, y, n: x.flip(_dim(x, n)),
    lambda x, y, n: x.roll(n, _dim(x, n)),
    lambda x, y, n: x.amax(_dim(x, n), keepdim=n % 2 == 0),
    lambda x, y, n: x.index_select(_dim(x, n), _index(x, n, x.shape[_dim(x, n)])),
    lambda x, y, n: x[_index(x, n, x.shape[0])],
    lambda x, y, n: torch.where(torch.arange(x.shape[-1]) % 2 == 0, x, y),
    lambda x, y, n: x.clone(),
    lambda x, y, n: x.contiguous(),
    lambda x, y, n: x.repeat(2, *[1] * x.dim()),
    lambda x, y, n: x.tril(n % 3 - 1),
    lambda x, y, n: torch.nn.functional.pad(x, (n % 3, 1), value=n % 4),
    lambda x, y, n: x.new_zeros(x.shape),
    lambda x, y, n: torch.ones_like(x),
]
VIEWS: list[Callable[[T, T, int], T]] = [
    lambda x, y, n: x.transpose(_dim(x, n), _dim(x, n // 3)),
    lambda x, y, n: x[n % 3 :: 2],
    lambda x, y, n: x.select(_dim(x, n), 0),
    lambda x, y, n: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, y, n: x.squeeze(),
    lambda x, y, n: x.expand(2, *x.shape),
    lambda x, y, n: x.reshape(-1),
    lambda x, y, n: x.view(x.shape[::-1]),
    lambda x, y, n: x.narrow(_dim(x, n), 1, 1),
    lambda x, y, n: x.diagonal(n % 3 - 1),
    lambda x, y, n: x.unfold(_dim(x, n), 2, 1 + n % 2),
    lambda x, y, n: x.chunk(2, _dim(x, n))[-1],
    lambda x, y, n: x.movedim(0, -1),
    lambda x, y, n: x.as_strided((2, 2), (1, 2), n % 3),
    lambda x, y, n: x.detach(),
    lambda x, y, n: x.view_as(x),
    lambda x, y, n: torch.view_as_real(x),
    lambda x, y, n: x.real,
    lambda x, y, n: x.conj(),
]
WRITES: list[Callable[[T, T, int], T]] = [
    lambda x, y, n: x.add_(y),
    lambda x, y, n: x.mul_(2),
    lambda x, y, n: x.copy_(y),
    lambda x, y, n: x.fill_(n % 7),
    lambda x, y, n: x.zero_(),
    lambda x, y, n: x.neg_(),
    lambda x, y, n: x.clamp_(min=n % 3),
    lambda x, y, n: x.t_(),
    lambda x, y, n: x.unsqueeze_(0),
    lambda x, y, n: x.squeeze_(),
    lambda x, y, n: x.index_add_(0, torch.zeros(1, dtype=torch.int64), x[:1].clone()),
    lambda x, y, n: torch.add(x, y, out=x),
    _masked,
    _set_slice,
    _set_row,
    _put,
    _data_write,
]
JUMPS: list[Callable[[T, T, int], T]] = [
    lambda x, y, n: x > y,
    lambda x, y, n: x == y,
    lambda x, y, n: torch.floor(x),
    lambda x, y, n: x // 2,
    lambda x, y, n: x % 3,
    lambda x, y, n: torch.where(x > n % 3, x, y),
    lambda x, y, n: x.argmax(_dim(x, n)),
    lambda x, y, n: x.any(_dim(x, n)),
    lambda x, y, n: x.sort(_dim(x, n), stable=True).values,
    lambda x, y, n: x.to(torch.int32),
    lambda x, y, n: x.sign(),
    lambda x, y, n: ~x,
    lambda x, y, n: x & y,
]
ROUNDED: list[Callable[[T, T, int], T]] = [
    lambda x, y, n: x * y,
    lambda x, y, n: x / 3,
    lambda x, y, n: x.sin(),
    lambda x, y, n: x.tanh(),
    lambda x, y, n: torch.sigmoid(x),
    lambda x, y, n: (x.abs() + 1).sqrt(),
    lambda x, y, n: x.clamp(max=3).exp(),
    lambda x, y, n: x.sum(_dim(x, n), keepdim=n % 2 == 0),
    lambda x, y, n: x.sum(),
    lambda x, y, n: x.mean(_dim(x, n)),
    lambda x, y, n: x.cumsum(_dim(x, n)),
    lambda x, y, n: x.softmax(_dim(x, n)),
    lambda x, y, n: x.var(_dim(x, n), correction=0),
    lambda x, y, n: x @ y,
    lambda x, y, n: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x, y, n: torch.nn.functional.gelu(x),
    lambda x, y, n: torch.lerp(x, y, 0.25),
    lambda x, y, n: torch.addcmul(x, y, y, value=0.5),
]
FAMILIES = [EXACT, VIEWS, WRITES, JUMPS, ROUNDED]


@dataclass(frozen=True)
class Step:
    family: int
    operator: int
    first: int
    second: int
    number: int

    def apply(self, pool: list[T]) -> T:
        operators = FAMILIES[self.family % len(FAMILIES)]
        x, y = pool[self.first % len(pool)], pool[self.second % len(pool)]
        return operators[self.operator % len(operators)](x, y, self.number)

    def rounds(self) -> bool:
        return FAMILIES[self.family % len(FAMILIES)] is ROUNDED

    def jumps(self) -> bool:
        return FAMILIES[self.family % len(FAMILIES)] is JUMPS


def make_input(shape: int, dtype: int, layout: int) -> T:
    """Contiguous, transposed, a slice of something larger, or expanded."""
    sizes = SHAPES[shape % len(SHAPES)]
    kind = layout % 4
    base = {1: sizes[::-1], 2: (*sizes, 2), 3: sizes[1:]}.get(kind, sizes)
    count = torch.Size(base).numel()
    values = ((torch.arange(count) * 7 + layout) % 11 - 5) / 2
    t = values.reshape(base).to(DTYPES[dtype % len(DTYPES)])
    if kind == 1:
        return t.permute(tuple(range(t.dim()))[::-1])
    if kind == 2:
        return t[..., 1]
    return t.expand(sizes) if kind == 3 else t


def valid_steps(inputs: list[T], steps: list[Step]) -> list[Step]:
    """The steps that eager carries out and that no rounding decides."""
    pool = opinfo._copy(inputs)
    rounded: set[int] = set()  # the memory of tensors that rounding has touched
    kept = []
    for step in steps:
        operands = [pool[n % len(pool)] for n in (step.first, step.second)]
        inexact = any(t.untyped_storage().data_ptr() in rounded for t in operands)
        if inexact and step.jumps():
            continue
        before = opinfo._copy(pool)
        try:
            result = step.apply(pool)
        except Exception:
            pool = before  # it may have been written in part; addresses are new, so no more jumps
            rounded |= {t.untyped_storage().data_ptr() for t in pool}
            continue
        kept.append(step)
        pool.append(result)
        if inexact or step.rounds():
            rounded.add(result.untyped_storage().data_ptr())
    return kept


def check_program(inputs: list[T], steps: list[Step], returned: int) -> opinfo.Outcome:
    """Compiled against eager: results, inputs afterwards, and who shares memory with whom."""
    with torch.no_grad():
        steps = valid_steps(inputs, steps)

        def program(*pool: T) -> list[T]:
            pool = list(pool)
            for step in steps:
                pool.append(step.apply(pool))
            made = pool[len(inputs) :]
            return made if returned % 3 == 0 else made[-1 - returned % 3 :]

        sample: Any = SimpleNamespace(input=inputs[0], args=tuple(inputs[1:]), kwargs={})
        return opinfo.check_sample("program", program, sample)


def show(inputs: list[T], steps: list[Step]) -> str:
    import inspect

    lines = [f"  {tuple(t.shape)} {t.stride()} {t.dtype}" for t in inputs]
    pool = opinfo._copy(inputs)
    for step in valid_steps(inputs, steps):
        operators = FAMILIES[step.family % len(FAMILIES)]
        source = inspect.getsource(operators[step.operator % len(operators)]).strip()
        k, m = step.first % len(pool), step.second % len(pool)
        pool.append(step.apply(pool))
        lines.append(f"  {len(pool) - 1} = x: {k}, y: {m}, n: {step.number}  {source}")
    return "\n".join(lines)


def random_program(seed: int) -> tuple[list[T], list[Step], int]:
    rng = random.Random(seed)
    inputs = [
        make_input(rng.randrange(99), rng.choice([0, 0, 0, *range(9)]), rng.randrange(40))
        for _ in range(rng.randint(1, 3))
    ]
    steps = [Step(*(rng.randrange(1000) for _ in range(5))) for _ in range(rng.randint(1, 14))]
    return inputs, steps, rng.randrange(3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, count, failures, unsupported = time.monotonic(), 0, 0, 0
    while time.monotonic() - start < options.seconds:
        seed = options.seed + count
        inputs, steps, returned = random_program(seed)
        outcome = check_program(inputs, steps, returned)
        unsupported += outcome.kind == "unsupported"
        if outcome.kind in ("wrong", "crash"):
            for k in reversed(range(len(steps))):  # leave out what is not needed
                fewer = steps[:k] + steps[k + 1 :]
                if check_program(inputs, fewer, returned).kind == outcome.kind:
                    steps = fewer
            outcome = check_program(inputs, steps, returned)
            print(f"seed {seed}: {outcome.kind}: {outcome.detail}", show(inputs, steps), sep="\n")
            failures += 1
        count += 1
    print(f"{count} programs, {unsupported} fell back, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
