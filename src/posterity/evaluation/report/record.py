"""The record of an evaluation, read for the page: one entry per method and way of predicting, its seeds together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posterity.evaluation.measured import pooled
from posterity.evaluation.metric import mean_interval
from posterity.evaluation.metrics import limits
from posterity.evaluation.report.names import describe
from posterity.evaluation.report.numbers import number

__all__ = ["Entry", "Found", "Record", "Table", "level_of", "lines", "read"]

Table = Mapping[str, Sequence[Any]]

# What a line of a detail must have, finite where it is a number, to say anything; other columns may be null.
_NEEDED = {
    "reliability": ("lower", "upper", "count"),
    "reliability_mass": ("lower", "upper", "count"),
    "risk_coverage": ("answered", "coverage", "errors", "risk"),
    "ood": ("set", "measure", "lower", "upper", "count"),
    "groups": ("by", "group", "metric"),
    "group_reliability": ("by", "group", "lower", "upper", "count"),
    "extremes": ("which", "row"),
    "intervals": ("level",),
    "pit": ("lower", "upper", "count"),
    "bands": ("row", "target", "mean", "lower", "upper"),
    "spread": ("count",),
    "horizons": ("step", "n"),
    "guarantee": ("holds", "said", "by"),
    "answered": ("by", "group", "n", "answered", "coverage", "errors"),
    "chains": ("member",),
    "trace": ("step", "member"),
    "chain_numbers": ("name",),
    "chain_findings": ("check", "status", "message"),
}
_WORDS = (
    "set",
    "measure",
    "by",
    "group",
    "metric",
    "which",
    "row",
    "name",
    "check",
    "status",
    "message",
    "said",
    "holds",
)


@dataclass(frozen=True)
class Found:
    """A metric over the seeds of an entry.

    Args:
        value: the mean over seeds; None where one of them has no value.
        low, high: its 95 % interval; over seeds where there are several, as `Evaluation.over_seeds`.
        spread: the smallest and the largest value over the seeds; None for one seed.
        n: rows of one seed.
        reason: why something is None.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Entry:
    """A method and way of predicting.

    Args:
        label: what tells it from all others, short.
        details: of the first seed that has any.
        row: where in the record's rows these details are.
        seeds: how many rows of the record it stands for.
    """

    method: str
    via: str
    label: str
    metrics: Mapping[str, Found]
    details: Mapping[str, Table]
    row: int
    seeds: int


@dataclass(frozen=True)
class Record:
    """All entries in the record's order, the paired differences as lines, the settings."""

    entries: tuple[Entry, ...]
    differences: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]

    @property
    def best(self) -> Entry:
        """The entry of the lowest NLL, or else the first."""
        known = [entry for entry in self.entries if _value(entry) is not None]
        return min(known, key=lambda entry: _value(entry) or 0.0) if known else self.entries[0]

    @property
    def seeds(self) -> int:
        """The most seeds that an entry has."""
        return max((entry.seeds for entry in self.entries), default=1)

    @property
    def metrics(self) -> list[str]:
        """All metrics, in the order they appear in."""
        return list(dict.fromkeys(name for entry in self.entries for name in entry.metrics))

    @property
    def foreign(self) -> list[str]:
        """The foreign sets, in the order of the details."""
        return list(
            dict.fromkeys(
                str(line["set"])
                for entry in self.entries
                for line in lines(entry.details.get("ood"))
                if line["set"] != "test"
            )
        )

    def shown(self, detail: str, most: int) -> tuple[list[Entry], int]:
        """The entries that have a detail, at most `most` of them: those of the lowest NLL. And how many are left out."""
        having = [entry for entry in self.entries if lines(entry.details.get(detail))]
        ranked = sorted(having, key=lambda entry: (_value(entry) is None, _value(entry) or 0.0))[:most]
        return [entry for entry in having if entry in ranked], len(having) - len(ranked)


def _value(entry: Entry) -> float | None:
    return entry.metrics["nll"].value if "nll" in entry.metrics else None


def lines(table: Table | None) -> list[dict[str, Any]]:
    """A table of columns as a list of lines; none for no table.

    >>> lines({"a": [1, 2], "b": [3, 4]})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    return [dict(zip(table, values)) for values in zip(*table.values())] if table else []


def level_of(table: Sequence[Mapping[str, Any]]) -> float:
    """The level of the intervals in a table of rows: 0.9 unless it says."""
    return number(table[0].get("level")) or 0.9 if table else 0.9


def read(record: Mapping[str, Any]) -> Record:
    """The record as `Evaluation.to_json` gives it; details, differences and settings may be missing."""
    together: dict[tuple[Any, ...], list[int]] = {}
    rows = record["rows"]
    for index, row in enumerate(rows):
        seed = row.get("seed")  # two rows of one name and no seeds are two results
        together.setdefault((row["method"], row["via"], index if seed is None else None), []).append(index)
    vias = Counter(method for method, _, _ in together)
    names: Counter[str] = Counter()
    entries = []
    for (method, via, _), indices in together.items():
        label = f"{method} · {via}" if vias[method] > 1 else str(method)
        names[label] += 1
        label = f"{label} ({names[label]})" if names[label] > 1 else label
        first = next((index for index in indices if rows[index].get("details")), indices[0])
        metrics = _merged([rows[index]["metrics"] for index in indices])
        details = {name: _whole(name, table) for name, table in (rows[first].get("details") or {}).items()}
        entries.append(Entry(method, via, label, metrics, details, first, len(indices)))
    return Record(tuple(entries), tuple(lines(pooled(record.get("differences") or {}))), record.get("settings") or {})


def _whole(name: str, table: Table) -> Table:
    """The table without the lines that lack what is needed; without any line where the slider counts lines."""
    needed = _NEEDED.get(name, ())
    if not all(key in table for key in needed):
        return {}
    good = [all(_says(key, line[key]) for key in needed) for line in lines(table)]
    if name == "risk_coverage":
        return table if all(good) else {}
    return {key: [value for value, kept in zip(column, good) if kept] for key, column in table.items()}


def _says(key: str, value: Any) -> bool:
    return value is not None and (key in _WORDS or (number(value) is not None and math.isfinite(float(value))))


def _merged(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Found]:
    return {name: _over(name, [metrics[name] for metrics in seeds if name in metrics]) for name in seeds[0]}


def _over(name: str, seeds: Sequence[Mapping[str, Any]]) -> Found:
    values = [number(metric["value"]) for metric in seeds]
    reason = next((metric["reason"] for metric in seeds if metric.get("reason")), None)
    known = [value for value in values if value is not None]
    if reason and 0 < (some := sum(bool(metric.get("reason")) for metric in seeds)) < len(seeds):
        reason = f"{reason} (in {some} of {len(seeds)} seeds)"
    n = int(number(seeds[0].get("n")) or 0)
    if len(known) < len(seeds):
        return Found(None, None, None, n, reason or "no reason was recorded")
    if len(seeds) == 1:
        return Found(known[0], number(seeds[0]["low"]), number(seeds[0]["high"]), n, reason)
    over = mean_interval(torch.tensor(known, dtype=torch.float64), *limits(name))
    low, high = (end if math.isfinite(end) else None for end in (over.low, over.high))
    return Found(over.value, low, high, n, reason, (min(known), max(known)))


def best_of(entries: Sequence[Entry], name: str) -> float | None:
    """The best value of a metric, where one way is better and two of them differ."""
    values = [entry.metrics[name].value for entry in entries if name in entry.metrics]
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return None
    sign = describe(name).better
    return max(known, key=lambda value: sign * value) if sign else None
