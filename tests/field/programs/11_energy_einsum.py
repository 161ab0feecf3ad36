"""A physicist writes a softmax over all trailing dims with ellipses in einsum, batch by batch, and trains its parameters.

Reported: pytorch/pytorch#159154 (CPU code with a buffer that was too small: corrupted memory).
Right: a distribution per sample over (1, 32, 32), for every batch size and rank.
"""

import torch


def weigh(xs, lengths):
    energy = -torch.einsum("i...,i->i...", xs, lengths)
    weights = torch.exp(energy)
    norm = torch.einsum("i...->i", weights)
    return torch.einsum("i,i...->i...", 1 / norm, weights)


def free_energy(xs, lengths, mix):
    p = weigh(xs, lengths)
    entropy = -torch.einsum("i...,i...->i", p, torch.log(p))
    mixed = torch.einsum("ij,j...->i...", mix, p)
    return (
        (entropy * lengths).sum() + mixed.pow(2).sum(),
        torch.einsum("i...->...", p),
        torch.einsum("i...,j...->ij", p, p),
    )


def run(compile_fn):
    notes = []
    fast, train = compile_fn(weigh), compile_fn(free_energy)
    for seed, shape in enumerate(
        (
            (5, 1, 32, 32),
            (5, 1, 32, 32),
            (3, 1, 32, 32),
            (5, 7, 9),
            (4, 33),
            (1, 1, 1, 1),
            (6, 2, 3, 4, 5),
        )
    ):
        torch.manual_seed(seed)
        xs = torch.randn(shape)
        lengths = torch.rand(shape[0]) + 0.5
        notes.append(fast(xs, lengths))
        leaves = [
            xs.requires_grad_(),
            lengths.requires_grad_(),
            torch.randn(shape[0], shape[0], requires_grad=True),
        ]
        value, mean, gram = train(*leaves)
        (value + mean.sum() + gram.diagonal().sum()).backward()
        notes.append(
            [value.detach(), mean.detach(), gram.detach()] + [leaf.grad for leaf in leaves]
        )
    return notes
