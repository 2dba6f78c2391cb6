"""The tables of the page: comparison, paired differences, groups, single rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posterity.evaluation.report.names import MAIN, Name, describe
from posterity.evaluation.report.numbers import (
    DASH,
    digits,
    fixed,
    grouped,
    interval,
    near_one,
    number,
    percent,
    places,
)
from posterity.evaluation.report.pictures import data_uri
from posterity.evaluation.report.record import Entry, Found, Record, best_of, level_of, lines
from posterity.evaluation.report.summary import verdict

__all__ = [
    "Cell",
    "Comparison",
    "Difference",
    "Differences",
    "Groups",
    "comparison",
    "differences",
    "extremes",
    "groups",
]

MOST_GROUPS = 40


@dataclass(frozen=True)
class Cell:
    """A metric of an entry as text; `raw` is the number itself, `note` the footnote that says why there is none."""

    text: str
    raw: float | None = None
    ends: str = ""
    spread: str = ""
    best: bool = False
    note: int = 0
    n: str = ""


@dataclass(frozen=True)
class Comparison:
    """Metrics by entries.

    Args:
        names: the columns; `cells` has one list per entry, None where an entry lacks a metric.
        main: how many of the columns come first; the others are in the details.
        notes: the footnotes, number 1 first; the first `main_notes` belong to the main columns.
    """

    names: Sequence[Name]
    keys: Sequence[str]
    cells: Sequence[Sequence[Cell | None]]
    main: int
    notes: Sequence[str]
    main_notes: int


def comparison(record: Record) -> Comparison:
    """The table of all metrics, the main ones first."""
    keys = [key for key in MAIN if key in record.metrics]
    keys = keys[:8] or record.metrics[:6]
    main = len(keys)
    keys += [key for key in record.metrics if key not in keys]
    notes: dict[str, int] = {}
    columns = [_column(record, key, notes) for key in keys[:main]]
    first = len(notes)
    columns += [_column(record, key, notes) for key in keys[main:]]
    cells = [[column[index] for column in columns] for index in range(len(record.entries))]
    return Comparison([describe(key, record.foreign) for key in keys], keys, cells, main, list(notes), first)


def _column(record: Record, key: str, notes: dict[str, int]) -> list[Cell | None]:
    found = [entry.metrics.get(key) for entry in record.entries]
    known = [one for one in found if one is not None]
    halves = [(one.high - one.low) / 2 for one in known if one.high is not None and one.low is not None]
    decimals = places(halves)
    best = best_of(record.entries, key)
    return [None if one is None else _cell(one, decimals, best, notes) for one in found]


def _cell(found: Found, decimals: int | None, best: float | None, notes: dict[str, int]) -> Cell:
    note = notes.setdefault(found.reason, len(notes) + 1) if found.reason else 0
    if found.value is None:
        return Cell(DASH, note=note, n=grouped(found.n))
    ends = interval(found.low, found.high, decimals) if found.low is not None and found.high is not None else ""
    spread = interval(*found.spread, decimals) if found.spread else ""
    return Cell(_text(found.value, decimals), found.value, ends, spread, found.value == best, note, grouped(found.n))


@dataclass(frozen=True)
class Differences:
    """Differences from one baseline: methods and metrics, whichever are more as rows.

    Args:
        columns, rows: the headings; `cells` has one list per row, None where there is no difference.
        n: rows of data, where all differences have the same.
    """

    baseline: str
    what: str
    columns: Sequence[Name]
    rows: Sequence[Name]
    cells: Sequence[Sequence[Difference | None]]
    n: str


@dataclass(frozen=True)
class Difference:
    """Method less baseline, as text; `raw` is the number itself."""

    text: str
    raw: float | None
    ends: str
    verdict: str
    reason: str


def differences(record: Record) -> list[Differences]:
    """The paired differences with their verdicts, one table per baseline."""
    labels = {(entry.method, entry.via): entry.label for entry in reversed(record.entries)}
    tables: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for line in record.differences:
        baseline = labels.get((line["baseline"], line["baseline_via"]), str(line["baseline"]))
        method = labels.get((line["method"], line["via"]), str(line["method"]))
        tables.setdefault(baseline, {})[method, line["metric"]] = line
    return [_differences(record, baseline, found) for baseline, found in tables.items()]


def _differences(record: Record, baseline: str, found: Mapping[tuple[str, str], Mapping[str, Any]]) -> Differences:
    methods, metrics = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    meanings = [describe(metric, record.foreign) for metric in metrics]
    fits = [places([_half(line) for (_, name), line in found.items() if name == metric]) for metric in metrics]
    cells = [
        [
            None if (line := found.get((method, metric))) is None else _difference(line, meaning, fit)
            for metric, meaning, fit in zip(metrics, meanings, fits)
        ]
        for method in methods
    ]
    counts = {int(number(line["n"]) or 0) for line in found.values()}
    n = grouped(counts.pop()) if len(counts) == 1 else ""
    names = [Name(method) for method in methods]
    if len(methods) >= len(metrics):
        return Differences(baseline, "method", meanings, names, cells, n)
    return Differences(baseline, "metric", names, meanings, [list(column) for column in zip(*cells)], n)


def _difference(line: Mapping[str, Any], meaning: Name, decimals: int | None) -> Difference:
    value, low, high = (number(line[key]) for key in ("value", "low", "high"))
    ends = interval(low, high, decimals, signed=True) if low is not None and high is not None else ""
    word = verdict(value, low, high, meaning.better)
    return Difference(_text(value, decimals), value, ends, word, str(line.get("reason") or ""))


@dataclass(frozen=True)
class Groups:
    """The metrics of the groups of one column, for one entry.

    Args:
        overall: of all rows, one text per name.
        rows: (group, rows, one (text, ends, word) per name), word "" where the interval holds the overall value.
        left_out: groups that only the record has.
        by_chance: how many of all intervals miss the overall value though no group differs.
    """

    entry: str
    by: str
    names: Sequence[Name]
    overall: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[tuple[str, str, str] | None]]]
    left_out: int
    intervals: int
    marked: int


def groups(entry: Entry) -> list[Groups]:
    """One table per column that rows were grouped by."""
    table = lines(entry.details.get("groups"))
    return [
        _groups(entry, by, [line for line in table if line["by"] == by])
        for by in dict.fromkeys(line["by"] for line in table)
    ]


def _groups(entry: Entry, by: str, table: Sequence[Mapping[str, Any]]) -> Groups:
    keys = list(dict.fromkeys(line["metric"] for line in table))
    names = [describe(key) for key in keys]
    overall = [entry.metrics[key].value if key in entry.metrics else None for key in keys]
    at = {(str(line["group"]), line["metric"]): line for line in table}
    decimals = [places([_half(line) for line in table if line["metric"] == key]) for key in keys]
    rows = []
    for group in dict.fromkeys(str(line["group"]) for line in table):
        found = [at.get((group, key)) for key in keys]
        parts = zip(found, overall, names, decimals)
        cells = [None if line is None else _against(line, value, name, fit) for line, value, name, fit in parts]
        n = max(int(number(line["n"]) or 0) for line in found if line is not None)
        rows.append((group, grouped(n), cells))
    shown = rows
    if len(rows) > MOST_GROUPS:  # those that differ come first
        shown = sorted(rows, key=lambda row: not any(cell and cell[2] for cell in row[2]))[:MOST_GROUPS]
    checked = sum(number(line["low"]) is not None for line in table)
    marked = sum(bool(cell and cell[2]) for row in rows for cell in row[2])
    whole = [_text(value, fit) for value, fit in zip(overall, decimals)]
    return Groups(entry.label, by, names, whole, shown, len(rows) - len(shown), checked, marked)


def _half(line: Mapping[str, Any]) -> float:
    low, high = number(line["low"]), number(line["high"])
    return 0.0 if low is None or high is None else (high - low) / 2


def _text(value: float | None, decimals: int | None) -> str:
    return digits(value) if value is None or decimals is None or abs(value) >= 1e9 else fixed(value, decimals)


def _against(line: Mapping[str, Any], overall: float | None, name: Name, decimals: int | None) -> tuple[str, str, str]:
    value, low, high = (number(line[key]) for key in ("value", "low", "high"))
    word = ""
    if None not in (value, low, high, overall) and not low <= overall <= high:  # type: ignore[operator]
        word = verdict(value - overall, low - overall, high - overall, name.better)  # type: ignore[operator]
    ends = interval(low, high, decimals) if low is not None else str(line.get("reason") or "")
    return _text(value, decimals), ends, word


def extremes(entry: Entry) -> dict[str, Any] | None:
    """The rows that an entry is surest and least sure of."""
    table = lines(entry.details.get("extremes"))
    if not table:
        return None
    kind = "class" if "label" in table[0] else "number"
    widths = places([number(line["std"]) or 0.0 for line in table]) if kind == "number" else None
    decimals = None if widths is None else widths + 1
    rows: dict[str, list[dict[str, Any]]] = {"least": [], "most": [], "wrong": []}
    for line in table:
        one: dict[str, Any] = {
            key: _entry(key, value, decimals)
            for key, value in line.items()
            if key not in ("picture", "which", "about", "correct")
        }
        one["uri"] = data_uri(line.get("picture"))
        if one["uri"]:
            one["height"], one["width"] = line["picture"]["shape"][:2]
        one["about"], one["correct"] = line.get("about"), line.get("correct")
        rows.setdefault(line["which"], []).append(one)
    pictures = any(one["uri"] for some in rows.values() for one in some)
    about = any(one["about"] for some in rows.values() for one in some)
    return {
        "entry": entry.label, "kind": kind, "tables": rows, "pictures": pictures, "about": about,
        "level": percent(level_of(table)),
    }  # fmt: skip


def _entry(key: str, value: Any, decimals: int | None) -> str:
    if value is None or key in ("row", "label") or (isinstance(value, str) and number(value) is None):
        return DASH if value is None else str(value)
    found = number(value)
    if key == "confidence":
        return near_one(found)
    return _text(found, decimals) if decimals is not None and found is not None else digits(found)
