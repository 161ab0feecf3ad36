"""A negative binomial likelihood of gene counts: slices of a latent, softplus, lgamma, digamma, xlogy, stacked and summed.

Reported: pytorch/pytorch#185702 (CPU code wrong when a slice's special functions are stacked), BayraktarLab/cell2location#336.
Right: eager's log-likelihoods and gradients; zeros, large counts and infinities as eager has them.
"""

import torch
import torch.nn.functional as F


def terms(latent, y, alpha, beta):
    x = latent[..., 16]
    positive, rates = F.softplus(x) + 1e-4, F.softplus(y) + 1e-4
    gamma = torch.special.gammaln(positive + alpha.view(1, -1))
    error = torch.special.erf(x * beta.view(1, -1))
    entropy = torch.special.xlogy(positive, rates) - torch.special.entr(rates)
    return torch.stack(
        [gamma - entropy, error + torch.special.ndtr(x), torch.special.i0e(y)], dim=-1
    )


def likelihood(counts, mu, theta, pi):
    log = torch.log(theta + mu + 1e-8)
    nb = (
        theta * (torch.log(theta + 1e-8) - log)
        + counts * (torch.log(mu + 1e-8) - log)
        + torch.lgamma(counts + theta)
        - torch.lgamma(theta)
        - torch.lgamma(counts + 1)
    )
    zero = torch.where(
        counts < 1e-8,
        F.softplus(-pi + theta * (torch.log(theta + 1e-8) - log)) - F.softplus(-pi),
        -F.softplus(-pi) - pi + nb,
    )
    return (
        zero.sum(-1),
        torch.digamma(theta),
        torch.polygamma(1, theta),
        torch.special.zeta(theta + 2, mu),
        torch.special.log1p(-torch.sigmoid(pi)),
        torch.special.erfinv(torch.tanh(pi)),
        torch.igamma(theta, counts + 1),
    )


def run(compile_fn):
    notes = []
    fast, fast_likelihood = compile_fn(terms), compile_fn(likelihood)
    for seed, (n, m, dtype) in enumerate(
        (
            (4, 8, torch.float32),
            (4, 8, torch.float32),
            (3, 5, torch.float64),
            (6, 17, torch.float32),
        )
    ):
        torch.manual_seed(seed)
        leaves = [
            torch.randn(n, m, 32, dtype=dtype),
            torch.randn(n, m, dtype=dtype),
            torch.rand(m, dtype=dtype) + 0.5,
            torch.randn(m, dtype=dtype),
        ]
        leaves = [t.requires_grad_() for t in leaves]
        out = fast(*leaves)
        (out * torch.arange(1.0, 4.0, dtype=dtype)).sum().backward()
        notes.append([out.detach()] + [t.grad for t in leaves])
        counts = torch.poisson(torch.rand(n, m) * 6).to(dtype)
        counts[0, 0] = 1e4
        mu, theta, pi = (
            torch.rand(n, m, dtype=dtype).mul_(5).requires_grad_(),
            torch.rand(m, dtype=dtype).add_(0.1).requires_grad_(),
            torch.randn(n, m, dtype=dtype).requires_grad_(),
        )
        out = fast_likelihood(counts, mu, theta, pi)
        (out[0].sum() + out[4].sum()).backward()
        notes.append([[o.detach() for o in out], mu.grad, theta.grad, pi.grad])
    return notes
