"""A GAN's generator and critic are compiled; one fake batch serves both losses, with a gradient penalty in between.

Reported: pytorch/pytorch#91542 (the graph of the fakes is freed by the critic's backward), #91469 (gradient penalty).
Right: eager's losses, gradients of both nets after each backward, and weights after the steps.
"""

import torch
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(real.shape[0], 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_()
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    generator = nn.Sequential(
        nn.Linear(2, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Linear(8, 3),
        nn.Tanh(),
    )
    critic = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 1))
    make, judge = compile_fn(generator), compile_fn(critic)
    of_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    for step in range(4):
        real, noise = torch.randn(6 if step < 3 else 4, 3), torch.randn(6 if step < 3 else 4, 2)
        fake = make(noise)
        of_critic.zero_grad()
        d = (
            judge(fake.detach()).mean()
            - judge(real).mean()
            + 10 * penalty(judge, real, fake.detach())
        )
        d.backward()
        notes.append(
            [
                d.item(),
                [p.grad is None for p in generator.parameters()],
                [p.grad.clone() for p in critic.parameters()],
            ]
        )
        of_critic.step()
        of_generator.zero_grad()
        for p in critic.parameters():
            p.requires_grad_(False)
        g = -judge(fake).mean()
        g.backward()
        for p in critic.parameters():
            p.requires_grad_(True)
        notes.append(
            [
                g.item(),
                [p.grad.clone() for p in generator.parameters()],
                generator[1].running_var.clone(),
            ]
        )
        of_generator.step()
    fake = make(torch.randn(4, 2))
    first = judge(fake).sum()
    torch.nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
    of_critic.step()
    try:
        first.backward()
        notes.append("went through")
    except RuntimeError as e:
        notes.append({"raised": type(e).__name__, "kinds": [c.__name__ for c in type(e).__mro__]})
    notes.append(
        [p.detach().clone() for p in list(generator.parameters()) + list(critic.parameters())]
    )
    return notes
