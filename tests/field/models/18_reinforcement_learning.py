"""PPO as in CleanRL (an agent with Categorical and with Normal policies, rollouts step by step, updates with minibatches, KL by `.item()`)
and SAC as in LeanRL (whole updates compiled: two critics, reparametrised tanh policy, entropy temperature, target networks)."""

import copy

import field_common as common
import numpy as np
import torch
from field_common import measure, note
from torch import nn
from torch.distributions import Categorical, Normal

TOL = 6.0


class Agent(nn.Module):
    def __init__(self, obs=8, act=4, discrete=True):
        super().__init__()
        self.critic = nn.Sequential(
            nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.actor = nn.Sequential(
            nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, act)
        )
        self.logstd = nn.Parameter(torch.zeros(1, act))
        self.discrete = discrete

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        h = self.actor(x)
        if self.discrete:
            d = Categorical(logits=h)
            action = d.sample() if action is None else action
            return action, d.log_prob(action), d.entropy(), self.critic(x)
        d = Normal(h, self.logstd.expand_as(h).exp())
        action = d.sample() if action is None else action
        return action, d.log_prob(action).sum(1), d.entropy().sum(1), self.critic(x)


def ppo(compile_fn, discrete):
    common.seed(0)
    agent = Agent(discrete=discrete)
    agent.get_action_and_value = compile_fn(agent.get_action_and_value)
    agent.get_value = compile_fn(agent.get_value)
    opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    T, N = 16, 8
    env = torch.Generator().manual_seed(1)
    out = []

    def iteration():
        obs, actions, logps, rewards, values = [], [], [], [], []
        o = torch.randn(N, 8, generator=env)
        for t in range(T):
            with torch.no_grad():
                a, lp, _, v = agent.get_action_and_value(o)
            obs.append(o), actions.append(a), logps.append(lp), values.append(v.flatten())
            rewards.append(torch.as_tensor(np.cos(o.sum(1).numpy())).float())
            o = 0.9 * o + 0.1 * torch.randn(N, 8, generator=env)
        with torch.no_grad():
            last = agent.get_value(o).flatten()
            adv, gae = torch.zeros(T, N), 0
            for t in reversed(range(T)):
                nxt = last if t == T - 1 else values[t + 1]
                gae = rewards[t] + 0.99 * nxt - values[t] + 0.99 * 0.95 * gae
                adv[t] = gae
            returns = adv + torch.stack(values)
        flat = [torch.stack(x).flatten(0, 1) for x in (obs, actions, logps, values)]
        b_obs, b_act, b_lp, b_val = flat
        b_adv, b_ret = adv.flatten(), returns.flatten()
        kls = []
        for epoch in range(2):
            for mb in torch.randperm(T * N).split(32):
                _, lp, ent, v = agent.get_action_and_value(b_obs[mb], b_act[mb])
                logratio = lp - b_lp[mb]
                ratio = logratio.exp()
                with torch.no_grad():
                    kls.append(((ratio - 1) - logratio).mean().item())
                a = b_adv[mb]
                a = (a - a.mean()) / (a.std() + 1e-8)
                pg = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2)).mean()
                v = v.flatten()
                vc = b_val[mb] + torch.clamp(v - b_val[mb], -0.2, 0.2)
                vl = 0.5 * torch.max((v - b_ret[mb]) ** 2, (vc - b_ret[mb]) ** 2).mean()
                loss = pg - 0.01 * ent.mean() + 0.5 * vl
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
        out.append([loss.item(), kls[-1]])
        return loss.detach()

    name = "discrete" if discrete else "continuous"
    r = measure(f"ppo {name}", iteration, reps=3)
    return [torch.stack(r), out]


def sac(compile_fn):
    common.seed(0)

    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(
                nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
            )

        def forward(self, x):
            mean, log_std = self.f(x).chunk(2, -1)
            std = (-5 + 0.5 * 7 * (torch.tanh(log_std) + 1)).exp()
            d = Normal(mean, std)
            x_t = d.rsample()
            y = torch.tanh(x_t)
            return y, (d.log_prob(x_t) - torch.log(1 - y.pow(2) + 1e-6)).sum(1, keepdim=True)

    def critic():
        return nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    actor, q1, q2 = Actor(), critic(), critic()
    t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
    log_alpha = torch.zeros(1, requires_grad=True)
    qo = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    ao = torch.optim.Adam(actor.parameters(), lr=3e-4)
    lo = torch.optim.Adam([log_alpha], lr=1e-3)

    def update_q(o, a, r, no, d):
        qo.zero_grad()
        with torch.no_grad():
            na, lp = actor(no)
            x = torch.cat([no, na], 1)
            target = r + (1 - d) * 0.99 * (torch.min(t1(x), t2(x)) - log_alpha.exp() * lp).view(-1)
        x = torch.cat([o, a], 1)
        loss = nn.functional.mse_loss(q1(x).view(-1), target) + nn.functional.mse_loss(
            q2(x).view(-1), target
        )
        loss.backward()
        qo.step()
        return loss.detach()

    def update_pi(o):
        ao.zero_grad()
        a, lp = actor(o)
        x = torch.cat([o, a], 1)
        loss = (log_alpha.detach().exp() * lp - torch.min(q1(x), q2(x))).mean()
        loss.backward()
        ao.step()
        lo.zero_grad()
        with torch.no_grad():
            _, lp = actor(o)
        al = (-log_alpha.exp() * (lp - 2.0)).mean()
        al.backward()
        lo.step()
        return torch.stack([loss.detach(), al.detach(), log_alpha.detach()[0]])

    def polyak():
        with torch.no_grad():
            for a, b in ((q1, t1), (q2, t2)):
                for p, t in zip(a.parameters(), b.parameters()):
                    t.lerp_(p, 0.005)

    update_q, update_pi, polyak = compile_fn(update_q), compile_fn(update_pi), compile_fn(polyak)

    def iteration():
        o, a, no = torch.randn(64, 8), torch.rand(64, 2) * 2 - 1, torch.randn(64, 8)
        r, d = torch.randn(64), (torch.rand(64) < 0.1).float()
        ql = update_q(o, a, r, no, d)
        pl = update_pi(o)
        polyak()
        return [ql, pl]

    r = measure("sac update", iteration, reps=12)
    return [r, common.digest(t1.parameters()), common.digest(actor.parameters())]


def run(compile_fn):
    out = {"discrete": ppo(compile_fn, True), "continuous": ppo(compile_fn, False)}
    made = common.counters()
    out["sac"] = sac(compile_fn)
    note("sac", {k: v - made[k] for k, v in common.counters().items()})
    return out
