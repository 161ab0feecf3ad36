"""What a compiled call does to memory: aliasing, strides, in-place writes, changed weights."""

import threading

import pytest
import torch

import ingot

pytestmark = pytest.mark.usefixtures("compiled_whole")


def same(one, other):
    """Equal in value and layout."""
    assert one.dtype == other.dtype and one.stride() == other.stride()
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2] + 1,
        lambda x: x.t().sin(),
        lambda x: x.reshape(-1) * 2,
        lambda x: (x.sum(0), x.mean(1, keepdim=True), x.amax()),
        lambda x: x.expand(3, *x.shape),
        lambda x: torch.empty_like(x).copy_(x.cos()),
        lambda x: x.to(torch.bfloat16) * 3,
        lambda x: (x > 0, x.argmax(1), x.long() // 2),
    ],
)
def test_values_types_and_strides(function):
    x = torch.randn(6, 8)
    expected, actual = function(x), ingot.compile(lambda x: (function(x), x.sin()))(x)[0]
    pairs = (
        zip(expected, actual, strict=True) if isinstance(expected, tuple) else [(expected, actual)]
    )
    for one, other in pairs:
        same(other, one)


def test_view_of_an_input_is_a_view():
    x = torch.randn(4, 6)
    view, _ = ingot.compile(lambda x: (x[1:].t(), x.sin()))(x)
    x.zero_()
    assert not view.any()


def test_in_place_writes_reach_the_caller():
    def step(x, y):
        x.add_(y)
        x[0] = 7
        return x * 2

    x, y = torch.randn(3, 4), torch.randn(4)
    expected = x.clone()
    result = step(expected, y)
    version = x._version
    torch.testing.assert_close(ingot.compile(step)(x, y), result)
    torch.testing.assert_close(x, expected)
    assert x._version > version


def test_results_of_two_calls_are_their_own():
    compiled = ingot.compile(lambda x: x.exp() + 1)
    x = torch.randn(16)
    first = compiled(x)
    kept = first.clone()
    compiled(x + 1)
    torch.testing.assert_close(first, kept)


def norm_and_linear():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5),
    ).eval()  # fmt: skip


@torch.no_grad()
def test_changed_weights_take_effect_without_a_recompile():
    module = norm_and_linear()
    compiled = ingot.compile(module)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    programs = ingot.stats().programs

    def replaced_storage():
        module[4].weight.data = torch.randn_like(module[4].weight)

    def through_an_alias():
        alias = module[0].weight.view(-1)
        alias[:7] = 3

    changes = [
        lambda: module[0].weight.mul_(2),
        lambda: module[1].running_var.fill_(4),
        lambda: module[4].bias.zero_(),
        replaced_storage,
        through_an_alias,
        lambda: module.load_state_dict({k: v * 1.5 for k, v in module.state_dict().items()}),
    ]
    for change in changes:
        before = compiled(x)
        change()
        after = compiled(x)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, module(x), rtol=1e-4, atol=1e-5)
    assert ingot.stats().programs == programs


@torch.no_grad()
def test_many_threads_at_once():
    module = norm_and_linear()
    compiled = ingot.compile(module)
    compiled(torch.randn(2, 3, 8, 8))
    failures = []

    def work():
        try:
            for _ in range(30):
                x = torch.randn(2, 3, 8, 8)
                torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=torch.no_grad()(work)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_index_out_of_range_raises_what_eager_raises():
    def pick(x, index):
        return x[index] * 2

    x = torch.randn(5, 3)
    compiled = ingot.compile(pick)
    good, bad = torch.tensor([0, -5, 4]), torch.tensor([0, 5])
    torch.testing.assert_close(compiled(x, good), pick(x, good))
    with pytest.raises(IndexError):
        pick(x, bad)
    with pytest.raises(IndexError):
        compiled(x, bad)
    torch.testing.assert_close(compiled(x, good), pick(x, good))


def test_random_numbers_are_eagers():
    def noise(x):
        return torch.rand_like(x) + torch.randn(3) + x

    x = torch.randn(3)
    torch.manual_seed(5)
    expected = noise(x), torch.rand(1)
    torch.manual_seed(5)
    actual = ingot.compile(noise)(x), torch.rand(1)
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1])


def test_inference_mode():
    compiled = ingot.compile(lambda x: x.sin() + 1)
    with torch.inference_mode():
        x = torch.randn(4)
        y = compiled(x)
    assert y.is_inference()
    torch.testing.assert_close(y.clone(), (x.sin() + 1).clone())


def test_autocast():
    linear = torch.nn.Linear(16, 8)
    x = torch.randn(4, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, actual = linear(x), ingot.compile(linear)(x)
    assert actual.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
