"""The result that holds the metrics of several methods: JSON, a frame, a table for the terminal."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch

from posterity.errors import CompatibilityError, StorageError
from posterity.evaluation.measured import pooled
from posterity.evaluation.metric import Metric, mean_interval
from posterity.evaluation.metrics import direction, limits
from posterity.posterior.files import atomic_json, read_json, strict_json

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

__all__ = ["Evaluation", "Row"]


class Row(TypedDict):
    """The metrics of one way to predict with one method, and the tables behind its plots."""

    method: str
    via: str
    seed: NotRequired[int]
    metrics: dict[str, Metric]
    details: NotRequired[dict[str, dict[str, list[Any]]]]


# What a table shows unless told otherwise, in this order.
_SHOWN = (
    "accuracy", "nll", "brier", "ece", "aurc", "ood_auroc", "ood_auroc_epistemic",
    "rmse", "crps", "interval_coverage", "interval_width",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one or several methods.

    Args:
        rows: one {"method", "via", "metrics": {name: Metric}} per method and way of predicting; with several seeds
            "seed", one per seed; "details": {name: {column: [values]}}, the tables behind the plots.
        settings: what all rows share (data, levels, bins); must be JSON.
        differences: {column: [values]}, a line per metric and row: its metric minus the baseline's on the same rows.

    Evaluations add up: `first + second` has the rows of both.
    """

    rows: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    differences: dict[str, list[Any]] = field(default_factory=dict)

    def __add__(self, other: Evaluation) -> Evaluation:
        """The rows of both. Raises CompatibilityError if a setting differs: such rows do not belong in one table.

        "methods", what each method was told, is the one setting that differs by nature: both are kept.
        """
        methods = {**self.settings.get("methods", {}), **other.settings.get("methods", {})}
        shared = {key for key in self.settings if key in other.settings and key != "methods"}
        if differ := sorted(key for key in shared if self.settings[key] != other.settings[key]):
            raise CompatibilityError(f"evaluations with different settings do not add up: {', '.join(differ)}")
        names = self.differences or other.differences
        differences = {name: self.differences.get(name, []) + other.differences.get(name, []) for name in names}
        settings = {**self.settings, **other.settings, **({"methods": methods} if methods else {})}
        return Evaluation(self.rows + other.rows, settings, differences)

    def __str__(self) -> str:
        """The table of the main metrics, as text."""
        from rich.console import Console

        console = Console(width=160, file=io.StringIO())
        with console.capture() as found:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in found.get().strip("\n").splitlines())

    def over_seeds(self) -> Evaluation:
        """One row per method and way: the mean over its seeds, with a 95 % interval over seeds.

        n is then the number of seeds, the interval Student's. Details are those of the first seed that has them. Rows
        without a seed stay as they are. Differences that several comparisons made of one pair are pooled so too.
        """
        by_way: dict[Any, list[Row]] = {}
        for number, row in enumerate(self.rows):
            by_way.setdefault((row["method"], row["via"]) if "seed" in row else number, []).append(row)
        return Evaluation([_mean_row(rows) for rows in by_way.values()], self.settings, pooled(self.differences))

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write one self-contained page: the comparison, its plots, the settings. Opens anywhere, offline.

        Raises:
            ImportError: the extra `posterity[report]` is not installed.
            StorageError: it cannot be written.
        """
        from posterity.evaluation.report.report import write_report

        return write_report(self, path, title)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """{"rows": [{"method", "via", "metrics": {name: {"value", "low", "high", "n"}}, ...}]}, "settings", "differences".

        The parts that are empty are left out. NaN becomes null.

        With `path` the same is written there, whole or not at all. Raises StorageError if it cannot be.
        """
        rows = [{**row, "metrics": {name: m.to_json() for name, m in row["metrics"].items()}} for row in self.rows]
        record: dict[str, Any] = {"rows": rows, "settings": self.settings, "differences": self.differences}
        record = strict_json({name: part for name, part in record.items() if part or name == "rows"}, null=True)
        if path is not None:
            atomic_json(path, record)
        return record

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Evaluation:
        """The inverse of `to_json`, from its file or its value. Raises StorageError if it is not one."""
        where = "this record" if isinstance(source, Mapping) else os.fspath(source)
        record = source if isinstance(source, Mapping) else read_json(source)
        try:
            rows = [
                {
                    "method": row["method"],
                    "via": row["via"],
                    **{name: row[name] for name in ("seed", "details") if name in row},
                    "metrics": {name: Metric.from_json(metric) for name, metric in row["metrics"].items()},
                }
                for row in record["rows"]
            ]
            return cls(rows, dict(record.get("settings", {})), dict(record.get("differences", {})))  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{where} is not an evaluation: {error!r}") from error

    def to_frame(self) -> pandas.DataFrame:
        """One line per metric: method, via (seed, where there are several), metric, value, low, high, n, reason.

        `frame.pivot(index=["method", "via"], columns="metric", values="value")` is the wide form.
        Raises ImportError without pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
        seed = ["seed"] if any("seed" in row for row in self.rows) else []
        keys = ["method", "via", *seed]
        lines = [
            {**{key: row.get(key) for key in keys}, "metric": name, **metric._asdict()}
            for row in self.rows
            for name, metric in row["metrics"].items()
        ]
        return pandas.DataFrame(lines, columns=[*keys, "metric", *Metric._fields])

    def table(self, metrics: Sequence[str] | None = None) -> Table:
        """A table for the terminal: the value, half the width of its 95 % interval under it, the best of a column bold.

        Several seeds of a method are one line, their mean.

        Args:
            metrics: which, in this order; the main ones unless given. Undefined values are a dash, their reasons under
                the table.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        shown = self.over_seeds().rows
        there = {name for row in shown for name in row["metrics"]}
        names = list(metrics or _main(there) or sorted(there))
        best = {name: _best(name, shown) for name in names}
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("method", no_wrap=True)
        table.add_column("via", no_wrap=True)
        for name in names:
            words = name.split("_")  # one under the other; a value has at most seven characters
            table.add_column("\n".join(words), justify="right", min_width=max(7, *map(len, words)))
        reasons: dict[str, list[str]] = {}
        for row in shown:
            found = row["metrics"]
            cells = [_cell(found[name], best[name]) if name in found else "" for name in names]
            table.add_row(Text(row["method"]), Text(row["via"]), *map(Text.from_markup, cells))
            for name in names:
                if name in found and found[name].reason:
                    reasons.setdefault(f"{name}: {found[name].reason}", []).append(f"{row['method']} {row['via']}")
        if reasons:
            table.caption = Text("\n".join(f"{reason} ({', '.join(who)})" for reason, who in reasons.items()))
        return table


def _main(there: Collection[str]) -> list[str]:
    """The main metrics among those that are there; without intervals of 0.9, those of the levels that were asked for.

    >>> _main({"nll", "interval_coverage_0.8", "interval_coverage_0.5", "lppd"})
    ['nll', 'interval_coverage_0.5', 'interval_coverage_0.8']
    """
    at_levels = {name: sorted(other for other in there if other.startswith(f"{name}_0.")) for name in _SHOWN}
    return [found for name in _SHOWN for found in ([name] if name in there else at_levels[name])]


def _mean_row(rows: list[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    metrics = {}
    for name in rows[0]["metrics"]:
        found = [row["metrics"][name] for row in rows if name in row["metrics"]]
        undefined = next((metric.reason for metric in found if math.isnan(metric.value)), None)
        values = torch.tensor([metric.value for metric in found], dtype=torch.float64)
        known = undefined is None
        metrics[name] = mean_interval(values, *limits(name)) if known else Metric.undefined(len(found), str(undefined))
    row: Row = {"method": rows[0]["method"], "via": rows[0]["via"], "metrics": metrics}
    if details := next((row["details"] for row in rows if row.get("details")), None):
        row["details"] = details
    return row


def _best(name: str, rows: Sequence[Row]) -> float | None:
    sign = direction(name)
    values = [row["metrics"][name].value for row in rows if name in row["metrics"]]
    finite = [value for value in values if math.isfinite(value)]
    return max(finite, key=lambda value: sign * value) if sign and len(finite) > 1 else None


def _cell(metric: Metric, best: float | None) -> str:
    value = _digits(metric.value)
    half = (metric.high - metric.low) / 2
    spread = "" if math.isnan(half) else f"\n[dim]±{_digits(half)}[/dim]"
    return f"[bold]{value}[/bold]{spread}" if metric.value == best else f"{value}{spread}"


def _digits(value: float) -> str:
    """Four decimals below 10, four significant digits above, all digits of large numbers; a dash for NaN.

    >>> [_digits(value) for value in (0.5, 12.3456, 12345.6, 0.00021, float("nan"), float("inf"))]
    ['0.5000', '12.35', '12346', '0.0002', '-', 'inf']
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value) or 1e4 <= abs(value) < 1e9:
        return f"{value:.0f}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:#.4g}".rstrip(".")
