"""The programs of tests/capture once more, with their tensors and modules on a GPU.

PyTorch's default device (the global one, which no mode stands for) is the GPU meanwhile, so that
what the programs make lies there too. Where eager code mixes devices and raises, so must compiled
code.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ingot
from capture import harness, programs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")

for found in pkgutil.iter_modules(programs.__path__):
    importlib.import_module(f"capture.programs.{found.name}")

# An index out of range is found by the GPU in eager code, which ends the use of it by the process.
ENDS_THE_CONTEXT = (
    "backwards.gradients_that_are_cleared_around_an_operator_that_fails",
    "backwards.operators_that_fail_beside_a_backward",
    "exceptions.attributes_that_are_set_before_an_operator_fails",
    "exceptions.data_that_operators_refuse",
    "exceptions.data_that_operators_refuse_at_once",
    "exceptions.operators_that_nobody_reads",
    "exceptions.operators_that_nobody_reads_before_a_backward",
    "exceptions.sets_that_change_before_an_operator_fails_keep_their_order",
    "exceptions.what_was_written_before_an_operator_fails",
    "iterators.iterators_and_operators_that_fail",
    "modules.shared_modules_and_parameters",
    "ordered.ordered_dicts_that_change_before_an_operator_fails",
    "tensors.indices_that_count_from_the_end",
)
# Programs that cannot be compared there.
LEFT_OUT = dict.fromkeys(ENDS_THE_CONTEXT, "ends the context") | {
    "numbers.numbers_that_are_tensors_for_a_while": "integers divided by zero, which is undefined",
    "habits.layers_frozen_and_thawed": "a gradient that is zero but for rounding",
}


class GpuWorld(harness.World):
    """Tensors of the same random numbers, on the GPU."""

    def t(
        self, *sizes: int, grad: bool = False, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.randn(sizes, generator=self._generator, dtype=torch.float64, device="cpu")
        else:
            made = torch.randint(-3, 6, sizes, generator=self._generator, device="cpu")
        return made.to(dtype).cuda().requires_grad_(grad)


def run(function: harness.Program, compiler: Any) -> list[tuple[str, Any]]:
    """The record of one world, and the error that ended it."""
    grad = torch.is_grad_enabled()
    torch.manual_seed(99)
    world = GpuWorld(compiler)
    try:
        function(world)
    except Exception as error:
        world.record.append(("ended", f"{type(error).__name__}: {error}"))
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(torch.float32)
    for state in (torch.get_rng_state(), torch.cuda.get_rng_state()):
        world.record.append(("generator", harness.Tensor(state, ())))
    torch.cuda.synchronize()
    return world.record


@pytest.fixture
def made_on_the_gpu() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
        yield
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_default_tensor_type(torch.FloatTensor)


@pytest.mark.parametrize("name", sorted(set(harness.PROGRAMS) - set(LEFT_OUT)))
def test_programs(name: str, made_on_the_gpu: None) -> None:
    function = harness.PROGRAMS[name]
    expected = run(function, None)
    actual = run(function, ingot.compile)
    for step, (one, other) in enumerate(zip(expected, actual, strict=False)):
        reason = harness.difference(one, other)
        assert reason is None, f"note {step} ({one[0]}): {reason}"
    assert len(expected) == len(actual)


class Scaled(torch.autograd.Function):
    """x * w, with a gradient for x that is not the formula's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return 2 * g * w, (g * x).sum(0)


def by_a_custom_function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Scaled.apply(x.sin(), w).cos()


def by_a_transform(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda v: (v.sin() * w).square().sum())(x) * w


def by_gradients_of_samples(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def loss(v: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return (v * row).tanh().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)


@pytest.mark.parametrize(
    "function", [by_a_custom_function, by_a_transform, by_gradients_of_samples]
)
def test_pythons_own_backwards_are_recorded(function: Any) -> None:
    """Backwards that call Python are part of one graph, as on processors."""
    made = [torch.randn(12, 8, device="cuda"), torch.randn(8, device="cuda")]
    results = []
    for f in (function, ingot.compile(function, fullgraph=True)):
        inputs = [t.clone().requires_grad_() for t in made]
        for _ in range(3):
            y = f(*inputs)
            y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def test_a_whole_step_with_a_custom_function() -> None:
    """The backward within the compiled function goes through the function's own."""
    results = []
    for compiler in (lambda f: f, lambda f: ingot.compile(f, fullgraph=True)):
        torch.manual_seed(3)
        w = torch.randn(8, device="cuda", requires_grad=True)
        x = torch.randn(12, 8, device="cuda")

        def step(x: torch.Tensor, w: torch.Tensor = w) -> torch.Tensor:
            w.grad = None
            loss = by_a_custom_function(x, w).square().sum()
            loss.backward()
            return loss.detach()

        f = compiler(step)
        results.append([*(f(x) for _ in range(3)), w.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)
