"""The programs of reports.py through both ways of compiling, against eager.

`python tests/field/test_reports.py` writes docs/reports.md anew.
"""

import functools
from pathlib import Path

import pytest
import torch
from compare import describe, differences
from reports import REPORTS

import ingot

COMPILERS = {"own": ingot.compile, "backend": functools.partial(torch.compile, backend="ingot")}
# TorchDynamo itself, with PyTorch's own backend "eager", is wrong or raises here.
WRONG_IN_DYNAMO = {120861, 185888, 193279, 196173, 197859}


def run(program, compiler):
    torch.manual_seed(0)
    try:
        return describe(program(compiler))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("number", REPORTS)
@pytest.mark.parametrize("way", COMPILERS)
def test_report(number, way):
    if way == "backend" and number in WRONG_IN_DYNAMO:
        pytest.skip("wrong before Ingot sees it")
    _, program = REPORTS[number]
    torch._dynamo.reset()
    found = differences(run(program, lambda f: f), run(program, COMPILERS[way]))
    assert not found, "\n".join(found)


PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
HEAD = """# Public reports of wrong results

Reports in PyTorch's tracker of results that torch.compile got wrong without a word, written anew
as small programs (`tests/field/reports.py`) and run on each change: through `ingot.compile` ("own")
and through `torch.compile(backend="ingot")` ("backend"). "TorchDynamo" means wrong before a backend
sees it, with PyTorch's backend "eager" too. Programs after other reports: `tests/field/programs`.

| report | what was wrong | own | backend |
| --- | --- | --- | --- |
"""


def page():
    rows = [
        f"| #{number} | {what} | right | "
        f"{'TorchDynamo' if number in WRONG_IN_DYNAMO else 'right'} |\n"
        for number, (what, _) in sorted(REPORTS.items())
    ]
    return HEAD + "".join(rows)


def test_page_is_up_to_date():
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
