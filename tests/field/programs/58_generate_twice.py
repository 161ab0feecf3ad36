"""A small GPT-2 generates twice with a static cache, then with beams, sampling and another length, with a compiled forward.

Reported: huggingface/transformers#46858 (second generate crashes), pytorch/pytorch#159855 (generation beyond the window differs), #120248.
Right: eager's tokens and scores each time.
"""

import torch

try:  # torchvision's compiled operators may not load here; only its Python is wanted.
    torch.ops.torchvision.nms
except (AttributeError, RuntimeError):
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import GPT2Config, GPT2LMHeadModel


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    config = GPT2Config(
        vocab_size=60,
        n_positions=48,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    model.forward = compile_fn(model.forward)
    ids = torch.randint(3, 60, (2, 5))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    common = dict(
        attention_mask=mask, pad_token_id=0, return_dict_in_generate=True, output_scores=True
    )
    for settings in (
        dict(max_new_tokens=4, do_sample=False, cache_implementation="static"),
        dict(max_new_tokens=4, do_sample=False, cache_implementation="static"),
        dict(max_new_tokens=9, do_sample=False),
        dict(max_new_tokens=5, num_beams=3, do_sample=False),
        dict(max_new_tokens=6, do_sample=True, top_k=10, temperature=0.8),
        dict(max_new_tokens=3, do_sample=False, use_cache=False),
    ):
        torch.manual_seed(7)
        out = model.generate(ids, **{**common, **settings})
        notes.append([out.sequences, [s.clone() for s in out.scores]])
    model.train()
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    notes.append([out.loss.detach(), model.transformer.wte.weight.grad.clone()])
    return notes
