"""Operators over functions (`cond`, loops, nested regions) in graphs that TorchDynamo hands over.

They run as under `aot_eager`, with gradients where PyTorch has some, and are counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot._backend import dynamo_backend


def _nested_region(x: torch.Tensor) -> torch.Tensor:
    @torch.compiler.nested_compile_region
    def region(y: torch.Tensor) -> torch.Tensor:
        return torch.sin(y) * y

    return region(region(x)) + 1


def _while_loop(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5), (torch.zeros((), dtype=torch.long), x)
    )


HIGHER_ORDER: dict[str, Callable[[torch.Tensor], Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y * 2, (x,)),
    "invoke_subgraph": _nested_region,
    "while_loop": _while_loop,
}


@pytest.mark.parametrize("name", HIGHER_ORDER)
@pytest.mark.parametrize("grad", [False, True])
def test_operators_over_functions(name: str, grad: bool) -> None:
    function = HIGHER_ORDER[name]
    if name == "while_loop" and grad:
        pytest.skip("PyTorch has no gradient of it")
    compiled = torch.compile(function, backend=dynamo_backend)
    results = []
    for one in (function, compiled, compiled):
        x = torch.arange(4.0).requires_grad_(grad)
        y = one(x)
        if grad:
            y.sum().backward()
        results.append((y[1] if isinstance(y, tuple) else y, x.grad))
    for y, g in results[1:]:
        assert torch.allclose(y, results[0][0])
        assert g is None or torch.allclose(g, results[0][1])
    assert ingot.stats().reasons == [f"a higher-order operator ({name})"]
    torch._dynamo.reset()
