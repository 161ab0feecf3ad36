"""What goes on around a recording and is no part of the program: the collector, TorchDynamo."""

import gc
import time

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
