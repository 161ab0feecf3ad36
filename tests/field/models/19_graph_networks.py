"""torch_geometric: GCN, GAT, SAGE and GIN on batches of graphs of changing sizes, edge attributes, pooling, training; and a message
passing of one's own with `index_add_` and `scatter_reduce`."""

import field_common as common
import torch
from field_common import grads, measure, note
from torch import nn
from torch.nn import functional as F

TOL = 4.0


def graphs(sizes, features=16):
    from torch_geometric.data import Batch, Data

    items = []
    for n in sizes:
        e = torch.randint(0, n, (2, 4 * n))
        items.append(
            Data(
                x=torch.randn(n, features),
                edge_index=e,
                edge_attr=torch.randn(4 * n, 4),
                y=torch.randint(0, 3, (1,)),
            )
        )
    return Batch.from_data_list(items)


def run(compile_fn):
    from torch_geometric.nn import (
        GATv2Conv,
        GCNConv,
        GINConv,
        SAGEConv,
        TransformerConv,
        global_add_pool,
        global_mean_pool,
    )

    class Net(nn.Module):
        def __init__(self, kind):
            super().__init__()
            mlp = lambda a, b: nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))
            make = {
                "gcn": lambda a, b: GCNConv(a, b),
                "gat": lambda a, b: GATv2Conv(a, b // 4, heads=4, edge_dim=4),
                "sage": lambda a, b: SAGEConv(a, b),
                "gin": lambda a, b: GINConv(mlp(a, b), train_eps=True),
                "transformer": lambda a, b: TransformerConv(a, b // 4, heads=4, edge_dim=4),
            }[kind]
            self.a, self.b = make(16, 64), make(64, 64)
            self.norm = nn.BatchNorm1d(64)
            self.head = nn.Linear(64, 3)
            self.edges = kind in ("gat", "transformer")

        def forward(self, x, edge_index, edge_attr, batch, n):
            kw = {"edge_attr": edge_attr} if self.edges else {}
            x = F.relu(self.norm(self.a(x, edge_index, **kw)))
            x = F.relu(self.b(x, edge_index, **kw))
            return self.head(global_mean_pool(x, batch, n) + global_add_pool(x, batch, n) * 0.01)

    out = {}
    for kind in ("gcn", "gat", "sage", "gin", "transformer"):
        common.seed(0)
        model = compile_fn(Net(kind), dynamic=True)
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        made = common.counters()
        sizes = iter(
            [
                (10, 20, 30),
                (10, 20, 30),
                (15, 5, 40),
                (7, 7, 7),
                (50, 2, 9),
                (31, 12, 4),
                (22, 8, 17),
                (10, 20, 30),
            ]
        )

        def step():
            g = graphs(next(sizes))
            opt.zero_grad()
            loss = F.cross_entropy(
                model(g.x, g.edge_index, g.edge_attr, g.batch, g.num_graphs), g.y
            )
            loss.backward()
            opt.step()
            return loss.detach()

        out[kind] = measure(kind, step, reps=7)
        out[kind + " grads"] = common.digest(grads(model).values())
        note(kind, {k: v - made[k] for k, v in common.counters().items()})

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.m, self.u = nn.Linear(36, 32), nn.GRUCell(32, 16)

        def forward(self, x, e, w):
            for _ in range(3):
                m = F.relu(self.m(torch.cat([x[e[0]], x[e[1]], w], 1)))
                s = torch.zeros(x.shape[0], 32, dtype=x.dtype).index_add_(0, e[1], m)
                top = torch.zeros(x.shape[0], 32, dtype=x.dtype).scatter_reduce(
                    0, e[1][:, None].expand_as(m), m, "amax", include_self=False
                )
                x = self.u(s + top, x)
            return x

    common.seed(3)
    model = compile_fn(Own())
    made = common.counters()
    r = []
    for n in (20, 35, 20, 50, 61):
        g = graphs((n,))
        y = measure("own message passing", lambda: model(g.x, g.edge_index, g.edge_attr), reps=1)[
            -1
        ]
        y.square().mean().backward()
        r.append(y)
    out["own"] = r
    out["own grads"] = common.digest(grads(model).values())
    note("own", {k: v - made[k] for k, v in common.counters().items()})
    return out
