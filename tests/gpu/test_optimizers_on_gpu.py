"""Optimizer steps and scaled gradients on a GPU, compiled, against eager and double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")

FORMS = {
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "fused": {"fused": True},
}
KINDS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}, False),
    "adam": (torch.optim.Adam, {"weight_decay": 0.01}, True),
    "adamw": (torch.optim.AdamW, {}, True),
}
STEPS = 6


def network(device: str = "cuda") -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    return net.to(device)


def rates(change: bool) -> list[float]:
    return [0.01 / (1 + k) if change else 0.01 for k in range(STEPS)]


def gradients(k: int, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(k)
    return [
        torch.randn(p.shape, device="cuda", generator=generator, dtype=torch.float32).to(p.dtype)
        for p in parameters
    ]


def after_steps(
    make: Callable, wrap: Callable, change: bool, double: bool = False
) -> tuple[list[torch.Tensor], list[int]]:
    """The parameters after some steps, and how many graphs there were after each."""
    net = network().double() if double else network()
    optimizer = make(net.parameters())
    step = wrap(optimizer.step)
    graphs = []
    for k, rate in enumerate(rates(change)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        parameters = list(net.parameters())
        for p, g in zip(parameters, gradients(k, parameters), strict=True):
            p.grad = g
        step()
        graphs.append(ingot.stats().graphs)
    return [p.detach().double() for p in net.parameters()], graphs


@pytest.mark.parametrize("change", [False, True], ids=["fixed", "changing"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps(kind: str, form: str, change: bool) -> None:
    cls, arguments, capturable = KINDS[kind]
    arguments = arguments | FORMS[form]
    if capturable:
        arguments["capturable"] = True

    def make(parameters: object) -> torch.optim.Optimizer:
        return cls(parameters, lr=0.01, **arguments)

    eager, _ = after_steps(make, lambda f: f, change)
    exact, _ = after_steps(make, lambda f: f, change, double=True)
    made, graphs = after_steps(make, ingot.compile, change)
    for m, e, x in zip(made, eager, exact, strict=True):
        assert (m - x).norm() <= 2 * (e - x).norm() + 1e-6 * x.norm()
    # The first call makes the state, the second reads it; a rate that changes is an input then.
    assert graphs[-1] == graphs[2], graphs


def test_steps_that_are_counted_on_the_processor() -> None:
    """Two devices are no program: right all the same."""

    def make(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)

    eager, _ = after_steps(make, lambda f: f, True)
    made, _ = after_steps(make, ingot.compile, True)
    for m, e in zip(made, eager, strict=True):
        torch.testing.assert_close(m, e, rtol=1e-5, atol=1e-7)


def test_a_whole_step_as_one_function() -> None:
    x, y = torch.randn(32, 40, device="cuda"), torch.randint(0, 10, (32,), device="cuda")

    def train(compiled: bool, double: bool = False) -> list[torch.Tensor]:
        net = network().double() if double else network()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True)
        data = x.double() if double else x

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(data), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = ingot.compile(step) if compiled else step
        for rate in rates(True):
            optimizer.param_groups[0]["lr"] = rate
            run()
        return [p.detach().double() for p in net.parameters()]

    eager, exact, made = train(False), train(False, True), train(True)
    for m, e, want in zip(made, eager, exact, strict=True):
        assert (m - want).norm() <= 2 * (e - want).norm() + 1e-4 * want.norm()


@pytest.mark.parametrize("compiles_step", [False, True])
def test_scaled_gradients_of_16_bits(compiles_step: bool) -> None:
    x, y = torch.randn(6, 32, 40, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    x[2, 0, 0] = torch.inf  # the scaler skips this step and halves its scale

    def train(compiled: bool) -> tuple[list[torch.Tensor], list[float]]:
        net = network()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
        forward = ingot.compile(net) if compiled else net
        if compiled and compiles_step:
            optimizer.step = ingot.compile(optimizer.step)
        scales = []
        for data in x:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = functional.cross_entropy(forward(data), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach().clone() for p in net.parameters()], scales

    eager, eager_scales = train(False)
    made, scales = train(True)
    assert scales == eager_scales
    for m, e in zip(made, eager, strict=True):
        torch.testing.assert_close(m, e, rtol=2e-2, atol=2e-3)


def test_a_float_that_changes_is_an_input() -> None:
    def function(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor + factor

    compiled = ingot.compile(function, options={"fallback": False})
    x = torch.randn(1000, device="cuda")
    for k in range(6):
        factor = 0.3 * k + 0.1
        torch.testing.assert_close(compiled(x, factor), function(x, factor))
        if k == 1:
            graphs = ingot.stats().graphs
    assert ingot.stats().graphs == graphs
    half = x.half()
    torch.testing.assert_close(compiled(half, 0.7), function(half, 0.7))
    assert compiled(half, 0.9).dtype == torch.half
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = compiled(x, 0.9)
    torch.cuda.current_stream().wait_stream(other)
    torch.testing.assert_close(y, function(x, 0.9))
