"""A small residual network learns scikit-learn's digits: `python examples/digits.py --help`."""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import ingot


class Block(torch.nn.Module):
    """Two convolutions with norms around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(width) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


def network(width: int = 32) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, width, 3, padding=1), Block(width), torch.nn.MaxPool2d(2), Block(width),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10),
    )  # fmt: skip


def learn(compiled: bool, epochs: int, batch: int = 64) -> tuple[float, float]:
    """The accuracy on the last 297 digits and the seconds after the first step."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = network()
    function = ingot.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    start = None
    for _ in range(epochs):
        for rows in torch.randperm(1500).split(batch):
            if len(rows) < batch:
                continue
            optimizer.zero_grad()
            F.cross_entropy(function(images[rows]), labels[rows]).backward()
            optimizer.step()
            start = start or time.perf_counter()
    seconds = time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    return right, seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    for name, compiled in (("eager", False), ("ingot", True)):
        accuracy, seconds = learn(compiled, epochs)
        print(f"{name}: {accuracy:.1%} right, {seconds:.2f} s after the first step")
