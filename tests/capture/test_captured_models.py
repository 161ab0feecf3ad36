"""Small models of transformers: dataclass outputs, caches, `generate`, as eager has them."""

import dataclasses

import pytest
import torch

import ingot
from capture.harness import compare
from ingot.bench.small import SMALL

NAMES = list(SMALL)
GENERATORS = [name for name in NAMES if SMALL[name].generates]


def test_the_list_is_long_enough():
    assert len(SMALL) >= 10 and sum(row.generates for row in SMALL.values()) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_caches(name):
    small = SMALL[name]

    def model(w):
        module = w.compile(small.build())
        with torch.no_grad():
            result = w.call(module, **small.arguments())
            assert dataclasses.is_dataclass(result), result
            w.call(module, **small.arguments())
            w.call(module, **small.arguments(rows=3, length=5))
            w.call(module, **small.arguments(), output_hidden_states=True)
            w.call(module, **small.arguments(), return_dict=False)
        # With a mask: without one, models look for padding, unless they are being compiled.
        w.call(module, input_ids="text", attention_mask=torch.ones(2, 5))

    compare(model, ingot.compile)


@pytest.mark.parametrize("name", GENERATORS)
def test_generate(name):
    small = SMALL[name]
    given = small.arguments()
    given.pop("decoder_input_ids", None)

    def model(w):
        module = w.compile(small.build())
        w.call(module.generate, **given, max_new_tokens=5, do_sample=False)
        w.call(module.generate, **given, max_new_tokens=5, do_sample=True, top_k=5)
        w.call(module.generate, **given, max_new_tokens=3, num_beams=2, use_cache=False)

    compare(model, ingot.compile)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mixtral", "t5", "vit"])
def test_no_more_breaks_than_torch_dynamo(name):
    small = SMALL[name]
    with torch.no_grad():
        theirs = torch._dynamo.explain(small.build())(**small.arguments())
        ours = ingot.explain(small.build())(**small.arguments())
    assert ours.graph_break_count <= max(theirs.graph_break_count, 0), ours.break_reasons
