"""HF causal LM, compiled as a module, greedy `generate` with a growing cache, batches with left padding, two prompt lengths."""

import field_common as common
import torch
from field_common import measure, note


def run(compile_fn):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    model = compile_fn(model)
    out = {}
    for batch, length, new in ((2, 12, 16), (3, 20, 12), (1, 7, 10)):
        ids = torch.randint(3, 1000, (batch, length))
        mask = torch.ones_like(ids)
        for b in range(1, batch):
            ids[b, : 2 * b] = 0
            mask[b, : 2 * b] = 0
        before = common.counters()["made"]
        with torch.no_grad():
            got = measure(
                "generate",
                lambda: model.generate(
                    ids, attention_mask=mask, max_new_tokens=new, do_sample=False
                ),
                reps=2,
            )
        note(f"made for {batch}x{length}", common.counters()["made"] - before)
        out[f"{batch}x{length}"] = got
    with torch.no_grad():
        d = model.generate(
            torch.randint(3, 1000, (1, 9)),
            max_new_tokens=5,
            do_sample=False,
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    out["scores"] = [d.sequences, list(d.logits), [s for s in d.scores]]
    out["class"] = (
        type(model).__mro__[1].__name__
        if type(model).__name__ != "LlamaForCausalLM"
        else "LlamaForCausalLM"
    )
    out["class"] = isinstance(model, LlamaForCausalLM) or "wrapped"
    return {k: v for k, v in out.items() if k != "class"}
