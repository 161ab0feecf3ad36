"""Sampling with processors (temperature, top-k, top-p, min-p, repetition penalty), beam search, streamer, stopping strings of
numbers; GPT-2 with its forward compiled."""

import field_common as common
import torch
from field_common import measure


class Stream:
    def __init__(self):
        self.seen = []

    def put(self, value):
        self.seen.append(value.clone())

    def end(self):
        self.seen.append("end")


def run(compile_fn):
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        LogitsProcessorList,
        StoppingCriteria,
        StoppingCriteriaList,
    )

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=500,
            n_positions=128,
            n_embd=192,
            n_layer=4,
            n_head=6,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    ).eval()
    model.forward = compile_fn(model.forward)
    ids = torch.randint(3, 500, (2, 10))
    mask = torch.ones_like(ids)
    out = {}

    class Stop(StoppingCriteria):
        def __call__(self, input_ids, scores, **kw):
            return (input_ids[:, -3:] % 7 == 0).all(-1)

    class Bias:
        def __call__(self, input_ids, scores):
            return scores.index_fill(1, torch.tensor([5, 6]), -float("inf"))

    def sample(**kw):
        def go():
            common.seed(3)
            return model.generate(ids, attention_mask=mask, max_new_tokens=14, do_sample=True, **kw)

        return go

    with torch.no_grad():
        out["top"] = measure("sample", sample(temperature=0.8, top_k=40, top_p=0.9), reps=2)
        out["min_p"] = measure(
            "sample", sample(min_p=0.05, repetition_penalty=1.3, no_repeat_ngram_size=3), reps=2
        )
        stream = Stream()
        common.seed(4)
        model.generate(
            ids[:1], attention_mask=mask[:1], max_new_tokens=8, do_sample=True, streamer=stream
        )
        out["stream"] = stream.seen
        out["stop"] = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=14,
            stopping_criteria=StoppingCriteriaList([Stop()]),
            logits_processor=LogitsProcessorList([Bias()]),
        )
        out["beams"] = measure(
            "beams",
            lambda: model.generate(
                ids, attention_mask=mask, max_new_tokens=10, num_beams=3, num_return_sequences=2
            ),
            reps=1,
        )
        common.seed(5)
        out["beam sample"] = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=8,
            num_beams=3,
            do_sample=True,
            return_dict_in_generate=True,
            output_scores=True,
        ).sequences_scores
    return out
