"""Memory savers: gradient checkpointing (both forms of `use_reentrant`, selective policies, transformers' switch), accumulation of
gradients, saved-tensor hooks that pack to bf16 or offload, `save_on_cpu`, and all that with dropout."""

import functools

import field_common as common
import torch
from field_common import grads, measure, note
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

TOL = 3.0


class Block(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.n, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.m = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.n(x)).chunk(3, -1)
        return x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True)) + self.m(x)


class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.inp, self.blocks, self.out = (
            nn.Linear(32, 128),
            nn.ModuleList(Block() for _ in range(3)),
            nn.Linear(128, 10),
        )
        self.how = how

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = self.how(b, x)
        return self.out(x)


def policy(ctx, op, *args, **kw):
    keep = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return CheckpointPolicy.MUST_SAVE if op in keep else CheckpointPolicy.PREFER_RECOMPUTE


def run(compile_fn):
    out = {}
    hows = {
        "plain": lambda b, x: b(x),
        "non-reentrant": lambda b, x: checkpoint(b, x, use_reentrant=False),
        "reentrant": lambda b, x: checkpoint(b, x, use_reentrant=True),
        "selective": lambda b, x: checkpoint(
            b,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, policy),
        ),
    }
    x, y = torch.randn(4, 32, 32), torch.randint(0, 10, (4, 32))

    def train(name, model, wrap=None, accumulate=2, reps=3):
        made = common.counters()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step():
            total = 0.0
            for i in range(accumulate):
                common.seed(10 + i)
                if wrap:
                    with wrap():
                        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulate
                else:
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / accumulate
                loss.backward()
                total = total + loss.detach()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            g = common.digest(grads(model).values())
            opt.zero_grad(set_to_none=True)
            return [total, g]

        out[name] = measure(name, step, reps=reps)
        note(
            name,
            {
                k: v - made[k]
                for k, v in common.counters().items()
                if k in ("made", "graphs", "breaks", "fallbacks")
            },
        )

    for name, how in hows.items():
        common.seed(0)
        train(name, compile_fn(Net(how)))
    common.seed(0)
    net = Net(hows["plain"])
    net.blocks = nn.ModuleList(
        compile_fn(b) for b in net.blocks
    )  # checkpoint around compiled blocks, as torchtitan has it
    net.how = hows["non-reentrant"]
    train("around compiled blocks", net)

    seq = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(6)])

    def through(x):
        return checkpoint_sequential(seq, 3, x, use_reentrant=False)

    f = compile_fn(through)
    h = torch.randn(8, 128, requires_grad=True)
    f(h).square().sum().backward()
    out["sequential"] = [h.grad, seq[0][0].weight.grad]

    packed = []

    def pack(t):
        packed.append(t.numel())
        return (
            t.to(torch.bfloat16)
            if t.dtype == torch.float32 and t.numel() > 2000 and not t.is_leaf
            else t
        )

    def unpack(t):
        return t.float() if t.dtype == torch.bfloat16 else t

    common.seed(0)
    model = compile_fn(Net(hows["plain"]))
    common.seed(0)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    out["hooks"] = common.digest(grads(model).values())
    common.seed(0)
    train(
        "save_on_cpu",
        compile_fn(Net(hows["plain"])),
        wrap=lambda: torch.autograd.graph.save_on_cpu(),
    )
    common.seed(0)
    inside = Net(lambda b, x: b(x))

    def with_hooks(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return inside(x)

    g = compile_fn(with_hooks)
    common.seed(1)
    g(x).square().mean().backward()
    note("packed", len(packed))
    out["hooks inside, names"] = sorted(grads(inside))

    from transformers import GPT2Config, GPT2LMHeadModel

    for reentrant in (False, True):
        common.seed(2)
        m = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=200, n_positions=32, n_embd=64, n_layer=3, n_head=4, use_cache=False
            )
        )
        m.gradient_checkpointing_enable({"use_reentrant": reentrant})
        m.train()
        m = compile_fn(m)
        ids = torch.randint(0, 200, (2, 16))

        def step():
            common.seed(4)
            m.zero_grad()
            loss = m(input_ids=ids, labels=ids).loss
            loss.backward()
            return [loss.detach(), common.digest(grads(m).values())]

        out[f"gpt2 {reentrant}"] = measure(
            f"gpt2 checkpointed, reentrant={reentrant}", step, reps=2
        )
    return out
