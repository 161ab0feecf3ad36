"""A backward that finds no memory raises, and the process goes on: the next one is right."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The forward has what it needs; then no more addresses are to be had than a little. What the
# backward needs is one big block: a gradient, or the product's operand that it makes on the way.
CHILD = """
import resource, sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
kind, what = sys.argv[1:]
WIDE = 48 << 20
def gradient(w):
    return (w * w.cos()).sum()
def operand(a, b):
    return (a @ b).tanh().square().sum()
if what == "gradient":
    function, leaves = gradient, [torch.randn(WIDE, requires_grad=True)]
else:
    function = operand
    leaves = [torch.randn(WIDE >> 13, 8, requires_grad=True), torch.randn(8, 1 << 13)]
run = function
if kind == "compiled":
    import ingot
    run = ingot.compile(function, dynamic=False, options={"fallback": False})
def room():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[0]) * resource.getpagesize()
loss = run(*leaves)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (room() + (32 << 20), unlimited[1]))
try:
    loss.backward()
except RuntimeError as e:
    print("raised", type(e).__name__)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
assert leaves[0].grad is None
del loss
run(*leaves).backward()
got, leaves[0].grad = leaves[0].grad, None
function(*leaves).backward()
torch.testing.assert_close(got, leaves[0].grad, rtol=1e-3, atol=1e-3)
print("right")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits addresses as Linux does")
@pytest.mark.parametrize("what", ["gradient", "operand"])
@pytest.mark.parametrize("kind", ["eager", "compiled"])
def test_a_backward_without_memory_raises_and_the_next_is_right(kind: str, what: str):
    run = subprocess.run([sys.executable, "-c", CHILD, kind, what], capture_output=True, text=True)
    assert run.stdout.split() == ["raised", "RuntimeError", "right"], run.stderr + run.stdout
