"""A fitness function picks columns of stacked features with index_select; its value and gradient are wanted for every row of a batch.

Reported: pytorch/pytorch#188084 (vmap(grad_and_value(f)) compiled: gradients wrong by a factor of the batch size).
Right: each row's gradient is that of the row alone; duplicated indices add up.
"""

import torch
from torch.func import grad, grad_and_value, vmap


def make(columns, weights):
    def score(row):
        features = torch.stack(
            [row[k] ** 2 + row[(k + 1) % row.shape[0]] for k in range(row.shape[0])], dim=-1
        )
        return (torch.index_select(features, -1, columns) * weights).sum(-1) + features[
            columns[0]
        ].sin()

    return score


def run(compile_fn):
    torch.manual_seed(0)
    notes = []
    score = make(torch.tensor([0, 2, 2]), torch.tensor([1.0, -1.0, 0.25], dtype=torch.float64))
    batched = compile_fn(vmap(grad_and_value(score)))
    dynamic = compile_fn(vmap(grad_and_value(score)), dynamic=True)
    one = compile_fn(grad(score))
    for rows in (4, 4, 7, 1):
        x = torch.randn(rows, 4, dtype=torch.float64)
        notes.append([batched(x), dynamic(x), one(x[0])])
    table = torch.randn(5, 3, dtype=torch.float64)

    def looked_up(weights, ids):
        return (table[ids] * weights).sum() + weights[ids % 3].prod()

    per_user = compile_fn(vmap(grad(looked_up), in_dims=(None, 0)))
    for users in (2, 6):
        notes.append(per_user(torch.randn(3, dtype=torch.float64), torch.randint(0, 5, (users, 3))))
    return notes
