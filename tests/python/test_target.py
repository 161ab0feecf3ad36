"""Code for lesser processors than this one, and what happens with names that are none."""

import pytest
import torch

import ingot


def norm_and_gelu(x, w):
    y = torch.nn.functional.layer_norm(x @ w, (w.shape[1],))
    return torch.nn.functional.gelu(y) + torch.exp(-y * y)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_lesser_processors_give_the_same(target):
    torch._dynamo.reset()
    x, w = torch.randn(37, 65), torch.randn(65, 48)
    compiled = ingot.compile(norm_and_gelu, options={"target": target, "fallback": False})
    torch.testing.assert_close(compiled(x, w), norm_and_gelu(x, w))


def test_an_unknown_processor_is_named_in_the_error():
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="the option target='no-such-cpu'"):
        ingot.compile(norm_and_gelu, options={"target": "no-such-cpu"})
