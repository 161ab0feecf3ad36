"""Assisted (speculative) decoding with a small assistant and with prompt lookup, target and assistant compiled; the cache is
cropped after rejected tokens."""

import field_common as common
import torch
from field_common import measure


def run(compile_fn):
    from transformers import LlamaConfig, LlamaForCausalLM

    kw = dict(
        vocab_size=400,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    target = LlamaForCausalLM(LlamaConfig(hidden_size=128, num_hidden_layers=4, **kw)).eval()
    draft = LlamaForCausalLM(LlamaConfig(hidden_size=64, num_hidden_layers=1, **kw)).eval()
    target.forward = compile_fn(target.forward)
    draft.forward = compile_fn(draft.forward)
    ids = torch.randint(3, 400, (1, 10))
    ids = torch.cat([ids, ids, ids[:, :4]], 1)
    out = {}
    with torch.no_grad():
        out["plain"] = measure(
            "plain", lambda: target.generate(ids, max_new_tokens=24, do_sample=False), reps=1
        )
        out["assisted"] = measure(
            "assisted",
            lambda: target.generate(ids, max_new_tokens=24, do_sample=False, assistant_model=draft),
            reps=2,
        )
        out["lookup"] = measure(
            "lookup",
            lambda: target.generate(
                ids, max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=4
            ),
            reps=2,
        )

        def sampled():
            common.seed(9)
            return target.generate(
                ids, max_new_tokens=16, do_sample=True, assistant_model=draft, temperature=0.9
            )

        out["sampled"] = measure("sampled", sampled, reps=1)
    return out
