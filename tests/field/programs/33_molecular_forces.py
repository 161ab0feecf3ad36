"""A potential is trained on forces: the forward takes the gradient of the energy by positions, the loss goes back through it.

Reported: torchmd/torchmd-net#307 and pytorch/pytorch#183603 (double backward refused), #175477 (wrong second order through sqrt), #181581.
Right: eager's energy, forces, Hessian-vector products and parameter gradients; zero distances are masked, not NaN.
"""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))
        self.register_buffer("centers", torch.linspace(0, 3, 6))

    def energy(self, positions, charges):
        d = positions[:, None] - positions[None]
        mask = ~torch.eye(positions.shape[0], dtype=torch.bool)
        r = torch.sqrt(torch.where(mask, d.pow(2).sum(-1), torch.ones(())))
        radial = torch.exp(-((r[..., None] - self.centers) ** 2))
        pair = self.net(radial).squeeze(-1) * mask * charges[:, None] * charges[None]
        return pair.sum() / 2 + (mask * charges[:, None] / r).sum() * 0.01

    def forward(self, positions, charges):
        with torch.enable_grad():
            positions = (
                positions if positions.requires_grad else positions.detach().requires_grad_()
            )
            e = self.energy(positions, charges)
            force = -torch.autograd.grad(e, positions, create_graph=True)[0]
        return e, force


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    model = Potential()
    fast = compile_fn(model)
    energy = compile_fn(model.energy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for atoms in (4, 4, 6, 4):
        positions, charges = torch.randn(atoms, 3) * 1.5, torch.rand(atoms)
        e, force = fast(positions, charges)
        loss = (force - 0.1).pow(2).mean() + (e - 1) ** 2
        optimizer.zero_grad()
        loss.backward()
        notes.append(
            [
                e.detach(),
                force.detach(),
                force.requires_grad,
                [p.grad.clone() for p in model.parameters()],
            ]
        )
        optimizer.step()
        x = positions.clone().requires_grad_()
        e = energy(x, charges)
        (g,) = torch.autograd.grad(e, x, create_graph=True)
        (h,) = torch.autograd.grad((g * torch.ones_like(g)).sum(), x, retain_graph=True)
        third = torch.autograd.grad(g.pow(2).sum(), list(model.parameters()), allow_unused=True)
        notes.append([g.detach(), h, third])
    quartic = compile_fn(lambda x: torch.autograd.grad((x**4).sum(), x, create_graph=True)[0])
    x = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    g = quartic(x)
    (second,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    notes.append([g.detach(), second.detach(), third])
    return notes
