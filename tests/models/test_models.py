"""The main list's models: nothing falls back, errors against fp64 are near eager's."""

import pytest
import torch

import ingot
from ingot.bench import models

# The rule of the house: an error of at most twice eager's against an fp64 run.
TIMES_EAGER = 2
CASES = [(name, 1, "fp32") for name in models.MAIN]
CASES += [(name, 8, "fp32") for name in ("all-minilm", "mobilenetv3")]
CASES += [(name, 1, "bf16") for name in models.LOW_PRECISION]


@pytest.mark.usefixtures("compiled_whole")
@pytest.mark.parametrize(("name", "batch", "dtype"), CASES)
@torch.no_grad()
def test_nothing_falls_back_and_errors_are_near_eagers(name, batch, dtype):
    case = models.build(name, batch, dtype)
    expected = models.tensors_of(case.module(*case.args, **case.kwargs))
    compiled = ingot.compile(case.module)
    first = models.tensors_of(compiled(*case.args, **case.kwargs))
    second = models.tensors_of(compiled(*case.args, **case.kwargs))
    del compiled, case
    exact_case = models.build(name, batch, dtype, reference=True)
    exact = models.tensors_of(exact_case.module(*exact_case.args, **exact_case.kwargs))
    eager = models.error(expected, exact)
    for outputs in (first, second):
        assert models.error(outputs, exact) <= TIMES_EAGER * eager
        for one, other in zip(outputs, expected, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (
                other.dtype,
                other.shape,
                other.stride(),
            )
