"""DTensor and tensor parallelism over gloo, two processes: `parallelize_module` with column- and row-wise plans and sequence parallel
norms, loss parallel left out; forward, backward, an optimizer step; a plain function on DTensors compiled."""

import field_common as common
import torch
from field_common import measure, spawn
from torch import nn
from torch.nn import functional as F

TOL = 3.0


class Mlp(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            nn.LayerNorm(d),
            nn.Linear(d, 4 * d),
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
        )

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(2))
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def worker(rank, world):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    compile_fn = common.make_compile()
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    out = {}
    for form in ("model", "layers"):
        common.seed(0)
        model = Net()
        for layer in model.layers:
            parallelize_module(
                layer,
                mesh,
                {"up": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()},
            )
        if form == "model":
            model = compile_fn(model)
        else:
            for i, layer in enumerate(model.layers):
                model.layers[i] = compile_fn(layer)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(8, 64)

        def step():
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            return loss.detach()

        out[form] = measure(f"tensor parallel, {form}", step, reps=4)
        with torch.no_grad():
            out[form + " out"] = measure(
                f"tensor parallel inference, {form}", lambda: model(x), reps=3
            )
    a = distribute_tensor(torch.arange(32.0).view(8, 4), mesh, [Shard(0)])
    b = distribute_tensor(torch.ones(4, 6), mesh, [Replicate()])

    def product(a, b):
        return (a @ b).relu() + 1

    f = compile_fn(product)
    r = f(a, b)
    out["dtensor"] = [r.full_tensor(), str(r.placements)]
    dist.destroy_process_group()
    return out


def run(compile_fn):
    return spawn(worker, 2)
