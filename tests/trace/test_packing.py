"""When frozen weights are packed: many of them in the second call that finds them unchanged."""

import threading

import pytest
import torch
import torch.nn.functional as F

from ingot import _ingot, _options

# Two products with weights of 40 MiB: above what is packed in a first call.
WIDE = 5120


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return [torch.randn(WIDE, 1024) / 32, torch.randn(WIDE), torch.randn(1024, WIDE) / 72]


def eager(x, up, bias, down):
    return F.linear(F.gelu(F.linear(x, up, bias)), down)


def program_of(x, weights):
    recorder = _ingot.Recorder(_options.resolve(None, None))
    inputs = [recorder.input(x, False, "x", [])]
    inputs += [recorder.input(w, True, f"w{i}", []) for i, w in enumerate(weights)]
    with torch.no_grad(), recorder:
        outputs = [eager(*inputs)]
    return recorder.compile(outputs)


def check(program, x, weights):
    """The result, which is as close to fp64 as twice eager's."""
    (y,) = program(x, *weights)
    exact = eager(x.double(), *(w.double() for w in weights))
    error = (y.double() - exact).abs().max()
    assert error <= 2 * (eager(x, *weights).double() - exact).abs().max()
    return y


def test_weights_are_packed_in_the_second_call(weights):
    x = torch.randn(48, 1024)
    program = program_of(x, weights)
    first = check(program, x, weights)
    assert program.frozen_bytes == 0 and program.freeze_count == 0
    second = check(program, x, weights)
    size = sum(w.nbytes for w in weights if w.dim() == 2)
    assert size <= program.frozen_bytes <= 1.1 * size
    check(program, torch.randn(48, 1024), weights)
    assert program.freeze_count == 1
    # The same sums, unless the first call's products were the vendor's.
    torch.testing.assert_close(first, second, rtol=1e-5, atol=4e-6)


def test_few_weights_are_packed_at_once():
    weights = [torch.randn(256, 64), torch.randn(256), torch.randn(64, 256)]
    x = torch.randn(48, 64)
    program = program_of(x, weights)
    check(program, x, [w / 16 for w in weights])
    assert program.frozen_bytes > 0


def test_weights_that_change_are_never_stale_and_packed_when_they_rest(weights):
    x = torch.randn(48, 1024)
    program = program_of(x, weights)
    for _ in range(4):
        check(program, x, weights)
        weights[0].mul_(1.25)
        weights[2] = weights[2].clone()
        assert program.frozen_bytes == 0
    check(program, x, weights)
    check(program, x, weights)
    assert program.frozen_bytes > 0
    weights[2].mul_(0.5)
    check(program, x, weights)


def test_many_threads_make_the_first_calls(weights):
    x = torch.randn(48, 1024)
    program = program_of(x, weights)
    failures = []

    def work():
        try:
            for _ in range(4):
                check(program, x, weights)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and program.freeze_count == 1


def test_other_inputs_do_not_count_as_a_call(weights):
    x = torch.randn(48, 1024)
    program = program_of(x, weights)
    program.fallback = eager_tuple
    check(program, x, weights)
    check(program, torch.randn(7, 1024), weights)
    assert program.frozen_bytes == 0


def eager_tuple(*inputs):
    return (eager(*inputs),)
