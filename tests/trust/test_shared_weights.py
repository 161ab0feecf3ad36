"""A tensor that a program reaches in two ways, and that is then replaced in one of them.

The recording took both for one tensor; a replay that looked only at what each is like would use the
new one in both places, or the old one.
"""

import pytest
import torch
from torch import nn

import ingot


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x).tanh())


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("grad", [True, False])
def test_weights_of_two_modules(name, grad):
    model, x = Tied(), torch.randn(4, 3)
    compiled = ingot.compile(model)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            compiled(x)
        getattr(model, name).weight = nn.Parameter(torch.randn(3, 3))
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model.b(model.a(x).tanh()))
        model.a.weight = model.b.weight
        torch.testing.assert_close(compiled(x), model.b(model.a(x).tanh()))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_weights_of_a_module_and_its_optimizer(options):
    def losses(compile):
        torch.manual_seed(7)
        model, x = nn.Linear(2, 2), torch.randn(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compile(step)
        found = [step(x)]
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        state = optimizer.state_dict()
        found += [step(x), step(x)]
        model.load_state_dict(saved)
        optimizer.load_state_dict(state)
        found.append(step(x))
        model.load_state_dict({k: v * 2 for k, v in saved.items()}, assign=True)
        return [*found, step(x), step(x)]

    torch.testing.assert_close(losses(ingot.compile), losses(lambda f: f))


def test_a_weight_that_is_an_argument_too():
    model, x = nn.Linear(3, 3), torch.randn(4, 3)
    f = lambda w, x: model(x) + w.sum()  # noqa: E731
    compiled = ingot.compile(f)
    with torch.no_grad():
        for w in (model.weight, model.weight, torch.randn(3, 3), model.weight):
            torch.testing.assert_close(compiled(w, x), f(w, x))
        old = model.weight
        model.weight = nn.Parameter(torch.randn(3, 3))
        for w in (old, model.weight, old):
            torch.testing.assert_close(compiled(w, x), f(w, x))
