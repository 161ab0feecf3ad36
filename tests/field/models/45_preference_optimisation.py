"""GRPO and DPO by hand over a transformers model: rollouts with `generate`, per-token log-probabilities by `gather`, padded completions, a
reference model, clipped ratios, KL, advantages by group; a chunked cross-entropy over the vocabulary (as liger and unsloth have it)."""

import copy

import field_common as common
import torch
from field_common import measure, note
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

TOL = 5.0


def run(compile_fn):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    policy = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=120,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    p, r = compile_fn(policy), compile_fn(reference)
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    out = {}

    @compile_fn
    def select(logits, ids):
        logits = logits[:, :-1] / 0.9
        return torch.gather(logits, -1, ids[:, 1:, None])[..., 0] - torch.logsumexp(logits, -1)

    def logps(model, ids, mask):
        return select(model(input_ids=ids, attention_mask=mask, use_cache=False).logits, ids)

    prompts = iter([torch.randint(3, 120, (2, n)) for n in (6, 9, 7, 12, 6)])

    def grpo():
        prompt = next(prompts).repeat_interleave(4, 0)
        p.eval()
        with torch.no_grad():
            ids = p.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=10,
                do_sample=True,
                top_k=0,
            )
        p.train()
        done = (ids == 2).long().cumsum(1)
        mask = ((done == 0) | ((ids == 2) & (done == 1))).long()
        keep = mask[:, 1:] * (torch.arange(ids.shape[1] - 1) >= prompt.shape[1] - 1)
        reward = ((ids % 3 == 0) * mask).sum(1).float() / mask.sum(1)
        g = reward.view(-1, 4)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).flatten()
        with torch.no_grad():
            old, ref = logps(p, ids, mask), logps(r, ids, mask)
        for _ in range(2):
            lp = logps(p, ids, mask)
            ratio = (lp - old).exp()
            kl = (ref - lp).exp() - (ref - lp) - 1
            loss = (
                -torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None]) + 0.04 * kl
            )
            loss = (loss * keep).sum() / keep.sum()
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
        return [loss.detach(), reward.mean(), ids]

    made = common.counters()
    out["grpo"] = measure("grpo", grpo, reps=4)
    note(
        "grpo",
        {
            k: v - made[k]
            for k, v in common.counters().items()
            if k in ("made", "graphs", "breaks", "fallbacks")
        },
    )

    lengths = iter([(14, 11), (12, 17), (20, 9), (14, 11)])

    def dpo():
        a, b = next(lengths)
        n = max(a, b)
        ids, mask = torch.randint(3, 120, (4, n)), torch.ones(4, n, dtype=torch.long)
        mask[:2, a:], mask[2:, b:] = 0, 0
        lp = (logps(p, ids, mask) * mask[:, 1:]).sum(1)
        with torch.no_grad():
            rf = (logps(r, ids, mask) * mask[:, 1:]).sum(1)
        d = 0.1 * ((lp - rf)[:2] - (lp - rf)[2:])
        loss = -F.logsigmoid(d).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    out["dpo"] = measure("dpo", dpo, reps=3)

    def chunked(hidden, weight, labels, chunks=4):
        total, n = 0.0, (labels != -100).sum()
        for h, y in zip(hidden.chunk(chunks), labels.chunk(chunks)):
            total = total + checkpoint(
                lambda h, y: F.cross_entropy((h @ weight.T).float(), y, reduction="sum"),
                h,
                y,
                use_reentrant=False,
            )
        return total / n

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, y, chunk=16):
            gx, gw, loss = torch.empty_like(x), torch.zeros_like(w), torch.zeros(())
            for i in range(0, x.shape[0], chunk):
                h = x[i : i + chunk]
                logits = h @ w.T
                lse = logits.logsumexp(-1)
                loss += (lse - logits.gather(1, y[i : i + chunk, None])[:, 0]).sum()
                p = (logits - lse[:, None]).exp()
                p.scatter_add_(1, y[i : i + chunk, None], -torch.ones(len(h), 1))
                gx[i : i + chunk] = p @ w / x.shape[0]
                gw += p.T @ h / x.shape[0]
            ctx.save_for_backward(gx, gw)
            return loss / x.shape[0]

        @staticmethod
        def backward(ctx, g):
            gx, gw = ctx.saved_tensors
            return gx * g, gw * g, None, None

    h, w, y = (
        torch.randn(64, 32, requires_grad=True),
        torch.randn(120, 32, requires_grad=True),
        torch.randint(0, 120, (64,)),
    )
    for name, f in (("chunked", chunked), ("fused linear", lambda h, w, y: Linear.apply(h, w, y))):
        c = compile_fn(f)

        def go():
            h.grad = w.grad = None
            loss = c(h, w, y)
            loss.backward()
            return [loss.detach(), h.grad.clone(), w.grad.clone()]

        out[name] = measure(name, go, reps=3)
    return out
