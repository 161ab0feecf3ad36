"""What a checkpointed network keeps for its backward, and how many graphs it is."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ingot
from ingot.bench.models import import_transformers


class Block(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(drop)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.drop(self.down(hidden)) * scale


class Deep(nn.Module):
    def __init__(self, call, drop: float = 0.0, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block(width, drop) for _ in range(8))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x


def plainly(block, x):
    return block(x)


def kept(model: nn.Module, x: torch.Tensor, **options) -> tuple[int, list]:
    """The bytes that the one graph of a model keeps, and the gradients of three calls."""
    f = ingot.compile(lambda x: model(x), **options)
    gradients = []
    for _ in range(3):
        torch.manual_seed(5)
        model.zero_grad()
        f(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()] + [torch.get_rng_state()])
    (row,) = f.explain()
    assert (row["kind"], row["end"]) == ("graph", "return")
    return row["saved_bytes"], gradients


def of_eager(model: nn.Module, x: torch.Tensor) -> list:
    torch.manual_seed(5)
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()] + [torch.get_rng_state()]


def sequentially(reentrant: bool, segments: int):
    class Whole(Deep):
        def forward(self, x):
            return checkpoint_sequential(list(self.blocks), segments, x, use_reentrant=reentrant)

    return Whole


ROWS, WIDTH = 32, 64
BORDER = ROWS * WIDTH * 4  # what comes in or goes out of a block


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_regions_keep_what_they_are_given(reentrant, drop):
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with_all, _ = kept(Deep(plainly, drop), x)
    call = functools.partial(checkpoint, use_reentrant=reentrant)
    model = Deep(call, drop)
    bytes_kept, gradients = kept(model, x)
    masks = 8 * ROWS * WIDTH if drop else 0
    assert bytes_kept <= 8 * BORDER + masks < 0.4 * with_all
    for got in gradients:
        for one, other in zip(got, of_eager(model, x), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_sequence_keeps_the_borders_of_its_parts(reentrant):
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    model = sequentially(reentrant, 2)(None)
    bytes_kept, gradients = kept(model, x)
    with_all, _ = kept(Deep(plainly), x)
    # PyTorch runs the last part as it is.
    assert bytes_kept < 0.6 * with_all
    for one, other in zip(gradients[-1], of_eager(model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_a_budget_does_not_keep_more():
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    model = Deep(functools.partial(checkpoint, use_reentrant=False))
    usual, _ = kept(model, x)
    for budget in (0.5, 0):
        less, gradients = kept(model, x, options={"memory_budget": budget})
        assert less <= usual
        for one, other in zip(gradients[-1], of_eager(model, x), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_models_of_transformers_are_one_graph():
    transformers = import_transformers()
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        vocab_size=50, max_position_embeddings=32,
    )  # fmt: skip
    for reentrant in (False, True):
        torch.manual_seed(1)
        model = transformers.BertModel(config).train()
        ids = torch.randint(0, 50, (2, 16))
        plain = ingot.compile(lambda ids, model=model: model(ids).last_hidden_state)
        plain(ids).sum().backward()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        f = ingot.compile(lambda ids, model=model: model(ids).last_hidden_state)
        for _ in range(2):
            torch.manual_seed(2)
            model.zero_grad()
            f(ids).square().sum().backward()
            got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            torch.manual_seed(2)
            model.zero_grad()
            model(ids).last_hidden_state.square().sum().backward()
            want = [p.grad for p in model.parameters() if p.grad is not None]
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        (row,) = f.explain()
        assert row["end"] == "return"
        assert row["saved_bytes"] < 0.5 * plain.explain()[0]["saved_bytes"]


def test_what_is_done_twice_is_left_to_eager():
    seen = []

    def noted(x):
        seen.append(1)
        return x.sin()

    f = ingot.compile(lambda x: checkpoint(noted, x * 2, use_reentrant=False) + 1)
    for call in range(1, 4):
        f(torch.ones(3, requires_grad=True)).sum().backward()
        assert len(seen) == 2 * call
    assert any("torch.utils.checkpoint" in one["reason"] for one in f.explain())


def test_fullgraph_says_what_it_cannot():
    def noted(x):
        print(end="")
        return x.sin()

    f = ingot.compile(lambda x: checkpoint(noted, x * 2, use_reentrant=False), fullgraph=True)
    with pytest.raises(ingot.Unsupported, match=r"torch\.utils\.checkpoint"):
        f(torch.ones(3, requires_grad=True))
