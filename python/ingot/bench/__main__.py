"""`python -m ingot.bench`: any model, any rivals, in turns; a table, JSON and a picture."""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import driver, models, report
from .progress import clear, progress
from .rivals import RIVALS


def _rivals(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in RIVALS:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(RIVALS)}")
    return names


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ingot.bench", description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        default=["main"],
        metavar="NAME",
        help=f"'main' for the whole list ({', '.join(models.MAIN)}), or any name "
        "of torchvision, timm or transformers (commas or spaces between them)",
    )
    parser.add_argument(
        "--against",
        type=_rivals,
        default=_rivals("eager,inductor"),
        help=f"rivals beside Ingot: {', '.join(RIVALS)}",
    )
    parser.add_argument("--no-ingot", action="store_true", help="measure the rivals alone")
    parser.add_argument("--batch", default="1", help="batch sizes, such as 1,8")
    parser.add_argument("--dtype", default="fp32", help="types, such as fp32,bf16")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each rival")
    parser.add_argument("--threads", type=int, help="threads of every rival")
    parser.add_argument("--no-warm", action="store_true", help="leave out the filled-cache start")
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    parser.add_argument("--plot", metavar="FILE", help="write a PNG of the ratios")
    return parser.parse_args(arguments)  # fmt: skip


def plan_of(settings: argparse.Namespace) -> list[tuple[str, int, str]]:
    """The (model, batch, dtype) triples to measure; 'main' has two models in bf16."""
    names = [name for text in settings.models for name in text.split(",") if name]
    triples = []
    for dtype in settings.dtype.split(","):
        if dtype not in models.DTYPES:
            raise SystemExit(f"{dtype} is none of {', '.join(models.DTYPES)}")
        for batch in settings.batch.split(","):
            for name in names:
                low = dtype in ("bf16", "fp16")
                whole = models.LOW_PRECISION if low else tuple(models.MAIN)
                for one in whole if name == "main" else (name,):
                    triples.append((one, int(batch), dtype))
    return triples


def main(arguments: list[str] | None = None) -> int:
    """Run, print as results come, and write the files after every model."""
    settings = _parse(arguments)
    rivals = list(dict.fromkeys(settings.against + ([] if settings.no_ingot else ["ingot"])))
    plan = driver.Plan(rounds=settings.rounds, warm=not settings.no_warm, threads=settings.threads)
    machine, records = driver.machine(), []
    triples = plan_of(settings)
    for name, _, _ in triples:
        try:
            models.find(name)
        except LookupError as failure:
            print(failure, file=sys.stderr)
            return 2
    for path in (settings.json, settings.plot):
        if path and os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
    print(f"{machine['processor']}, {machine['threads']} threads, PyTorch {machine['torch']}")
    print(report.header(), flush=True)
    for done, (name, batch, dtype) in enumerate(triples):
        say = progress(f"{done + 1}/{len(triples)} {name} batch {batch} {dtype}")
        records.append(driver.measure(name, batch, dtype, rivals, plan, say))
        clear()
        print(report.rows(records[-1]), flush=True)
        if settings.json:
            with open(settings.json, "w") as file:
                json.dump({"machine": machine, "records": records}, file, indent=1)
    print(report.summary(records))
    if settings.plot:
        report.plot(records, settings.plot, machine)
        print(f"picture: {settings.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
