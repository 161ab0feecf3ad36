"""`make demo`: real sentences embedded with real weights, then models beside their rivals."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import textwrap
import time
from pathlib import Path

import torch

from . import driver, models, report
from .progress import clear, progress

LIST = ("all-minilm", "resnet50", "bert-base", "vit-b16", "mobilenetv3")
RIVALS = ["eager", "inductor", "ingot"]
QUICK_LIST = ("all-minilm", "mobilenetv3")
QUICK_RIVALS = ["eager", "ingot"]


def readme_sentences(limit: int = 12) -> list[str]:
    """The first prose sentences of the README, or the package's own where there is none."""
    path = Path(__file__).resolve().parents[3] / "README.md"
    if not path.is_file():
        return list(models.SENTENCES)
    text = re.sub(r"```.*?```", "\n\n", path.read_text(), flags=re.S)
    found = []
    for paragraph in text.split("\n\n"):
        if re.match(r"\s*(#|\||-|\*|\d+\.|!|<|    )", paragraph):
            continue
        prose = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        found += [s.strip() for s in re.findall(r"[A-Z][^.!?]{15,}?[.!?](?=\s|$)", prose)]
    return found[:limit] if len(found) >= 4 else list(models.SENTENCES)


def embed() -> bool:
    """Embed the sentences eagerly and under Ingot; show the closest; whether the two agree."""
    import ingot

    sentences = readme_sentences()
    print(f"all-MiniLM-L6-v2 (real weights) embeds {len(sentences)} sentences of the README\n")
    module = models.find("all-minilm")(1).module.eval()
    inputs = models.minilm_inputs(sentences)
    with torch.no_grad():
        expected = module(**inputs)
        compiled = ingot.compile(module)
        start = time.perf_counter()
        actual = compiled(**inputs)
        first = time.perf_counter() - start
    similarity = actual @ actual.T
    similarity.fill_diagonal_(-1)
    pairs = sorted(((similarity[i].max().item(), i, similarity[i].argmax().item())
                    for i in range(len(sentences))), reverse=True)  # fmt: skip
    shown: set[frozenset[int]] = set()
    for score, i, j in pairs:
        if frozenset((i, j)) in shown or len(shown) == 3:
            continue
        shown.add(frozenset((i, j)))
        eager = (expected[i] @ expected[j]).item()
        print(f"  similarity {score:.4f} (eager {eager:.4f})")
        for k in (i, j):
            print(textwrap.indent(textwrap.fill(sentences[k], 90), "      "))
    difference = (actual - expected).abs().max().item()
    stats = ingot.stats()
    print(f"\n  largest difference from eager {difference:.1e}; first call {first:.2f} s, of which "
          f"{stats.compile_seconds:.2f} s Ingot; {stats.fallbacks} of {stats.graphs} graphs ran "
          "eagerly\n", flush=True)  # fmt: skip
    return difference < 1e-4


def main(arguments: list[str] | None = None) -> int:
    """Show the embeddings and the table; nonzero when Ingot failed somewhere."""
    parser = argparse.ArgumentParser(prog="python -m ingot.bench.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two models, eager and Ingot only")
    parser.add_argument("--plot", default="out/demo.png", metavar="FILE", help="the picture")
    settings = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    good = embed()
    names, rivals = (QUICK_LIST, QUICK_RIVALS) if settings.quick else (LIST, RIVALS)
    plan = driver.Plan(rounds=3 if settings.quick else 7, warm=False)
    machine, records = driver.machine(), []
    print(f"{machine['processor']}, {machine['threads']} threads, PyTorch {machine['torch']}; "
          "fp32, batch 1; first call with empty caches; error against fp64\n")  # fmt: skip
    for done, name in enumerate(names):
        say = progress(f"{done + 1}/{len(names)} {name}")
        records.append(driver.measure(name, 1, "fp32", rivals, plan, say))
        clear()
    print(report.header())
    for record in records:
        print(report.rows(record))
        ours = next(one for one in record["rivals"] if one["rival"] == "ingot")
        good = good and not ours["failed"]
    print("\n" + report.summary(records))
    os.makedirs(os.path.dirname(settings.plot) or ".", exist_ok=True)
    report.plot(records, settings.plot, machine)
    print(f"picture: {settings.plot}")
    print("demo: done" if good else "demo: Ingot failed, see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
