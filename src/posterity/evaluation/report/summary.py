"""The headline in plain sentences, each built from numbers of the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.report.names import describe
from posterity.evaluation.report.numbers import digits, grouped, interval, number, percent, percents
from posterity.evaluation.report.record import Entry, Found, Record, lines

__all__ = ["summary", "verdict"]


def summary(record: Record) -> list[str]:
    """Some sentences on the entry of the lowest NLL, and on what is guaranteed."""
    if not record.entries:
        return ["Nothing was evaluated."]
    entry = record.best
    parts = [
        _first(record, entry),
        _accuracy(record, entry),
        _selective(entry),
        _calibration(entry),
        _foreign(record, entry),
        _intervals(entry),
        _steps(entry),
        _guarantee(record),
        _seeds(record),
    ]
    return [part for part in parts if part]


def verdict(value: float | None, low: float | None, high: float | None, better: int) -> str:
    """ "better", "worse" or "tie" for a paired difference, method less baseline; "" where it is undefined.

    >>> verdict(-0.2, -0.3, -0.1, better=-1), verdict(0.1, -0.1, 0.3, better=1)
    ('better', 'tie')
    """
    if value is None or low is None or high is None:
        return ""
    if low <= 0 <= high:
        return "tie"
    if not better:
        return "larger" if value > 0 else "smaller"
    return "better" if value * better > 0 else "worse"


def _known(entry: Entry, name: str) -> Found | None:
    found = entry.metrics.get(name)
    return found if found is not None and found.value is not None and math.isfinite(found.value) else None


def _with_interval(found: Found) -> str:
    if found.low is None or found.high is None:
        return digits(found.value)
    if found.spread:
        return f"{digits(found.value)}, seeds {interval(*found.spread)}"
    return f"{digits(found.value)}, 95\u202f% interval {interval(found.low, found.high)}"


def _first(record: Record, entry: Entry) -> str:
    name = next((name for name in ("nll", "rmse", "accuracy") if _known(entry, name)), None)
    if name is None:
        return ""
    found, meaning = entry.metrics[name], describe(name)
    if len(record.entries) == 1 or name != "nll":
        return f"{entry.label} has {meaning.label} {_with_interval(found)}, over {grouped(found.n)} rows."
    sentence = f"{entry.label} has the lowest {meaning.label} ({_with_interval(found)})"
    others = [other for other in record.entries if other is not entry and _known(other, name)]
    close = [other for other in others if not _separated(record, entry, other, name)]
    if not close:
        return (
            f"{sentence}, and these rows separate it from {'both' if len(others) == 2 else 'all'} others."
            if len(others) > 1
            else f"{sentence}, and these rows separate it from {_list(others)}."
        )
    if len(close) == len(others) > 2:
        return f"{sentence}, but these rows do not separate it from any of the others: call it a tie."
    return f"{sentence}, but these rows do not separate it from {_list(close)}: call it a tie."


def _separated(record: Record, entry: Entry, other: Entry, name: str) -> bool:
    """By the paired difference where there is one, or else by intervals that do not touch."""
    pair = {(entry.method, entry.via), (other.method, other.via)}
    for line in record.differences:
        if line["metric"] == name and {_who(line, "method", "via"), _who(line, "baseline", "baseline_via")} == pair:
            low, high = number(line["low"]), number(line["high"])
            return low is not None and high is not None and not low <= 0 <= high
    mine, theirs = entry.metrics[name], other.metrics[name]
    ends = [mine.low, mine.high, theirs.low, theirs.high]
    if any(end is None for end in ends):
        return False
    return bool(mine.high < theirs.low or theirs.high < mine.low)  # type: ignore[operator]


def _who(line: Mapping[str, Any], method: str, via: str) -> tuple[Any, Any]:
    return line[method], line[via]


def _list(entries: Sequence[Entry]) -> str:
    names = [entry.label for entry in entries]
    if len(names) > 3:
        return f"{names[0]} and {len(names) - 1} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _accuracy(record: Record, entry: Entry) -> str:
    if not (found := _known(entry, "accuracy")) or record.seeds > 1:
        return ""
    right = round((found.value or 0.0) * found.n)
    return f"It is right on {percent(found.value)} of the rows ({grouped(right)} of {grouped(found.n)})."


def _selective(entry: Entry) -> str:
    for risk in ("0.01", "0.05", "0.005"):
        found = _known(entry, f"coverage_at_risk_{risk}")
        if found and found.value:
            ends = f" (95\u202f% interval {percents(found.low, found.high)})" if found.low is not None else ""
            ends = f" (seeds {percents(*found.spread)})" if found.spread else ends
            return (
                f"It may answer {percent(found.value)} of the rows{ends} at a risk of at most {percent(float(risk))}."
            )
    if _known(entry, "coverage_at_risk_0.05"):
        return "No threshold keeps its risk at 5\u202f% or less."
    return ""


def _calibration(entry: Entry) -> str:
    if not (found := _known(entry, "confidence_gap")) or found.low is None or found.high is None:
        return ""
    if found.low <= 0 <= found.high:
        return "Its confidence agrees with its accuracy, as far as these rows can tell."
    points = f"{digits(abs(100 * (found.value or 0.0)))} points"
    if (found.value or 0.0) > 0:
        return f"It is over-confident: its confidence is {points} above its accuracy."
    return f"It is under-confident: its confidence is {points} below its accuracy."


def _foreign(record: Record, entry: Entry) -> str:
    if not (found := _known(entry, "ood_auroc")):
        return ""
    place = record.foreign[0] if record.foreign else "the foreign set"
    return f"Its entropy tells rows of {place} from familiar ones with AUROC {_with_interval(found)}."


def _intervals(entry: Entry) -> str:
    if not (found := _known(entry, "interval_coverage")):
        return ""
    held = round((found.value or 0.0) * found.n)
    sentence = f"Its 90\u202f% intervals hold {percent(found.value)} of the targets"
    if entry.seeds == 1:
        sentence += f" ({grouped(held)} of {grouped(found.n)})"
    if found.low is None or found.high is None:
        return sentence + "."
    if found.low <= 0.9 <= found.high:
        return sentence + ", which agrees with their level."
    return sentence + (": they are too narrow." if found.high < 0.9 else ": they are wider than they need to be.")


def _steps(entry: Entry) -> str:
    """How many of the steps ahead the intervals fail, which matters to who plans by them."""
    steps = [line for line in lines(entry.details.get("horizons")) if line["n"]]
    if not steps:
        return ""
    missed = [line for line in steps if not number(line["low_0.9"]) <= 0.9 <= number(line["high_0.9"])]  # type: ignore[operator]
    if not missed:
        return f"At each of the {len(steps)} steps ahead their coverage agrees with it."
    return f"At {len(missed)} of the {len(steps)} steps ahead their coverage does not agree with it."


def _guarantee(record: Record) -> str:
    found = [(entry, line) for entry in record.entries for line in lines(entry.details.get("guarantee"))]
    if not found:
        return ""
    entry, line = found[0]
    risk, sure = percent(number(line["max_risk"])), percent(number(line["confidence"]))
    if not line["holds"]:
        return f"No risk of at most {risk} can be guaranteed with {sure} confidence: nothing is answered."
    return f"A risk of at most {risk} is guaranteed with {sure} confidence for what {entry.label} answers."


def _seeds(record: Record) -> str:
    if record.seeds < 2:
        return ""
    return (
        f"Numbers are means over {record.seeds} seeds, with 95\u202f% intervals over seeds; plots and tables of rows are "
        "those of the first seed."
    )
