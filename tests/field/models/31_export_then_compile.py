"""Graphs that come from elsewhere and are then compiled: `torch.export.export(...).module()` with dynamic sizes, `run_decompositions`,
a graph of `torch.fx.symbolic_trace` after a pass, `make_fx`, a model unflattened, a saved and loaded ExportedProgram, torch.jit.script's module."""

import io

import torch
from field_common import measure
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.att, self.n = (
            nn.Embedding(100, 64),
            nn.MultiheadAttention(64, 4, batch_first=True),
            nn.LayerNorm(64),
        )
        self.mlp, self.head = (
            nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)),
            nn.Linear(64, 5),
        )
        self.register_buffer("count", torch.zeros(1))

    def forward(self, ids, scale: float = 1.0):
        x = self.emb(ids) * scale
        x = self.n(x + self.att(x, x, x, need_weights=False)[0])
        return self.head((x + self.mlp(x)).mean(1))


def run(compile_fn):
    out = {}
    net = Net().eval()
    ids = torch.randint(0, 100, (3, 12))
    b, s = torch.export.Dim("b", min=2, max=64), torch.export.Dim("s", min=2, max=64)
    program = torch.export.export(net, (ids,), dynamic_shapes={"ids": {0: b, 1: s}})
    with torch.no_grad():
        m = compile_fn(program.module())
        out["export"] = measure("exported", lambda: m(ids), reps=4)
        out["sizes"] = [m(torch.randint(0, 100, (i, 2 * i))) for i in (2, 4, 5)]
        try:
            m(torch.randint(0, 100, (3, 80)))
            out["beyond"] = "taken"
        except Exception as e:
            out["beyond"] = "refused"
        f = io.BytesIO()
        torch.export.save(program, f)
        f.seek(0)
        out["loaded"] = compile_fn(torch.export.load(f).module())(ids)
        out["decomposed"] = compile_fn(program.run_decompositions().module())(ids)
        flat = torch.export.unflatten(program)
        out["unflattened"] = compile_fn(flat)(ids)

        class Mlp(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

            def forward(self, x):
                return self.b(torch.relu(self.a(x)))

        g = torch.fx.symbolic_trace(Mlp())
        for n in g.graph.nodes:
            if n.target is torch.relu:
                n.target = torch.nn.functional.gelu
        g.recompile()
        c = compile_fn(g)
        x = torch.randn(5, 16)
        out["fx"] = c(x)
        for n in g.graph.nodes:  # edited after it was compiled
            if n.target is torch.nn.functional.gelu:
                n.target = torch.tanh
        g.recompile()
        out["fx edited"] = c(x)
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(lambda x: torch.softmax(x @ x.T, -1).sum(0))(x)
        out["make_fx"] = compile_fn(traced)(x)
        script = torch.jit.script(Mlp())
        k = compile_fn(lambda x: script(x) + 1)
        out["script inside"] = k(x)
    trainer = compile_fn(torch.export.export(Net().train(), (ids,)).module())
    loss = trainer(ids).square().mean()
    loss.backward()
    out["train"] = [loss, sorted(n for n, p in trainer.named_parameters() if p.grad is not None)]
    return out
