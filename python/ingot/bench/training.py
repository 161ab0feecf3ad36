"""`python -m ingot.bench.training`: training steps of eager, torch.compile and Ingot in turns.

Every rival lives in a process of its own and they step one after another, so that a slow minute
hits all of them. Reported: the first step (with compilation, from an empty cache of machine code),
the median step (forward, loss, backward, Adam), the processor time of its threads together, which
says more than the clock where others use the machine, the process's peak memory, and how much of
that no partition of the work can change: the process before its first step (libraries and
parameters), one gradient for each parameter and the optimizer's state.
`--optimizer compiled` has each compiler compile the optimizer's step too; `--optimizer whole` one
function with the whole step (forward, loss, backward, `--clip`, Adam, `zero_grad`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

MODELS = ("resnet18", "resnet50", "mobilenetv3", "vit-s", "bert-base", "gpt2", "distilbert")
RIVALS = ("eager", "inductor", "ingot")


def build(name: str, batch: int) -> tuple:
    """A model in training mode and a function of the model that gives a loss."""
    import torch
    import torch.nn.functional as F

    from .models import import_torchvision, import_transformers

    torch.manual_seed(0)
    if name in ("resnet18", "resnet50", "mobilenetv3", "vit-s"):
        models = import_torchvision().models
        x, y = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
        if name == "vit-s":
            model = models.VisionTransformer(
                image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384,
                mlp_dim=1536,
            )  # fmt: skip
        else:
            model = models.get_model(name if name != "mobilenetv3" else "mobilenet_v3_large")
        return model.train(), lambda f: F.cross_entropy(f(x), y)
    t = import_transformers()
    ids = torch.randint(0, 1000, (batch, 128))
    if name == "gpt2":
        model = t.GPT2LMHeadModel(t.GPT2Config())

        def loss(f: Callable) -> torch.Tensor:
            logits = f(input_ids=ids, use_cache=False).logits
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

        return model.train(), loss
    kinds = {
        "bert-base": (t.BertForSequenceClassification, t.BertConfig),
        "distilbert": (t.DistilBertForSequenceClassification, t.DistilBertConfig),
    }
    kind, config = kinds[name]
    model = kind(config())
    y = torch.randint(0, 2, (batch,))
    mask = torch.ones_like(ids)
    return model.train(), lambda f: F.cross_entropy(f(input_ids=ids, attention_mask=mask).logits, y)


def resident() -> float:
    """MB that the process has in memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def worker(rival: str, arguments: argparse.Namespace) -> None:
    """Answers each line on standard input by one step, with what it took, as JSON."""
    import torch

    model, loss_of = build(arguments.models, arguments.batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    function: Callable = model
    update: Callable = optimizer.step

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(function)
        loss.backward()
        if arguments.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
        update()
        return loss

    def compiled(function: Callable, **arguments: Any) -> Callable:
        if rival == "ingot":
            import ingot

            return ingot.compile(function, **arguments)
        return function if rival == "eager" else torch.compile(function, backend=rival)

    budget = {"memory_budget": arguments.memory_budget}
    options = {"options": budget} if rival == "ingot" else {}
    if arguments.optimizer == "whole":
        step = compiled(step, **options)
    else:
        function = compiled(model, **options)
        update = compiled(update) if arguments.optimizer == "compiled" else update
    trained = [p for p in model.parameters() if p.requires_grad]
    fixed = resident() + 3 * sum(p.nbytes for p in trained) / 2**20  # Adam: two states
    print(json.dumps({"fixed": fixed}), flush=True)
    for _ in sys.stdin:
        start, busy = time.perf_counter(), time.process_time()
        loss = step()
        spent, busy = time.perf_counter() - start, time.process_time() - busy
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {"seconds": spent, "busy": busy, "loss": loss.item(), "peak": peak}
        print(json.dumps(answer), flush=True)


class Rival:
    """A worker process and its figures."""

    def __init__(self, rival: str, model: str, arguments: argparse.Namespace) -> None:
        self.rival = rival
        self._folder = tempfile.TemporaryDirectory()
        environ = {**os.environ, "INGOT_CACHE_DIR": self._folder.name,
                   "TORCHINDUCTOR_CACHE_DIR": self._folder.name}  # fmt: skip
        command = [sys.executable, "-m", "ingot.bench.training", "--worker", rival, "--models",
                   model, "--batch", str(arguments.batch),
                   "--memory-budget", str(arguments.memory_budget),
                   "--clip", str(arguments.clip),
                   "--optimizer", arguments.optimizer]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )
        self.fixed = json.loads(self._read())["fixed"]
        self.steps: list[float] = []
        self.busy: list[float] = []
        self.peak = self.loss = 0.0

    def _read(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self.rival} ended")
        return line

    def step(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = json.loads(self._read())
        self.steps.append(answer["seconds"])
        self.busy.append(answer["busy"])
        self.peak, self.loss = answer["peak"], answer["loss"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ingot.bench.training", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="names, comma-separated")
    parser.add_argument("--against", default="eager,inductor", help="rivals besides ingot")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="steps after the first")
    parser.add_argument("--memory-budget", type=float, default=1.0)
    parser.add_argument("--clip", type=float, default=0.0, help="norm of gradients; 0: not at all")
    parser.add_argument("--optimizer", choices=("eager", "compiled", "whole"), default="eager")
    parser.add_argument("--worker", choices=RIVALS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments)
        return
    names = [*filter(None, arguments.against.split(",")), "ingot"]
    print(f"{'model':<12} {'rival':<9} {'first s':>8} {'step ms':>8} {'cpu ms':>8} "
          f"{'peak MB':>8} {'fixed MB':>8} {'loss':>8}")  # fmt: skip
    for model in arguments.models.split(","):
        rivals = [Rival(r, model, arguments) for r in names]
        for _ in range(arguments.steps + 1):
            for rival in rivals:
                rival.step()
        for rival in rivals:
            middle = statistics.median(rival.steps[1:]) * 1e3
            busy = statistics.median(rival.busy[1:]) * 1e3
            print(f"{model:<12} {rival.rival:<9} {rival.steps[0]:>8.2f} {middle:>8.1f} "
                  f"{busy:>8.1f} {rival.peak:>8.0f} {rival.fixed:>8.0f} {rival.loss:>8.4f}",
                  flush=True)  # fmt: skip
            rival.close()


if __name__ == "__main__":
    main()
