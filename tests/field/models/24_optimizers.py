"""Optimizers as users write and compile them: Muon (with a compiled Newton-Schulz, torch.optim's and one's own), SOAP, Lion, schedule-free,
AdamW with OneCycle and with a lambda schedule, parameter groups; EMA and SWA of the weights; `torch.compile(optimizer.step)`."""

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.nn import functional as F

TOL = 10.0


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    if g.size(0) > g.size(1):
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if g.size(0) > g.size(1) else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, orthogonalise=newton_schulz):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.orthogonalise = orthogonalise

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                m.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(m, group["momentum"])
                p.add_(
                    self.orthogonalise(g).type_as(p),
                    alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5,
                )


class Soap(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-3, betas=(0.95, 0.95), eps=1e-8, every=3):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, every=every))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, s = p.grad, self.state[p]
                if "step" not in s:
                    s["step"] = 0
                    s["m"], s["v"] = torch.zeros_like(g), torch.zeros_like(g)
                    s["L"], s["R"] = g @ g.T, g.T @ g
                    s["QL"], s["QR"] = torch.linalg.eigh(s["L"])[1], torch.linalg.eigh(s["R"])[1]
                    continue
                s["step"] += 1
                gp = s["QL"].T @ g @ s["QR"]
                s["m"].lerp_(g, 1 - b1)
                mp = s["QL"].T @ s["m"] @ s["QR"]
                s["v"].mul_(b2).addcmul_(gp, gp, value=1 - b2)
                n = s["step"]
                size = group["lr"] * (1 - b2**n) ** 0.5 / (1 - b1**n)
                p.add_(s["QL"] @ (mp / (s["v"].sqrt() + group["eps"])) @ s["QR"].T, alpha=-size)
                s["L"].lerp_(g @ g.T, 1 - b2)
                s["R"].lerp_(g.T @ g, 1 - b2)
                if n % group["every"] == 0:
                    s["QL"] = torch.linalg.qr(s["L"] @ s["QL"])[0]
                    s["QR"] = torch.linalg.qr(s["R"] @ s["QR"])[0]


def data(n=64):
    g = torch.Generator().manual_seed(5)
    return torch.randn(n, 32, generator=g), torch.randint(0, 10, (n,), generator=g)


def net():
    common.seed(0)
    return nn.Sequential(
        nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    )


def run(compile_fn):
    out = {}
    x, y = data()

    def train(name, make, steps=10, sched=None, whole=False, mode=None):
        model = net()
        opts = make(model)
        scheds = [sched(o) for o in opts] if sched else []
        compiled = compile_fn(model)
        updates = [compile_fn(o.step) for o in opts]
        made = common.counters()
        if mode:
            mode(opts)

        def step():
            for o in opts:
                o.zero_grad()
            loss = F.cross_entropy(compiled(x), y)
            loss.backward()
            for u in updates:
                u()
            for s in scheds:
                s.step()
            return loss.detach()

        out[name] = measure(name, step, reps=steps)
        out[name + " weights"] = common.params(model)
        note(
            name,
            {
                k: v - made[k]
                for k, v in common.counters().items()
                if k in ("made", "breaks", "fallbacks")
            },
        )

    two_d = lambda m: [p for p in m.parameters() if p.ndim == 2]
    one_d = lambda m: [p for p in m.parameters() if p.ndim < 2]
    train("muon", lambda m: [Muon(two_d(m)), torch.optim.AdamW(one_d(m), lr=1e-3)])
    ns = compile_fn(newton_schulz)
    model = net()
    o = Muon(two_d(model), orthogonalise=ns)
    for _ in range(4):
        o.zero_grad()
        F.cross_entropy(model(x), y).backward()
        o.step()
    out["compiled newton-schulz"] = common.params(model)
    train(
        "torch muon",
        lambda m: [torch.optim.Muon(two_d(m), lr=1e-2), torch.optim.AdamW(one_d(m), lr=1e-3)],
    )
    train("soap", lambda m: [Soap(two_d(m)), torch.optim.AdamW(one_d(m), lr=1e-3)])
    from lion_pytorch import Lion

    train("lion", lambda m: [Lion(m.parameters(), lr=1e-4, weight_decay=1e-2)])
    import schedulefree

    train(
        "schedule-free",
        lambda m: [schedulefree.AdamWScheduleFree(m.parameters(), lr=1e-3, warmup_steps=3)],
        mode=lambda os: [o.train() for o in os],
    )
    train(
        "one cycle",
        lambda m: [torch.optim.AdamW(m.parameters(), lr=1e-3)],
        steps=20,
        sched=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=30),
    )
    train(
        "groups and lambda",
        lambda m: [
            torch.optim.Adam(
                [{"params": two_d(m), "weight_decay": 0.1}, {"params": one_d(m), "lr": 1e-4}],
                lr=1e-3,
                fused=True,
            )
        ],
        steps=12,
        sched=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda i: 0.9**i),
    )
    train(
        "tensor lr",
        lambda m: [torch.optim.Adam(m.parameters(), lr=torch.tensor(1e-3), capturable=False)],
        steps=12,
        sched=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12),
    )
    for name, cls, kw in (
        ("rmsprop", torch.optim.RMSprop, {}),
        ("adafactor", torch.optim.Adafactor, {}),
        ("nadam", torch.optim.NAdam, {}),
        ("sgd nesterov", torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "lr": 1e-2}),
        ("adagrad", torch.optim.Adagrad, {}),
        ("radam", torch.optim.RAdam, {}),
        ("adamax", torch.optim.Adamax, {}),
        ("rprop", torch.optim.Rprop, {}),
    ):
        train(name, lambda m: [cls(m.parameters(), **kw)], steps=7)

    # EMA, SWA
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    sched = SWALR(opt, 0.02, anneal_epochs=3)

    @compile_fn
    def step():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    losses = []
    for i in range(8):
        losses.append(step())
        ema.update_parameters(model)
        if i % 2:
            swa.update_parameters(model)
            sched.step()
    update_bn([x], swa)
    out["averages"] = [torch.stack(losses), ema(x).detach(), swa(x).detach(), int(swa.n_averaged)]
    return out
