"""The tables of promises from the suites: `python website/promises.py` writes them into docs/promises.md anew."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.contract.test_contract import CASES  # noqa: E402
from tests.contract.test_posteriors import KINDS, POSTERIOR_CHECKS, REFUSED  # noqa: E402

from posterity.testing import CHECKS  # noqa: E402

PAGE = ROOT / "docs" / "promises.md"
_BLOCK = r"(?<=<!-- {} -->\n).*?(?=<!-- end -->)"

Reason = Callable[[str, str], str | None]  # why a row cannot have a check


def filled(page: str) -> str:
    """The page with the tables as the suites have them now."""
    blocks = {
        "contract": _block(CASES, CHECKS, lambda name, check: CASES[name].skip.get(check)),
        "posteriors": _block(KINDS, POSTERIOR_CHECKS, lambda kind, check: REFUSED.get(check, {}).get(kind)),
    }
    for name, text in blocks.items():
        page = re.sub(_BLOCK.format(name), lambda _, text=text: text, page, count=1, flags=re.DOTALL)
    return page


def _block(rows: Iterable[str], checks: Iterable[str], reason: Reason) -> str:
    reasons: dict[str, int] = {}
    checks = list(checks)
    lines = [["", *(str(number) for number in range(1, len(checks) + 1))], ["---"] * (len(checks) + 1)]
    for name in rows:
        lines.append([name, *(_cell(reason(name, check), reasons) for check in checks)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    numbered = "\n".join(f"{number}. `{check}`" for number, check in enumerate(checks, 1))
    notes = "\n".join(f"- {_letter(number)}: {reason}" for reason, number in reasons.items())
    return f"\n{numbered}\n\n{table}\n\n{notes}\n\n"


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
