"""Every module of PyTorch's database beside eager: results, gradients, buffers, exceptions.

The database's inputs are taken in float32, in both modes where they differ in PyTorch's words
(`train_and_eval_differ`), otherwise in training. At most `LIMIT` inputs, spread over all, are run:
a rule of time alone. `python tests/training/sweep.py modules` runs all, in float64 too.
"""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import sweep
import torch

LIMIT = 8
MODULES = {info.name: info for info in sweep.modules()}

# What is not compiled whole, and why; everything else must compile at least one of its inputs.
FALL_BACK = {
    "nn.CTCLoss": "the result depends on the data",
    "nn.MultiLabelMarginLoss": "its gradient has no meta function",
    "nn.MultiMarginLoss": "its gradient has no meta function",
    "nn.FractionalMaxPool3d": "its gradient has no meta function",
}
# Eager's message differs: a recording sees another operator first.
OTHER_WORDS = {"nn.Embedding": "the check names the gradient's function where one is recorded"}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    info = MODULES[name]
    counts, reasons, found = Counter(), Counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for training in (True, False) if info.train_and_eval_differ else (True,):
            cases = list(sweep.module_cases(info, torch.float32, training))
            found += sweep.judge(iter(sweep.spread(cases, LIMIT)), counts, reasons)
    assert not found, "\n".join(found)
    compiled = counts["compiled"] > 0
    assert compiled != (name in FALL_BACK or name.startswith("nn.Lazy")), dict(reasons)


@pytest.mark.parametrize("name", [n for n, m in MODULES.items() if m.module_error_inputs_func])
def test_module_errors(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sweep.judge(sweep.module_errors(MODULES[name]), Counter(), Counter())
    assert not [line for line in found if name not in OTHER_WORDS or "message" not in line], found
