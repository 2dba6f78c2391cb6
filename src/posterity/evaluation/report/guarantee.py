"""What a selective classifier guarantees: whether it can, the point of its threshold, and a line per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posterity.evaluation.report.numbers import digits, grouped, near_one, number, percent, percents
from posterity.evaluation.report.record import Entry, Record, lines

__all__ = ["COLUMNS", "Guaranteed", "guaranteed", "point"]

COLUMNS = ("by", "group", "rows", "answered", "wrong", "risk", "95 % interval", "upper bound", "guaranteed")


@dataclass(frozen=True)
class Guaranteed:
    """What is said of one entry.

    Args:
        holds: whether a risk is guaranteed at all.
        said: the guarantee, or why there is none, in a sentence.
        found: what was seen on these rows.
        broken: why these rows speak against the guarantee, or "".
        rows: (one text per column, whether it is guaranteed, its note).
        left_out: groups that only the record has.
    """

    entry: str
    holds: bool
    said: str
    found: str
    broken: str
    rows: Sequence[tuple[Sequence[str], bool, str]]
    left_out: int


_MOST = 40


def guaranteed(record: Record) -> list[Guaranteed]:
    """The entries that come from a selective classifier."""
    return [_one(entry) for entry in record.entries if lines(entry.details.get("guarantee"))]


def point(entry: Entry) -> dict[str, float] | None:
    """Where the answers of these rows lie on the curve: coverage, risk and its interval; None without a guarantee."""
    whole, promised = _whole(entry), lines(entry.details.get("guarantee"))
    if (
        whole is None
        or not promised
        or not promised[0]["holds"]
        or not whole["answered"]
        or number(whole["risk"]) is None
    ):
        return None
    found = {name: number(whole[name]) for name in ("coverage", "risk", "low", "high")}
    return {name: value for name, value in found.items() if value is not None}


def _whole(entry: Entry) -> Mapping[str, Any] | None:
    return next((line for line in lines(entry.details.get("answered")) if line["by"] == "all"), None)


def _one(entry: Entry) -> Guaranteed:
    line, whole = lines(entry.details["guarantee"])[0], _whole(entry)
    threshold = f"; threshold: {line['by']} {near_one(number(line['threshold']))}" if line["holds"] else ""
    found = broken = ""
    if whole is not None:
        risk = f": risk {percent(number(whole['risk']))}" if whole["answered"] else ""
        found = (
            f"On the {grouped(whole['n'])} rows of this page it answers {grouped(whole['answered'])} "
            f"({percent(number(whole['coverage']))}), of which {grouped(whole['errors'])} "
            f"{'is' if whole['errors'] == 1 else 'are'} wrong{risk}."
        )
        broken = str(whole["note"] or "") if line["holds"] else ""
    groups = [group for group in lines(entry.details.get("answered")) if group["by"] != "all"]
    groups = sorted(groups, key=lambda group: bool(group["guaranteed"])) if len(groups) > _MOST else groups
    rows = [(_cells(group), bool(group["guaranteed"]), str(group["note"] or "")) for group in groups[:_MOST]]
    said = str(line["said"])
    return Guaranteed(
        entry.label, bool(line["holds"]), said[:1].upper() + said[1:] + threshold + ".", found, broken, rows,
        max(0, len(groups) - _MOST),
    )  # fmt: skip


def _cells(line: Mapping[str, Any]) -> list[str]:
    ends = percents(number(line["low"]), number(line["high"]))
    answered = f"{grouped(line['answered'])} ({percent(number(line['coverage']))})"
    risk, upper = percent(number(line["risk"])), digits(number(line["upper"]))
    return [line["by"], line["group"], grouped(line["n"]), answered, grouped(line["errors"]), risk, ends, upper]
