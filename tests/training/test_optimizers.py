"""Compiled optimizer steps, against eager's and float64's: parameters and state."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from judge import assert_as_good, double

import ingot

OPTIMIZERS: dict[str, tuple[type, dict]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
}


class Lion(torch.optim.Optimizer):
    """Written as users write theirs."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = m.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    # A transposed one too: its state has its strides.
    shapes = [(33, 7), (64,), (3, 4, 5), ()]
    made = [torch.nn.Parameter(torch.randn(s)) for s in shapes]
    return [*made, torch.nn.Parameter(torch.randn(6, 9).t())]


def give_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    torch.manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape).to(p.dtype)


def run(
    optimizer: torch.optim.Optimizer,
    params: list[torch.nn.Parameter],
    step: Callable,
    seeds: range = range(5),
) -> None:
    for seed in seeds:
        give_gradients(params, seed)
        step()


def tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = []
    for state in optimizer.state_dict()["state"].values():
        found += [v for v in state.values() if isinstance(v, torch.Tensor)]
    return found


def check(make: Callable, seeds: range = range(5)) -> None:
    """`make(parameters)` gives an optimizer: five steps compiled, eager and in float64."""
    eager, compiled, exact = parameters(), parameters(), double(parameters())
    reference = make(eager)
    run(reference, eager, reference.step, seeds)
    wide = make(exact)
    run(wide, exact, wide.step, seeds)
    before = ingot.stats()
    optimizer = make(compiled)
    run(optimizer, compiled, ingot.compile(optimizer.step, options={"fallback": False}), seeds)
    after = ingot.stats()
    assert after.programs > before.programs
    assert after.reasons[len(before.reasons) :] == []
    assert after.externs == before.externs
    assert_as_good(*([p.detach() for p in ps] for ps in (compiled, eager, exact)))
    assert_as_good(tensors(optimizer), tensors(reference), tensors(wide))


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_as_good_as_eagers(name: str, foreach: bool):
    kind, settings = OPTIMIZERS[name]
    check(lambda params: kind(params, foreach=foreach, **settings))


def test_a_users_optimizer():
    check(Lion)


def test_groups_with_settings_of_their_own():
    def make(params: list) -> torch.optim.Optimizer:
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.1, "weight_decay": 0.1}]
        return torch.optim.AdamW(groups, lr=0.01)

    check(make, range(3))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_rate_that_is_a_tensor_costs_no_program(name: str):
    kind, settings = OPTIMIZERS[name]
    eager, compiled = parameters(), parameters()
    reference, optimizer = (
        kind(params, **settings | {"lr": torch.tensor(settings["lr"])}, foreach=False)
        for params in (eager, compiled)
    )
    rates = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (reference, optimizer)]
    step = ingot.compile(optimizer.step, options={"fallback": False})
    programs = []
    for seed in range(6):
        for params, take, rate in zip(
            (eager, compiled), (reference.step, step), rates, strict=True
        ):
            give_gradients(params, seed)
            take()
            rate.step()
        programs.append(ingot.stats().programs)
    assert len(set(programs[2:])) == 1, programs
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_rate_that_changes_is_an_input(name: str, foreach: bool):
    kind, settings = OPTIMIZERS[name]
    eager, compiled = parameters(), parameters()
    reference, optimizer = (
        kind(params, foreach=foreach, **settings) for params in (eager, compiled)
    )
    step = ingot.compile(optimizer.step, options={"fallback": False})
    programs = []
    for seed in range(6):
        for params, one, take in zip(
            (eager, compiled), (reference, optimizer), (reference.step, step), strict=True
        ):
            one.param_groups[0]["lr"] = 0.01 / (1 + seed)
            give_gradients(params, seed)
            take()
        programs.append(ingot.stats().programs)
    assert len(set(programs[2:])) == 1, programs
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["adam", "adamw", "momentum"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_fused_steps(name: str, scaled: bool):
    """Taken apart, but for those that a gradient scaler takes part in."""
    kind, settings = OPTIMIZERS[name]
    # Eager's kernels take a transposed parameter and its gradient for the same numbers.
    eager, compiled = parameters()[:-1], parameters()[:-1]

    def make(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = kind(params, fused=True, **settings)
        if scaled:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
        return optimizer

    reference, optimizer = make(eager), make(compiled)
    step = ingot.compile(optimizer.step, options={"fallback": False})
    graphs = []
    for seed in range(5):
        for one in (reference, optimizer):
            one.param_groups[0]["lr"] = 0.01 / (1 + seed)
        run(reference, eager, reference.step, range(seed, seed + 1))
        run(optimizer, compiled, step, range(seed, seed + 1))
        graphs.append(ingot.stats().graphs)
    for a, b in zip([*compiled, *tensors(optimizer)], [*eager, *tensors(reference)], strict=True):
        torch.testing.assert_close(a, b)
    assert scaled or graphs[-1] == graphs[2], graphs


def test_counts_that_no_program_takes_are_eagers():
    """What the recorder refuses is no error of the step."""

    def steps(wrap: Callable) -> list[torch.Tensor]:
        params = parameters()
        optimizer = torch.optim.AdamW(params, lr=0.01, foreach=False)
        run(optimizer, params, optimizer.step, range(1))
        for p in params:
            count = optimizer.state[p]["step"]
            optimizer.state[p]["step"] = torch._neg_view(-count)
        run(optimizer, params, wrap(optimizer.step), range(1, 4))
        assert all(s["step"] == 4 for s in optimizer.state.values())
        return [p.detach() for p in params]

    for a, b in zip(steps(ingot.compile), steps(lambda f: f), strict=True):
        torch.testing.assert_close(a, b)


def test_state_moves_between_eager_and_compiled():
    kind, settings = OPTIMIZERS["adam"]
    first, second = parameters(), parameters()
    compiled, eager = kind(first, **settings), kind(second, **settings)
    run(compiled, first, ingot.compile(compiled.step), range(3))
    with torch.no_grad():
        for a, b in zip(first, second, strict=True):
            b.copy_(a)
    eager.load_state_dict(copy.deepcopy(compiled.state_dict()))
    run(eager, second, eager.step, range(3, 6))
    run(compiled, first, ingot.compile(compiled.step), range(3, 6))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    restored = parameters()
    third = kind(restored, **settings)
    third.load_state_dict(eager.state_dict())
    assert [t.shape for t in tensors(third)] == [t.shape for t in tensors(compiled)]
