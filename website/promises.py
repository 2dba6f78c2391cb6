"""The table of promises from the contract suite: `python website/promises.py` writes it into docs/promises.md anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.contract.test_contract import CASES  # noqa: E402

from posterity.testing import CHECKS  # noqa: E402

PAGE = ROOT / "docs" / "promises.md"
_BLOCK = re.compile(r"(?<=<!-- contract -->\n).*(?=<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with the table as the suite has it now."""
    reasons: dict[str, int] = {}
    lines = [["", *(str(number) for number in range(1, len(CHECKS) + 1))], ["---"] * (len(CHECKS) + 1)]
    for name, case in CASES.items():
        cells = [_cell(case.skip.get(check), reasons) for check in CHECKS]
        lines.append([name, *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    numbered = "\n".join(f"{number}. `{check}`" for number, check in enumerate(CHECKS, 1))
    notes = "\n".join(f"- {_letter(number)}: {reason}" for reason, number in reasons.items())
    return _BLOCK.sub(lambda _: f"\n{numbered}\n\n{table}\n\n{notes}\n\n", page)


def _cell(reason: str | None, reasons: dict[str, int]) -> str:
    return "✓" if reason is None else _letter(reasons.setdefault(reason, len(reasons)))


def _letter(number: int) -> str:
    """
    >>> _letter(0), _letter(25)
    ('a', 'z')
    """
    return chr(ord("a") + number)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
