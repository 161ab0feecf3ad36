"""max-autotune on a GPU: what it computes, that it goes over, what another process finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot import _ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")


class Block(nn.Module):
    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def distance(a: torch.Tensor, exact: torch.Tensor) -> float:
    return ((a.double() - exact).norm() / exact.norm()).item()


def options(folder: Path, **more: object) -> dict[str, object]:
    return {"max_autotune": True, "cache_dir": str(folder), "fallback": False} | more


def autotune_states(debug: Path) -> list[str]:
    return [p.read_text() for p in sorted(debug.rglob("autotune.txt"))]


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("graphs", [True, False])
def test_inference(tmp_path: Path, background: bool, graphs: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).cuda().bfloat16().eval()
    x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
    exact = nn.Sequential(Block(), Block()).cuda().double().eval()
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        right, eager = exact(x.double()), model(x)
        made = options(
            tmp_path / "cache", background=background, cudagraphs=graphs,
            debug=str(tmp_path / "debug"),
        )  # fmt: skip
        function = ingot.compile(model, options=made)
        for call in range(8):
            result = function(x)
            if call == 3:
                _ingot.wait_for_background()
            assert distance(result, right) <= 2 * distance(eager, right)
    states = autotune_states(tmp_path / "debug")
    assert len(states) == 1
    assert "kernels measured" in states[0]
    assert not states[0].startswith("0 kernels")
    # A second function finds all of it and measures nothing.
    with torch.no_grad():
        again = ingot.compile(model, options=made)
        for _ in range(4):
            assert distance(again(x), right) <= 2 * distance(eager, right)
            _ingot.wait_for_background()
    assert autotune_states(tmp_path / "debug")[-1].startswith("0 kernels measured")


@pytest.mark.parametrize("graphs", [True, False])
def test_training(tmp_path: Path, graphs: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(256), nn.Dropout(0.0), Block(256)).cuda()
    x = torch.randn(512, 256, device="cuda", requires_grad=True)

    def step(function) -> list[torch.Tensor]:
        for p in (*model.parameters(), x):
            p.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            loss = function(x).float().square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in (*model.parameters(), x))]

    eager = step(model)
    function = ingot.compile(model, options=options(tmp_path, cudagraphs=graphs))
    for call in range(10):
        if call == 4:
            _ingot.wait_for_background()
        for mine, theirs in zip(step(function), eager, strict=True):
            assert distance(mine, theirs.double()) < 2e-2


def test_while_somebody_records_a_graph(tmp_path: Path) -> None:
    # Measuring on its own stream must not break a capture that forbids others to interfere.
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(512) for _ in range(3))).cuda().bfloat16().eval()
    x = torch.randn(2048, 512, device="cuda", dtype=torch.bfloat16)
    a = torch.randn(256, 256, device="cuda")
    with torch.no_grad():
        function = ingot.compile(model, options=options(tmp_path))
        expected = model(x)
        function(x), function(x)  # begins to measure
        for _ in range(50):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                b = a @ a + 1
            graph.replay()
            torch.testing.assert_close(b, a @ a + 1)
        _ingot.wait_for_background()
        for _ in range(3):
            torch.testing.assert_close(function(x), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1",
    reason="takes the memory of the GPU that other tests use meanwhile",
)
def test_without_memory_nothing_is_measured(tmp_path: Path) -> None:
    model = Block(1024).cuda().bfloat16().eval()
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        made = options(tmp_path / "c", background=False, debug=str(tmp_path / "d"))
        function = ingot.compile(model, options=made)
        first = function(x)
        free, _ = torch.cuda.mem_get_info()
        taken = torch.empty(max(free - (256 << 20), 0), dtype=torch.uint8, device="cuda")
        try:
            results = [function(x) for _ in range(3)]
        finally:
            del taken
            torch.cuda.empty_cache()
        for result in results:
            torch.testing.assert_close(result, first, rtol=5e-2, atol=5e-2)


def test_another_process_begins_with_what_was_found(tmp_path: Path) -> None:
    program = f"""
import torch, ingot
from ingot import _ingot
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 3072), nn.GELU()).cuda().bfloat16().eval()
x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
options = {{"max_autotune": True, "cache_dir": {str(tmp_path / "cache")!r}, "fallback": False,
           "background": False, "debug": {str(tmp_path / "debug")!r}}}
function = ingot.compile(model, options=options)
with torch.no_grad():
    for _ in range(3):
        function(x)
"""
    for expected in (False, True):
        subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
        states = autotune_states(tmp_path / "debug")
        assert any(s.startswith("0 kernels measured") for s in states) is expected


def test_deterministic_algorithms_measure_nothing(tmp_path: Path) -> None:
    model = Block(256).cuda().eval()
    x = torch.randn(64, 256, device="cuda")
    made = options(tmp_path / "c", background=False, debug=str(tmp_path / "d"))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.no_grad():
            function = ingot.compile(model, options=made)
            for _ in range(4):
                function(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not autotune_states(tmp_path / "d")
