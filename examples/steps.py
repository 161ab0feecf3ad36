"""What the example scripts share: the command line, the training steps, a progress bar, a plot."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch


def parse(description: str, model: str, batch_size: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default=model)
    parser.add_argument("--batch_size", type=int, default=batch_size)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--mode",
        default="default",
        help="of the compiler: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs",
    )
    parser.add_argument(
        "--backend",
        default="ingot",
        help="original: not compiled; eager: captured, but not compiled; ingot, inductor, ...",
    )
    parser.add_argument(
        "--whole", action="store_true", help="compile the whole step as one function"
    )
    parser.add_argument("--plot", default="", help="file for a picture of the step times")
    return parser.parse_args()


def compiled(function: Callable, arguments: argparse.Namespace) -> Callable:
    if arguments.backend == "original":
        return function
    if arguments.backend == "ingot":
        import ingot

        return ingot.compile(function, mode=arguments.mode)
    mode = arguments.mode if arguments.backend == "inductor" else None
    return torch.compile(function, backend=arguments.backend, mode=mode)


def train(
    model: torch.nn.Module,
    loss_of: Callable[[Callable], torch.Tensor],
    arguments: argparse.Namespace,
) -> list[float]:
    """Adam steps on the same random data; prints each step's time and the median."""
    model.train()
    function = model if arguments.whole else compiled(model, arguments)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def take() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(function)
        loss.backward()
        optimizer.step()
        return loss

    if arguments.whole:
        take = compiled(take, arguments)
    times = []
    for step in range(arguments.steps):
        start = time.perf_counter()
        loss = take()
        times.append(time.perf_counter() - start)
        done = 30 * (step + 1) // arguments.steps
        bar = "#" * done + "." * (30 - done)
        print(f"\r[{bar}] {step + 1}/{arguments.steps}  {times[-1] * 1e3:8.1f} ms  "
              f"loss {loss.item():.4f}", end="", file=sys.stderr, flush=True)  # fmt: skip
    print(file=sys.stderr)
    for step, seconds in enumerate(times):
        print(f"step {step}: {seconds * 1e3:.1f} ms")
    print(f"median after the first: {statistics.median(times[1:] or times) * 1e3:.1f} ms")
    if arguments.plot:
        plot(times, arguments)
    return times


def plot(times: list[float], arguments: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    axes.plot([t * 1e3 for t in times], marker="o")
    axes.set(xlabel="step", ylabel="ms", yscale="log", ylim=(1, None))
    axes.set_title(f"{arguments.model}, batch {arguments.batch_size}, {arguments.backend}")
    figure.tight_layout()
    figure.savefig(arguments.plot)
