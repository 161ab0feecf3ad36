"""FSDP2 (`fully_shard`) over gloo, two processes: each block compiled, then sharded (as torchtitan does), and the whole compiled after
sharding; mixed precision, gradient clipping over DTensors, an optimizer on shards, a validation between steps, a full state dict."""

import field_common as common
import torch
from field_common import measure, spawn
from torch import nn
from torch.nn import functional as F

TOL = 4.0


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n, self.qkv, self.o = (
            nn.RMSNorm(d),
            nn.Linear(d, 3 * d, bias=False),
            nn.Linear(d, d, bias=False),
        )
        self.m, self.up, self.down = (
            nn.RMSNorm(d),
            nn.Linear(d, 4 * d, bias=False),
            nn.Linear(4 * d, d, bias=False),
        )

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, 4, -1).transpose(1, 2) for t in self.qkv(self.n(x)).chunk(3, -1))
        x = x + self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d)
        )
        return x + self.down(F.silu(self.up(self.m(x))))


class Net(nn.Module):
    def __init__(self, d=64, vocab=100):
        super().__init__()
        self.emb, self.blocks, self.norm, self.head = (
            nn.Embedding(vocab, d),
            nn.ModuleList(Block(d) for _ in range(3)),
            nn.RMSNorm(d),
            nn.Linear(d, vocab, bias=False),
        )

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def worker(rank, world):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compile_fn = common.make_compile()
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    out = {}
    for form in ("blocks in place", "blocks", "forwards", "whole", "bf16"):
        common.seed(0)
        model = Net()
        kw = (
            {
                "mp_policy": MixedPrecisionPolicy(
                    param_dtype=torch.bfloat16, reduce_dtype=torch.float32
                )
            }
            if form == "bf16"
            else {}
        )
        for i, b in enumerate(model.blocks):
            if form == "blocks":
                model.blocks[i] = compile_fn(b)
            elif form == "forwards":
                b.forward = compile_fn(b.forward)
            elif form in ("blocks in place", "bf16"):
                if common.mode() == "ingot":
                    import ingot

                    ingot.compile_in_place(b)
                elif common.backend():
                    b.compile(backend=common.backend())
            fully_shard(model.blocks[i], mesh=mesh, **kw)
        fully_shard(model, mesh=mesh, **kw)
        if form == "whole":
            model = compile_fn(model)
        opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
        g = torch.Generator().manual_seed(rank)

        test = torch.randint(0, 100, (4, 16), generator=g)

        def step():
            ids = torch.randint(0, 100, (4, 16), generator=g)
            opt.zero_grad()
            loss = F.cross_entropy(model(ids)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            with torch.no_grad():  # a validation between the steps
                held = F.cross_entropy(
                    model(test)[:, :-1].float().flatten(0, 1), test[:, 1:].flatten()
                )
            return [
                loss.detach(),
                norm.full_tensor() if hasattr(norm, "full_tensor") else norm,
                held,
            ]

        out[form] = measure(f"fsdp2 {form}", step, reps=4)
        sd = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        out[form + " keys"] = sorted(sd)[:3]
        if rank == 0:
            out[form + " weights"] = common.digest(sd.values())
    dist.destroy_process_group()
    return out


def run(compile_fn):
    return spawn(worker, 2)
