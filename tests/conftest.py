"""What the tests of the package share."""

import random

import pytest
import torch

import ingot

# PyTorch's databases of operators, once imported, forbid all tests of the process to set flags.
torch.backends.disable_global_flags = lambda: None


@pytest.fixture(autouse=True)
def fresh():
    """Every test begins alike, whichever ran before: nothing compiled, the same random numbers."""
    random.seed(0)
    torch.manual_seed(0)
    ingot.reset()
    yield
    ingot.reset()


@pytest.fixture
def compiled_whole():
    """The test fails when a graph fell back to eager: equal results would prove nothing."""
    before = ingot.stats()
    yield
    after = ingot.stats()
    assert after.reasons[len(before.reasons) :] == []
    assert after.programs > before.programs
