"""Whole training steps in one function: one recording, against eager's and float64's steps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from judge import assert_as_good, compile_all, double
from test_optimizers import OPTIMIZERS, Lion, tensors

import ingot
from ingot.bench.models import import_transformers

Step = Callable[[torch.nn.Module, torch.optim.Optimizer], Callable]


class Residual(torch.nn.Module):
    """A residual network in small: convolutions, batch norms, a shortcut, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.inner = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.inner(x))
        return self.head(x.mean((2, 3)))


class Encoder(torch.nn.Module):
    """A BERT of transformers, tiny."""

    def __init__(self) -> None:
        super().__init__()
        t = import_transformers()
        self.bert = t.BertForSequenceClassification(
            t.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                         intermediate_size=32, max_position_embeddings=16)
        )  # fmt: skip
        self.eval()  # without dropout: in float64 it would draw others

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(7, 12), torch.nn.LayerNorm(12), torch.nn.GELU(), torch.nn.Linear(12, 4)
    )


def batch_of(model: torch.nn.Module) -> torch.Tensor:
    if isinstance(model, Residual):
        return torch.randn(4, 3, 8, 8)
    return torch.randint(0, 50, (4, 9)) if isinstance(model, Encoder) else torch.randn(4, 7)


def whole_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def parts_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [t.detach() for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]


def check(make: Callable[[], torch.nn.Module], optimize: Callable, extra: float = 0.0) -> None:
    """Ten steps compiled, eager and in float64, from the same seed."""
    torch.manual_seed(0)
    eager = make()
    compiled, exact = copy.deepcopy(eager), double(eager)
    optimizers = [optimize(m.parameters()) for m in (compiled, eager, exact)]
    takes = [whole_step(m, o) for m, o in zip((compiled, eager, exact), optimizers, strict=True)]
    takes[0] = compile_all(takes[0])
    before = ingot.stats()
    for seed in range(10):
        torch.manual_seed(seed)
        x, y = batch_of(eager), torch.randint(0, 4 if not isinstance(eager, Encoder) else 2, (4,))
        losses = [t(v, y) for t, v in zip(takes, (x, x, double(x)), strict=True)]
        torch.testing.assert_close(losses[0].detach(), losses[1].detach(), rtol=1e-4, atol=1e-4)
    after = ingot.stats()
    assert after.programs > before.programs
    assert after.reasons[len(before.reasons) :] == []
    assert_as_good(*(parts_of(m) for m in (compiled, eager, exact)), extra=extra)
    assert_as_good(*(tensors(o) for o in optimizers))


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_of_an_mlp(name: str, foreach: bool):
    kind, settings = OPTIMIZERS[name]
    check(mlp, lambda ps: kind(ps, foreach=foreach, **settings))


def test_ten_steps_of_a_users_optimizer():
    check(mlp, Lion)


def test_ten_steps_of_a_residual_network():
    check(Residual, lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9))


def test_ten_steps_of_an_encoder():
    # Where a gradient nearly vanishes (as eps does, 1e-8), its last bits are a good part of a step.
    check(Encoder, lambda ps: torch.optim.AdamW(ps, lr=1e-3), extra=3e-4 * 1e-3)


@pytest.mark.parametrize("make", [mlp, Residual, Encoder])
def test_a_step_is_one_graph_without_a_break(make: Callable):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    y = torch.randint(0, 2, (4,))
    for _ in range(2):
        found = ingot.explain(whole_step(model, optimizer))(batch_of(model), y)
        assert (found.graph_count, found.graph_break_count) == (1, 0), str(found)


def test_state_moves_between_whole_steps_and_eager():
    torch.manual_seed(0)
    first = mlp()
    optimizer = torch.optim.Adam(first.parameters(), lr=0.01)
    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    step = compile_all(whole_step(first, optimizer))
    for _ in range(3):
        step(x, y)
    second = copy.deepcopy(first)
    other = torch.optim.Adam(second.parameters(), lr=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        step(x, y)
        whole_step(second, other)(x, y)
    torch.testing.assert_close(parts_of(first), parts_of(second))
    optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
    step(x, y)
    whole_step(second, other)(x, y)
    torch.testing.assert_close(parts_of(first), parts_of(second))


def test_steps_repeat_without_new_programs():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    step = compile_all(whole_step(model, optimizer))
    step(x, y), step(x, y)
    programs = ingot.stats().programs
    for _ in range(4):
        step(x, y)
    assert ingot.stats().programs == programs


def scaled_step(model: torch.nn.Module, optimizer, scaler) -> Callable:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def test_a_scaler_skips_the_steps_that_eager_skips():
    torch.manual_seed(0)
    eager = mlp()
    compiled = copy.deepcopy(eager)
    takes, scalers = [], []
    for model in (eager, compiled):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scalers.append(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2))
        takes.append(scaled_step(model, optimizer, scalers[-1]))
    takes[1] = ingot.compile(takes[1])
    y = torch.randint(0, 4, (4,))
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(4, 7)
        if seed == 3:
            x[0, 0] = float("inf")
        for take in takes:
            take(x, y)
        assert scalers[0].get_scale() == scalers[1].get_scale()
        for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


def test_an_error_of_the_forward_leaves_everything_as_it_was():
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ingot.compile(whole_step(model, optimizer))
    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    step(x, y), step(x, y)
    before = copy.deepcopy(parts_of(model))
    with pytest.raises(IndexError):
        step(x, torch.full((4,), 9))
    torch.testing.assert_close(parts_of(model), before, rtol=0, atol=0)
    step(x, y)
    assert not torch.equal(parts_of(model)[0], before[0])


def zeroing_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable:
    """A whole step that begins with `zero_grad`: the gradients of the step before go first."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_an_error_leaves_no_gradients_of_the_step_before():
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ingot.compile(zeroing_step(model, optimizer))
    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    for _ in range(3):
        step(x, y)
    before = copy.deepcopy(parts_of(model))
    with pytest.raises(IndexError):
        step(x, torch.full((4,), 9))
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(parts_of(model), before, rtol=0, atol=0)
    step(x, y)
    assert not torch.equal(parts_of(model)[0], before[0])


def test_code_ahead_of_an_error_runs_as_in_eager():
    model = mlp()
    seen: list[list[bool]] = [[], []]

    def step_for(seen: list[bool]) -> Callable:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            seen.append(model[0].weight.grad is not None)
            for p in model.parameters():
                p.grad = None
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return step

    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    for take, seen_here in (
        (ingot.compile(step_for(seen[0])), seen[0]),
        (step_for(seen[1]), seen[1]),
    ):
        model.zero_grad()
        for _ in range(3):
            take(x, y)
        with pytest.raises(IndexError):
            take(x, torch.full((4,), 9))
        assert len(seen_here) == 4
    assert seen[0] == seen[1] == [False, True, True, True]


def test_gradients_of_the_step_before_that_somebody_holds_stay():
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = ingot.compile(zeroing_step(model, optimizer))
    x, y = torch.randn(4, 7), torch.randint(0, 4, (4,))
    weight = model[0].weight
    for _ in range(4):
        step(x, y)
        held, view = weight.grad, model[0].bias.grad.view(3, 4)
        alias, old = weight.grad.numpy(), (held.clone(), view.clone())
        step(x, y)
        torch.testing.assert_close((held, view), old, rtol=0, atol=0)
        assert (alias == old[0].numpy()).all()
        assert weight.grad is not held


def test_a_step_may_use_the_gradients_that_it_sets_to_none():
    torch.manual_seed(0)
    model = mlp()
    eager = copy.deepcopy(model)

    def step_for(model: torch.nn.Module) -> Callable:
        def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            weight, bias = model[0].weight, model[0].bias
            old, kept = weight.grad, bias.grad
            weight.grad = bias.grad = None
            model(x).square().mean().backward()
            return weight.grad if old is None else weight.grad - old, kept

        return step

    takes = [compile_all(step_for(model)), step_for(eager)]
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(4, 7)
        mine, theirs = (take(x) for take in takes)
        torch.testing.assert_close(mine, theirs)
