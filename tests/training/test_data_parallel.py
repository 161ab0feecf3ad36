"""DistributedDataParallel over gloo, two processes: the same parameters as eager's, and no hang."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import ingot

FORMS = ("outside", "inside", "step")


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(7, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
        torch.nn.Linear(64, 4),
    )  # fmt: skip


def train(form: str | None, rank: int, steps: int) -> list[torch.Tensor]:
    """The parameters after some steps on this rank's data; `form`: what is compiled."""
    model = network()
    # Buckets of a few KB: several of them, reduced while the backward goes on.
    parallel = DistributedDataParallel(
        ingot.compile(model) if form == "inside" else model, bucket_cap_mb=0.01
    )
    first_is_missing = []

    def reduce(group, bucket):
        first_is_missing.append(model[0].weight.grad is None)
        return allreduce_hook(group, bucket)

    parallel.register_comm_hook(None, reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    function: Callable = ingot.compile(parallel) if form == "outside" else parallel

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(function(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if form == "step":
        step = ingot.compile(step)
    for k in range(steps):
        torch.manual_seed(10 * k + rank)
        step(torch.randn(8, 7), torch.randint(0, 4, (8,)))
    # The last layers' buckets are on their way while the first layer's gradient is computed.
    assert any(first_is_missing[-4:])
    return [p.detach() for p in model.parameters()]


def work(form: str, rank: int, store: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    eager = copy.deepcopy(train(None, rank, steps))
    compiled = train(form, rank, steps)
    # Around the wrapper capture breaks where frames cannot be rebuilt, and eager runs.
    assert ingot.stats().training > 0 or form != "inside"
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    everyone = [torch.empty_like(compiled[0]) for _ in range(2)]
    dist.all_gather(everyone, compiled[0].contiguous())
    assert torch.equal(everyone[0], everyone[1])
    # Wrappers that are garbage keep gloo's threads, which end the process if they outlive the
    # interpreter (pytorch/pytorch#190489).
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def run(form: str, folder: Path, name: str, caches: tuple[str, str], steps: int = 10) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, form, str(rank), str(folder / f"store-{name}"), str(steps)],
            env={**os.environ, "INGOT_CACHE_DIR": str(folder / caches[rank])},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [p.communicate(timeout=240)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    for p, text in zip(processes, said, strict=True):
        assert p.returncode == 0, text


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch without gloo")
@pytest.mark.parametrize("form", FORMS)
def test_two_processes_agree_with_eager(form: str, tmp_path: Path):
    run(form, tmp_path, "first", ("cold0", "warm"))


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch without gloo")
def test_one_compiles_and_the_other_has_it_cached(tmp_path: Path):
    run("inside", tmp_path, "first", ("cold0", "warm"), steps=2)
    run("inside", tmp_path, "second", ("cold1", "warm"))


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
