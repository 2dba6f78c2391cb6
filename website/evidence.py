"""Tables of committed figures in the pages: `python website/evidence.py` writes them anew, a test holds them to the JSON.

Then it writes docs/evidence.md, the list of all measured figures with their commands (`claims.py`).

    <!-- evidence: low-rank-icu | rows: MAP=deterministic, SWAG=swag | columns: NLL=icu_{}_nll, ECE=icu_{}_ece -->
    <!-- end -->

A cell is the claim of that name in `benchmarks/results/low-rank-icu.json`, with the one called `..._error` behind ±.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import claims

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

_BLOCK = re.compile(
    r"<!-- evidence: (?P<bench>[\w-]+) \| rows: (?P<rows>.*?) \| columns: (?P<columns>.*?) -->\n.*?<!-- end -->",
    re.DOTALL,
)


def filled(page: str, depth: int = 0) -> str:
    """A page with every table of evidence as the JSON has it now; `depth` folders lie between it and docs/.

    Raises KeyError: a row or a column of a table has none of the claims that it names.
    """
    return _BLOCK.sub(lambda block: _table(block, "../" * (depth + 1)), page)


def _table(block: re.Match[str], up: str) -> str:
    bench = block["bench"]
    record = json.loads((RESULTS / f"{bench}.json").read_text("utf-8"))
    rows, columns = _pairs(block["rows"]), _pairs(block["columns"])
    cells = [[_cell(record["claims"], template.format(key)) for template in columns.values()] for key in rows.values()]
    for name, part in (*zip(rows.values(), cells), *zip(columns.values(), zip(*cells))):
        if not any(part):
            raise KeyError(f"{bench} claims nothing of {name}")
    lines = [["", *columns], ["---"] * (len(columns) + 1), *([label, *row] for label, row in zip(rows, cells))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    source = f"`{record['command']}`, [{bench}.json]({up}benchmarks/results/{bench}.json)"
    return f"{block[0].splitlines()[0]}\n\n{table}\n\n{source}\n\n<!-- end -->"


def _pairs(text: str) -> dict[str, str]:
    """
    >>> _pairs("MAP=map, two words=key")
    {'MAP': 'map', 'two words': 'key'}
    """
    pairs = (part.partition("=") for part in text.split(","))
    return {label.strip(): key.strip() for label, _, key in pairs}


def _cell(claims: dict[str, float], name: str) -> str:
    if name not in claims:
        return ""
    error = claims.get(f"{name}_error")
    return number(claims[name]) + (f" ± {number(error)}" if error else "")


def number(value: float) -> str:
    """Three digits that count, and no more than the whole part of what is large.

    >>> number(0.32041), number(41.26), number(18603.5), number(2.8e-28), number(0.0)
    ('0.320', '41.3', '18,604', '2.8e-28', '0')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-4:
        return f"{value:.1e}"
    return f"{value:,.{3 if size < 10 else 1 if size < 100 else 0}f}"


if __name__ == "__main__":
    docs = ROOT / "docs"
    for path in sorted(docs.rglob("*.md")):
        before = path.read_text("utf-8")
        if (after := filled(before, len(path.relative_to(docs).parts) - 1)) != before:
            path.write_text(after, "utf-8")
    claims.PAGE.write_text(claims.page(), "utf-8")
