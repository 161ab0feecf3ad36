"""Programs on one GPU while another is current, on two at once, and under data parallelism."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import ingot

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
STRICT = {"fallback": False}
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def on_the_first_gpu() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0


class Net(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 10)
        self.drop = nn.Dropout(drop)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids))
        return self.down(self.drop(functional.gelu(self.up(x)))).softmax(-1)


def network(device: torch.device, drop: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return Net(drop).to(device)


def tokens(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 100, (16, 32), generator=generator).to(device)


def check(net: nn.Module, compiled: Callable, ids: torch.Tensor, calls: int = 4) -> None:
    """Results and gradients are eager's, and lie where the inputs do."""
    for _ in range(calls):
        got, want = compiled(ids), net(ids)
        assert got.device == ids.device
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        weights = torch.linspace(-1, 1, got.numel(), device=got.device).view_as(got)
        made = torch.autograd.grad((got * weights).sum(), list(net.parameters()))
        expected = torch.autograd.grad((want * weights).sum(), list(net.parameters()))
        for a, b in zip(made, expected, strict=True):
            assert a.device == ids.device
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids), net(ids), rtol=1e-4, atol=1e-5)
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_tensors_on_the_other_gpu(graphs: bool) -> None:
    net = network(SECOND)
    compiled = ingot.compile(net, options=STRICT | {"cudagraphs": graphs})
    check(net, compiled, tokens(SECOND))


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_one_function_on_both(graphs: bool) -> None:
    nets = [network(d) for d in (FIRST, SECOND)]

    def function(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return net(ids)

    compiled = ingot.compile(function, options=STRICT | {"cudagraphs": graphs})
    for _ in range(3):
        for net, device in zip(nets, (FIRST, SECOND), strict=True):
            check(net, lambda ids, n=net: compiled(n, ids), tokens(device), 2)


def test_a_model_moved_to_the_other_gpu() -> None:
    net = network(FIRST)
    compiled = ingot.compile(net, options=STRICT)
    check(net, compiled, tokens(FIRST), 2)
    net.to(SECOND)
    check(net, compiled, tokens(SECOND), 2)
    net.to(FIRST)
    check(net, compiled, tokens(FIRST), 2)


def test_both_at_once_from_two_threads() -> None:
    failures = []

    def work(device: torch.device) -> None:
        try:
            net = network(device)
            compiled = ingot.compile(net, options=STRICT)
            ids = tokens(device)
            with torch.no_grad():
                want = net(ids)
                for _ in range(50):
                    torch.testing.assert_close(compiled(ids), want, rtol=1e-4, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(d,)) for d in (FIRST, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_streams_of_the_other_gpu() -> None:
    compiled = ingot.compile(lambda x: (x * 2).softmax(-1), options=STRICT)
    x = torch.randn(512, 4096, device=SECOND)
    want = (x * 2).softmax(-1)
    compiled(x)
    for _ in range(3):
        stream = torch.cuda.Stream(SECOND)
        stream.wait_stream(torch.cuda.current_stream(SECOND))
        with torch.cuda.stream(stream):
            y = compiled(x)
        torch.cuda.current_stream(SECOND).wait_stream(stream)
        torch.testing.assert_close(y, want)


def test_tensors_made_without_a_number_follow_the_current_gpu() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[0], device="cuda")

    compiled = ingot.compile(function)
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            x = torch.randn(100, device="cuda")
            torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(RuntimeError, match="same device"):
        compiled(torch.randn(100, device=SECOND))


def test_inputs_on_both_raise_what_eager_raises() -> None:
    compiled = ingot.compile(lambda a, b: a + b)
    with pytest.raises(RuntimeError, match="same device"):
        compiled(torch.randn(4, device=FIRST), torch.randn(4, device=SECOND))
    moved = ingot.compile(lambda a: (a + 1).to("cuda:1") * 2)
    a = torch.randn(8, device=FIRST)
    torch.testing.assert_close(moved(a), (a + 1).to(SECOND) * 2)


def test_random_numbers_are_the_devices_own() -> None:
    layer = nn.Dropout(0.4)
    compiled = ingot.compile(lambda x: layer(x) * 2, options=STRICT)
    x = torch.ones(1 << 16, device=SECOND)
    torch.cuda.manual_seed_all(5)
    untouched = torch.cuda.get_rng_state(0)
    a = compiled(x)
    b = compiled(x)
    assert not torch.equal(a, b)
    assert torch.equal(torch.cuda.get_rng_state(0), untouched)
    torch.cuda.manual_seed_all(5)
    assert torch.equal(compiled(x), a)


def test_freed_memory_leaves_the_current_gpu_alone() -> None:
    net = network(SECOND).eval()
    compiled = ingot.compile(net, options=STRICT)
    with torch.no_grad():
        compiled(tokens(SECOND))
    ingot.reset()
    del compiled
    assert torch.cuda.current_device() == 0


def test_an_index_out_of_range_there() -> None:
    table = torch.randn(16, 8, device=SECOND)
    compiled = ingot.compile(lambda i: table[i] * 2, options=STRICT)
    good = torch.tensor([1, 2, 3], device=SECOND)
    compiled(good)
    compiled(torch.tensor([1, 2, 99], device=SECOND))
    torch.cuda.synchronize(1)
    with pytest.raises(RuntimeError, match="index was out of range"):
        compiled(good)
    torch.testing.assert_close(compiled(good), table[good] * 2)


# ---- two processes ----

FORMS = ("inside", "graphs", "step")


def train(form: str | None, rank: int, steps: int) -> list[torch.Tensor]:
    """The parameters after some steps on this rank's data; `form`: what is compiled."""
    device = torch.device("cuda", rank)
    net = network(device)
    options = {"cudagraphs": form == "graphs"}
    inner = ingot.compile(net, options=options) if form else net
    # Buckets of a few KB: several of them, reduced while the backward goes on.
    parallel = DistributedDataParallel(inner, device_ids=[rank], bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True)
    step = ingot.compile(optimizer.step) if form == "step" else optimizer.step
    for k in range(steps):
        generator = torch.Generator().manual_seed(10 * k + rank)
        ids = torch.randint(0, 100, (8, 16), generator=generator).to(device)
        optimizer.zero_grad()
        parallel(ids).square().sum().backward()
        step()
    return [p.detach().clone() for p in net.parameters()]


def work(form: str, rank: int, store: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    eager = copy.deepcopy(train(None, rank, 8))
    made = train(form, rank, 8)
    assert ingot.stats().training > 0
    for a, b in zip(made, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    everyone = [torch.empty_like(made[0]) for _ in range(2)]
    dist.all_gather(everyone, made[0].contiguous())
    assert torch.equal(everyone[0], everyone[1])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("form", FORMS)
def test_data_parallel_over_nccl(form: str, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, form, str(rank), str(tmp_path / "store")],
            env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [p.communicate(timeout=240)[0] for p in processes]
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 0, text


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
