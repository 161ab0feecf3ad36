"""Kernels compiled by Triton and by Ingot side by side on a GPU: results and gradients."""

from __future__ import annotations

import copy
import importlib.util
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import triton_programs
from torch import nn

import ingot

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton"),
]
STRICT = {"fallback": False}
WAYS = {"triton": STRICT | {"codegen": "triton"}, "llvm": STRICT}


@pytest.fixture(autouse=True)
def whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is kernels between products: those of cuDNN have all their bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_gpu(value: object, double: bool = False) -> object:
    if isinstance(value, nn.Module):
        value = copy.deepcopy(value).cuda()
        return value.double() if double else value
    value = value.cuda()
    return value.double() if double and value.is_floating_point() else value


def everything(module: nn.Module, function: Callable, inputs: list) -> list[torch.Tensor]:
    """Results, and the gradients of parameters where there are some."""
    outputs = function(*inputs)
    results = list(outputs) if isinstance(outputs, tuple) else [outputs]
    parameters = list(module.parameters())
    if parameters:
        results += torch.autograd.grad(results[0], parameters)
    return [x.detach() for x in results]


def distance(a: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> float:
    return ((a.double() - exact.double()).norm() / scale.clamp_min(1e-30)).item()


def check(module: nn.Module, inputs: list[torch.Tensor], **more: object) -> None:
    eager_module, exact_module = on_gpu(module), on_gpu(module, True)
    here = [on_gpu(x) for x in inputs]
    eager = everything(eager_module, eager_module, here)
    exact = everything(exact_module, exact_module, [on_gpu(x, True) for x in inputs])
    total = sum(x.double().norm() ** 2 for x in exact[1:]) ** 0.5 if len(exact) > 1 else None
    for way, options in WAYS.items():
        again = on_gpu(module)
        compiled = ingot.compile(again, options=options | more)
        for _ in range(3):  # the later ones through a graph, where that is asked for
            made = everything(again, compiled, here)
        for m, e, x in zip(made, eager, exact, strict=True):
            if not m.is_floating_point():
                assert torch.equal(m, e), way
                continue
            assert m.dtype == e.dtype
            trains = any(True for _ in module.parameters())
            scale = total if trains and total is not None and m.dim() > 0 else x.double().norm()
            error, eager_error = distance(m, x, scale), distance(e, x, scale)
            assert error <= 2 * eager_error + 5e-6, (way, error, eager_error)


@pytest.mark.parametrize("number", range(len(triton_programs.programs())))
def test_both_code_generators_give_eagers_results(number: int) -> None:
    before = ingot.stats()
    check(*triton_programs.programs()[number])
    after = ingot.stats()
    assert after.triton_kernels > before.triton_kernels
    assert after.triton_refused == {}


def test_in_a_cuda_graph() -> None:
    check(*triton_programs.programs()[0], cudagraphs=True)


def test_rows_too_long_for_variables_use_memory() -> None:
    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = (x.exp() + 1).log()
            z = torch.softmax(y * y.sin(), -1)
            return z, (z * y).cumsum(-1) if x.shape[-1] < 0 else z.amax(-1)

    check(Long(), [torch.randn(12, 50_257)])
    check(Long(), [torch.randn(5, 3, 4096)])


def test_an_index_out_of_range_is_reported() -> None:
    table = torch.randn(16, 8, device="cuda")
    compiled = ingot.compile(lambda i: table[i] * 2, options=WAYS["triton"])
    good = torch.tensor([1, 2, 3], device="cuda")
    torch.testing.assert_close(compiled(good), table[good] * 2)
    compiled(torch.tensor([1, 2, 99], device="cuda"))
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="index was out of range"):
        compiled(good)
    torch.testing.assert_close(compiled(good), table[good] * 2)


def test_changing_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + 1, -1) * x.sum(0)

    compiled = ingot.compile(function, dynamic=True, options=WAYS["triton"])
    for rows, columns in ((5, 100), (64, 333), (128, 5000)):
        x = torch.randn(rows, columns, device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-6)


def test_the_printed_text_runs(tmp_path: pathlib.Path) -> None:
    compiled = ingot.compile(
        lambda x: torch.softmax(x, -1).sum(0), options=STRICT | {"debug": str(tmp_path)}
    )
    with torch.no_grad():
        compiled(torch.randn(64, 1000, device="cuda"))
    files = sorted(tmp_path.rglob("*.triton.py"))
    assert files
    for file in files:
        run = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, env=dict(os.environ)
        )
        assert run.returncode == 0, run.stderr
        assert "ms, error 0" in run.stdout
