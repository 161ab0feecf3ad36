"""What a training step needs at once, beside eager: peaks of memory of processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import ingot

# The peak of the third step above what a step with few rows has left behind, which is the
# compilers' own memory. Linux counts peaks from where clear_refs was written.
CHILD = """
import json, sys, torch
kind, budget, whole = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "whole"
torch.set_num_threads(1)
torch.manual_seed(0)
layers = []
for _ in range(12):
    layers += [torch.nn.Linear(128, 128), torch.nn.BatchNorm1d(128), torch.nn.GELU()]
model = torch.nn.Sequential(*layers).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
def compiled(function):
    if kind == "eager":
        return function
    import ingot
    return ingot.compile(function, dynamic=False,
                         options={"memory_budget": budget, "fallback": False})
function = model if whole else compiled(model)
x = torch.randn(8192, 128)
def read(key):
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith(key)) / 1024
def step(x):
    for p in model.parameters():
        p.grad = None
    function(x).square().mean().backward()
    if whole:
        optimizer.step()
if whole:
    step = compiled(step)
    step(torch.randn(16, 128))  # the first has no gradients yet
step(torch.randn(16, 128))
before = read("VmRSS")
for i in range(3):
    if i == 2:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    step(x)
print(json.dumps({"peak": read("VmHWM") - before}))
"""


def peak(kind: str, budget: float = 1.0, what: str = "model") -> float:
    run = subprocess.run([sys.executable, "-c", CHILD, kind, str(budget), what], check=True,
                         capture_output=True, text=True)  # fmt: skip
    return json.loads(run.stdout)["peak"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_step_needs_no_more_than_eager():
    # 12 layers save three values of 4 MiB each in eager.
    eager = peak("eager")
    assert peak("ingot") <= eager
    assert peak("ingot", budget=0.0) <= 0.7 * eager


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_whole_step_needs_no_more_than_eager():
    eager = peak("eager", what="whole")
    assert peak("ingot", what="whole") <= eager
    assert peak("ingot", budget=0.0, what="whole") <= eager


def test_a_backward_can_run_twice_only_when_the_graph_is_kept():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    compiled = ingot.compile(model, fullgraph=True, options={"fallback": False})
    x = torch.randn(3, 4, requires_grad=True)
    loss = compiled(x).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    second = torch.autograd.grad(loss, x)[0]
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, x)
