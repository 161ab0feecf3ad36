"""A server: eight threads call one compiled model with requests of different sizes, while weights are exchanged between rounds; a thread pool that
compiles models of its own; `asyncio` with `to_thread`; training in one thread and inference in another."""

import asyncio
import concurrent.futures as cf
import threading

import field_common as common
import torch
from field_common import measure
from torch import nn

TOL = 3.0


def net(n=0):
    common.seed(n)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).eval()


def run(compile_fn):
    out = {}
    model = net()
    c = compile_fn(model)
    g = torch.Generator().manual_seed(0)
    requests = [
        torch.randn(
            int(torch.randint(1, 9, (1,), generator=g)),
            int(torch.randint(2, 20, (1,), generator=g)),
            32,
            generator=g,
        )
        for _ in range(60)
    ]

    def serve(x):
        with torch.inference_mode():
            return c(x).clone()

    for n in range(3):
        with cf.ThreadPoolExecutor(8) as pool:
            out[f"round {n}"] = measure(
                "60 requests, 8 threads", lambda: list(pool.map(serve, requests)), reps=1
            )
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.9)

    def own(n):
        m = compile_fn(net_in_thread(n))
        with torch.no_grad():
            return [m(torch.ones(i, 32)) for i in (2, 3, 5)]

    nets = [net(n) for n in range(6)]

    def net_in_thread(n):
        return nets[n]

    with cf.ThreadPoolExecutor(6) as pool:
        out["own models"] = list(pool.map(own, range(6)))

    async def go():
        return await asyncio.gather(*[asyncio.to_thread(serve, r) for r in requests[:10]])

    out["asyncio"] = asyncio.run(go())
    student, stop, seen = net(9), threading.Event(), []
    s = compile_fn(student)
    x = torch.randn(16, 32, generator=g)

    def watch():
        while not stop.is_set():
            with torch.no_grad():
                seen.append(bool(torch.isfinite(s(x)).all()))

    t = threading.Thread(target=watch)
    t.start()
    opt = torch.optim.SGD(student.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        loss = s(x).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    stop.set()
    t.join(60)
    out["training beside inference"] = [torch.stack(losses), all(seen), not t.is_alive()]
    return out
