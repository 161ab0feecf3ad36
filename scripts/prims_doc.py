"""Writes docs/prims.md from src/ir/prims.def; with --check only says whether it is up to date."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE, PAGE = ROOT / "src/ir/prims.def", ROOT / "docs/prims.md"
FIELDS = r"\s*,\s*".join([r"(\w+)", r'"([^"]*)"', r"(\w+)", r"(-?\d+)", *[r"(\w+)"] * 3])
ROW = re.compile(rf'^PRIM\({FIELDS}\s*,\s*"([^"]*)"\s*,\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', re.M)


def text() -> str:
    """The page's text. Every PRIM line of the table must be understood."""
    source = TABLE.read_text()
    rows = ROW.findall(source)
    lines = len(re.findall(r"^PRIM\(", source, re.M))
    if len(rows) != lines:
        raise SystemExit(f"prims_doc: understood {len(rows)} of {lines} rows of {TABLE.name}")
    kinds: dict[str, list[str]] = {}
    for _, name, kind, arity, dtype, shape, derivative, attributes, doc in rows:
        doc = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', doc)).replace('\\"', '"')
        cells = [f"`{name}`", "any" if arity == "-1" else arity, dtype, shape, derivative]
        cells += [f"`{attributes}`" if attributes else "", doc]
        kinds.setdefault(kind, []).append(
            "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
        )
    page = (
        f"# The {len(rows)} prims\n\nMade from `src/ir/prims.def` by `make format`; the rules are "
    )
    page += "explained in `src/ir/prim.h`.\n"
    for kind, entries in kinds.items():
        page += f"\n## {kind}\n\n"
        page += "| prim | operands | type | shape | derivative | attributes | meaning |\n"
        page += "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(entries) + "\n"
    return page


if __name__ == "__main__":
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != text():
            sys.exit("docs/prims.md does not fit src/ir/prims.def: run 'make format'")
    else:
        PAGE.write_text(text())
