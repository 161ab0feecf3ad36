"""Convolutions and their gradients as products on matrix units (by vectors or by the library where
the processor has none, or where these are faster)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ingot

# (output channels, input channels, size, taps, stride, dilation, images): weights that are turned
# for few points, columns taken where points lie, steps over the image, odd borders.
CASES = [
    (256, 256, 7, 3, 1, 1, 2),
    (256, 96, 9, 3, 1, 1, 1),
    (128, 64, 15, 3, 1, 1, 2),
    (128, 64, 15, 3, 2, 1, 2),
    (130, 64, 12, 3, 1, 2, 2),
    (160, 32, 11, 5, 1, 1, 3),
    (192, 40, 10, 3, 1, 1, 2),
]


def case_inputs(
    case: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format
) -> tuple[torch.Tensor, torch.Tensor]:
    channels, inputs, size, taps, _, _, images = case
    torch.manual_seed(sum(case))
    x = torch.randn(images, inputs, size, size + 2).to(dtype).contiguous(memory_format=layout)
    w = (torch.randn(channels, inputs, taps, taps) * 0.05).to(dtype)
    return x.requires_grad_(), w.contiguous(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_as_exact_as_eager(
    case: tuple[int, ...], layout: torch.memory_format
) -> None:
    _, _, _, taps, stride, dilation, _ = case

    def convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        # Something before and behind, so that the operands are computed and the results read.
        padding = dilation * (taps // 2)
        y = torch.nn.functional.conv2d(x.tanh(), w, None, stride, padding, dilation)
        return y * y.sigmoid()

    def run(
        f: Callable[..., torch.Tensor], dtype: torch.dtype, memory: torch.memory_format
    ) -> list[torch.Tensor]:
        x, w = case_inputs(case, dtype, memory)
        out = f(x, w)
        out.square().sum().backward()
        return [out.detach(), x.grad, w.grad]

    ours = run(ingot.compile(convolution), torch.float32, layout)
    eager = run(convolution, torch.float32, layout)
    # Where the library is called it is for channels last, in which its sums have errors of their
    # own.
    others = run(convolution, torch.float32, torch.channels_last)
    exact = run(convolution, torch.float64, layout)
    for result, like, other, right in zip(ours, eager, others, exact, strict=True):
        assert result.dtype == like.dtype
        assert result.stride() == like.stride()
        errors = [(r.double() - right).abs() for r in (result, like, other)]
        mean, *means = (e.square().mean().sqrt() for e in errors)
        most, *mosts = (e.max() for e in errors)
        assert mean <= 2 * max(means)
        assert most <= 2 * max(mosts)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38, 1e-40])
@pytest.mark.parametrize("where", ["gradient", "input", "weight"])
def test_strange_numbers_flow_as_in_eager(value: float, where: str) -> None:
    """Beside the border too, where zeros stand behind the image."""
    backward = torch.ops.aten.convolution_backward.default
    results = []
    for compiled in (False, True):
        torch.manual_seed(4)
        g, x = torch.randn(1, 256, 6, 7), torch.randn(1, 256, 6, 7)
        w = torch.randn(256, 256, 3, 3) * 0.05
        if where == "gradient":
            g[0, 3, 5, 6] = value
        elif where == "input":
            x[0, 3, 0, 6] = value
        else:
            w[3, 5, 0, 2] = value

        def gradients(
            g: torch.Tensor, x: torch.Tensor, w: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            mask = [True, True, False]
            unit, zero = [1, 1], [0, 0]
            return backward(g, x, w, None, unit, unit, unit, False, zero, 1, mask)[:2]

        results.append((ingot.compile(gradients) if compiled else gradients)(g, x, w))
    for eager, ours in zip(*results, strict=True):
        if where == "weight" and eager.shape[2:] == (6, 7):
            # The border's zeros times what is not finite are no numbers; the library leaves them
            # out.
            eager, ours = eager[..., 1:-1, 1:-1], ours[..., 1:-1, 1:-1]
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-4, atol=1e-3)
