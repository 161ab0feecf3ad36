"""Tables and pictures of what was measured."""

from __future__ import annotations

import math
from typing import Any

COLOURS = {"eager": "#9a9a9a", "inductor": "#4c78a8", "inductor-freeze": "#72a5d8",
           "onnxruntime": "#b279a2", "openvino": "#54a24b", "ingot": "#f58518"}  # fmt: skip
TITLES = {"eager": "eager", "inductor": "torch.compile",
          "inductor-freeze": "torch.compile, freezing",
          "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "ingot": "Ingot"}  # fmt: skip
_ROW = "{:<18} {:>5} {:>4}  {:<24} {:>8} {:>8} {:>9} {:>7} {:>9} {:>7} {:>8} {:>8} {:>7}"


def header() -> str:
    """The table's head."""
    line = _ROW.format("model", "batch", "type", "rival", "first s", "second s", "compile s",
                       "warm s", "median ms", "x eager", "peak MiB", "error",
                       "/ eager")  # fmt: skip
    return line + "\n" + "-" * len(line)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def rows(record: dict[str, Any]) -> str:
    """The table's lines of one model."""
    lines = []
    eager = next((r["error"] for r in record["rivals"] if r["rival"] == "eager"), None)
    for position, one in enumerate(record["rivals"]):
        name = record["model"] if position == 0 else ""
        batch = str(record["batch"]) if position == 0 else ""
        dtype = record["dtype"] if position == 0 else ""
        title = TITLES[one["rival"]]
        if one["failed"]:
            lines.append(f"{name:<18} {batch:>5} {dtype:>4}  {title:<24} {one['failed']}")
            continue
        error = one["error"]
        cells = (
            _number(one["cold_first_s"], 2),
            _number(one["second_s"], 2),
            _number(one["compile_s"] if one["graphs"] else None, 3),
            _number(one["warm_first_s"], 2),
            _number(one["median_ms"], 2),
            _number(one["speedup"], 2),
            _number(one["peak_mib"], 0),
            "" if error is None else f"{error:.1e}",
            _number(error / eager, 2) if eager and error is not None else "",
        )
        line = _ROW.format(name, batch, dtype, title, *cells)
        if one["fallbacks"]:
            line += f"  ({one['fallbacks']} of {one['graphs']} graphs ran eagerly)"
        lines.append(line)
    return "\n".join(lines)


def geometric_mean(records: list[dict[str, Any]], rival: str, over: list[str]) -> float | None:
    """Mean speed of `rival` over the fastest of `over`, on the models where both were measured."""
    logs = []
    for record in records:
        speeds = {r["rival"]: r["speedup"] for r in record["rivals"] if r["speedup"]}
        others = [speeds[name] for name in over if name in speeds]
        if rival in speeds and others:
            logs.append(math.log(speeds[rival] / max(others)))
    return math.exp(sum(logs) / len(logs)) if logs else None


def summary(records: list[dict[str, Any]]) -> str:
    """One line a rival: its geometric mean over eager; and Ingot over the best of PyTorch's."""
    lines = []
    names = list(dict.fromkeys(r["rival"] for record in records for r in record["rivals"]))
    for name in names:
        mean = geometric_mean(records, name, ["eager"])
        if mean is not None and name != "eager":
            lines.append(f"geometric mean, {TITLES[name]} over eager: {mean:.2f}")
    best = geometric_mean(records, "ingot", ["eager", "inductor", "inductor-freeze"])
    if best is not None and len(names) > 2:
        lines.append(f"geometric mean, Ingot over the best of eager and torch.compile: {best:.2f}")
    times = [{r["rival"]: r["compile_s"] for r in one["rivals"] if r["graphs"]} for one in records]
    ratios = [
        math.log(t["inductor"] / t["ingot"]) for t in times if {"inductor", "ingot"} <= set(t)
    ]
    if ratios:
        mean = math.exp(sum(ratios) / len(ratios))
        lines.append(f"geometric mean, torch.compile's compile time over Ingot's: {mean:.0f}")
    return "\n".join(lines)


def plot(records: list[dict[str, Any]], path: str, machine: dict[str, Any]) -> None:
    """Bars of the speed relative to eager, written as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(r["rival"] for record in records for r in record["rivals"]))
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(records) + 2), 4.2), dpi=150)
    width = 0.8 / max(1, len(names))
    for k, name in enumerate(names):
        heights = []
        for record in records:
            one = next((r for r in record["rivals"] if r["rival"] == name), None)
            heights.append((one or {}).get("speedup") or 0.0)
        places = [n - 0.4 + (k + 0.5) * width for n in range(len(records))]
        bars = axes.bar(places, heights, width, label=TITLES[name], color=COLOURS[name])
        if name == "ingot":
            axes.bar_label(bars, [f"{h:.2f}" if h else "" for h in heights], fontsize=7, padding=1)
    labels = []
    for record in records:
        extra = "" if record["dtype"] == "fp32" else f" {record['dtype']}"
        labels.append(f"{record['model']}\nbatch {record['batch']}{extra}")
    axes.set_xticks(range(len(records)), labels, fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_ylabel("speed, eager = 1")
    axes.set_title(f"{machine['processor']}, {machine['threads']} threads, PyTorch "
                   f"{machine['torch']}", fontsize=8)  # fmt: skip
    axes.legend(fontsize=7, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
