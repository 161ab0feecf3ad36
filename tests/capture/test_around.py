"""What goes on around a recording and is no part of the program: the collector, TorchDynamo."""

import gc
import time

import pytest
import torch

import ingot


def test_the_collectors_callbacks_are_not_recorded():
    seen = []

    def callback(phase, info):
        seen.append((phase, time.perf_counter()))

    threshold = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(20)  # at nearly every object
    try:
        compiled = ingot.compile(lambda x: [x * n for n in range(20)][-1].roll(1, 0).softmax(0))
        before = ingot.stats()
        x = torch.randn(6)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), (x * 19).roll(1, 0).softmax(0))
        after = ingot.stats()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    assert seen
    assert after.reasons[len(before.reasons) :] == []
    assert after.recordings - before.recordings == 1


def test_optimizers_that_torch_dynamo_has_wrapped():
    def optimizer():
        p = torch.nn.Parameter(torch.ones(4))
        p.grad = torch.full((4,), 0.5)
        return p, torch.optim.Adam([p], lr=0.1)

    _, adam = optimizer()
    torch.compile(adam.step, backend="eager")()  # it wraps parts of the class for good
    q, adam = optimizer()
    before = ingot.stats()
    step = ingot.compile(adam.step)
    step()
    step()
    after = ingot.stats()
    assert after.reasons[len(before.reasons) :] == []
    torch.testing.assert_close(q, torch.full((4,), 0.8), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("first", ["eager", "compiled"])
def test_autocast_keeps_no_cast_of_eagers_or_of_a_recordings(first, breaks):
    # Until the context ends, autocast hands out the casts of parameters that it has made.
    layer = torch.nn.Linear(16, 8)

    def function(x):
        y = torch.tanh(layer(x))
        if breaks and y.sum().item() > 1e9:
            y = y + 1
        return torch.nn.functional.linear(y, layer.weight.t())

    compiled = ingot.compile(function)
    order = (function, compiled) if first == "eager" else (compiled, function)
    x = torch.randn(4, 16)
    for _ in range(4):
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16):
                results = [f(x) for f in order]
            want = function(x)
            layer.weight.mul_(1.5)
        for result in results:
            assert result.dtype == torch.bfloat16
            torch.testing.assert_close(result.float(), want, rtol=0.05, atol=0.05)
