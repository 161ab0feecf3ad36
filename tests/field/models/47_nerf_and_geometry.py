"""Rendering: NeRF with hierarchical sampling (searchsorted, cumprod, sort), a hash grid, differentiable splatting of Gaussians by sorting,
point clouds (k nearest neighbours, farthest point sampling, ball query), optical-flow warping, camera matrices and `linalg`."""

import field_common as common
import torch
from field_common import measure, note
from torch import nn
from torch.nn import functional as F

TOL = 6.0


class Field(nn.Module):
    def __init__(self, w=48):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(3 + 3 * 2 * 4, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 4)
        )

    def forward(self, x):
        freq = 2.0 ** torch.arange(4) * torch.pi
        e = (x[..., None] * freq).flatten(-2)
        return self.f(torch.cat([x, e.sin(), e.cos()], -1))


def weights_of(raw, z):
    d = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], 1)
    a = 1 - torch.exp(-F.softplus(raw[..., 3]) * d)
    return a * torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), 1 - a + 1e-10], 1), 1)[:, :-1]


def sample_pdf(bins, w, n):
    pdf = (w + 1e-5) / (w + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), pdf.cumsum(-1)], -1)
    u = torch.rand(cdf.shape[0], n)
    i = torch.searchsorted(cdf, u, right=True)
    lo, hi = (i - 1).clamp(min=0), i.clamp(max=cdf.shape[-1] - 1)
    g = lambda t, k: torch.gather(t, 1, k)
    c0, c1, b0, b1 = (
        g(cdf, lo),
        g(cdf, hi),
        g(bins, lo.clamp(max=bins.shape[1] - 1)),
        g(bins, hi.clamp(max=bins.shape[1] - 1)),
    )
    den = torch.where(c1 - c0 < 1e-5, torch.ones_like(c1), c1 - c0)
    return b0 + (u - c0) / den * (b1 - b0)


def run(compile_fn):
    out = {}

    def counted(name, step, reps=3):
        made = common.counters()
        out[name] = measure(name, step, reps=reps)
        note(
            name,
            {
                k: v - made[k]
                for k, v in common.counters().items()
                if k in ("made", "graphs", "breaks", "fallbacks")
            },
        )

    coarse, fine = Field(), Field()

    def render(o, d):
        z = torch.linspace(2, 6, 16).expand(o.shape[0], 16)
        z = z + torch.rand(z.shape) * 0.2
        raw = coarse(o[:, None] + d[:, None] * z[..., None])
        w = weights_of(raw, z)
        zs = sample_pdf(0.5 * (z[:, 1:] + z[:, :-1]), w[:, 1:-1].detach(), 16).detach()
        z2 = torch.sort(torch.cat([z, zs], 1), 1)[0]
        raw2 = fine(o[:, None] + d[:, None] * z2[..., None])
        w2 = weights_of(raw2, z2)
        return (
            (w[..., None] * raw[..., :3].sigmoid()).sum(1),
            (w2[..., None] * raw2[..., :3].sigmoid()).sum(1),
            (w2 * z2).sum(1),
        )

    f = compile_fn(render)
    opt = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=1e-3)

    def nerf():
        o, d = torch.zeros(64, 3), F.normalize(torch.randn(64, 3), dim=-1)
        a, b, _ = f(o, d)
        loss = (a - 0.5).square().mean() + (b - 0.5).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    counted("nerf train", nerf)

    class Hash(nn.Module):
        def __init__(self, levels=4, size=2**10):
            super().__init__()
            self.table = nn.Parameter(torch.randn(levels, size, 2) * 1e-2)
            self.res = [int(4 * 1.6**i) for i in range(levels)]
            self.mlp = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
            self.register_buffer(
                "corners", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
            )
            self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))

        def forward(self, x):
            feats = []
            for l, r in enumerate(self.res):
                p = x * r
                base = p.floor().long()
                frac = (p - base)[:, None]
                c = base[:, None] + self.corners
                h = c * self.primes
                h = (h[..., 0] ^ h[..., 1] ^ h[..., 2]) % self.table.shape[1]
                w = torch.where(self.corners.bool(), frac, 1 - frac).prod(-1)
                feats.append((self.table[l][h] * w[..., None]).sum(1))
            return self.mlp(torch.cat(feats, -1)).sigmoid()

    common.seed(1)
    grid = compile_fn(Hash())
    opt2 = torch.optim.Adam(grid.parameters(), lr=1e-2)

    def ngp():
        x = torch.rand(256, 3)
        loss = F.mse_loss(grid(x), x)
        opt2.zero_grad()
        loss.backward()
        opt2.step()
        return loss.detach()

    counted("hash grid train", ngp)

    def splat(mean, log_scale, colour, opacity, size=16):
        depth = mean[:, 2].argsort()
        m, s, c, o = (
            mean[depth, :2],
            log_scale[depth].exp(),
            colour[depth],
            opacity[depth].sigmoid(),
        )
        ys, xs = torch.meshgrid(
            torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij"
        )
        d = torch.stack([xs, ys], -1).view(-1, 1, 2) - m
        a = (o * torch.exp(-0.5 * (d / s).square().sum(-1))).clamp(max=0.99)
        t = torch.cumprod(torch.cat([torch.ones(a.shape[0], 1), 1 - a[:, :-1]], 1), 1)
        return ((a * t)[..., None] * c.sigmoid()).sum(1).view(size, size, 3)

    common.seed(2)
    g = [
        torch.rand(40, 3, requires_grad=True),
        torch.full((40, 2), -2.0, requires_grad=True),
        torch.randn(40, 3, requires_grad=True),
        torch.zeros(40, requires_grad=True),
    ]
    s = compile_fn(splat)
    opt3 = torch.optim.Adam(g, lr=1e-2)
    target = torch.rand(16, 16, 3)

    def gs():
        loss = F.l1_loss(s(*g), target)
        opt3.zero_grad()
        loss.backward()
        opt3.step()
        return loss.detach()

    counted("splatting train", gs, 5)

    def farthest(x, n):
        b = torch.arange(x.shape[0])
        dist, i = torch.full(x.shape[:2], 1e10), torch.zeros(x.shape[0], dtype=torch.long)
        picked = []
        for _ in range(n):
            picked.append(i)
            dist = torch.minimum(dist, (x - x[b, i][:, None]).square().sum(-1))
            i = dist.argmax(-1)
        return torch.stack(picked, 1)

    class Points(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Sequential(nn.Linear(6, 32), nn.ReLU()), nn.Linear(32, 4)

        def forward(self, x):
            i = farthest(x, 8)
            c = x.gather(1, i[..., None].expand(-1, -1, 3))
            near = torch.cdist(c, x).topk(6, largest=False)[1]
            nb = x[torch.arange(x.shape[0])[:, None, None], near]
            h = self.a(torch.cat([nb - c[:, :, None], nb], -1)).amax(2)
            return self.b(h.amax(1))

    common.seed(3)
    pts = compile_fn(Points())

    def cloud(n=40):
        pts.zero_grad()
        loss = pts(torch.randn(3, n, 3)).square().mean()
        loss.backward()
        return [loss.detach(), pts.b.weight.grad.clone()]

    counted("point cloud train", cloud)
    out["clouds"] = [cloud(n) for n in (30, 50, 44)]

    def warp(img, flow, k):
        ys, xs = torch.meshgrid(
            torch.arange(img.shape[2]), torch.arange(img.shape[3]), indexing="ij"
        )
        p = torch.stack([xs, ys], -1) + flow.permute(0, 2, 3, 1)
        p = 2 * p / torch.tensor([img.shape[3] - 1, img.shape[2] - 1]) - 1
        q = torch.linalg.inv(k)
        r = torch.linalg.qr(q)[0]
        return F.grid_sample(img, p, align_corners=True), r @ k, torch.linalg.det(k)

    w = compile_fn(warp)
    counted(
        "warp",
        lambda: w(
            torch.randn(2, 3, 10, 12),
            torch.randn(2, 2, 10, 12),
            torch.eye(3) * 2 + torch.rand(3, 3) * 0.1,
        ),
    )
    return out
