"""The result that holds the metrics of several methods: JSON, a frame, a table for the terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from posterity.errors import CompatibilityError, StorageError
from posterity.evaluation.metric import Metric
from posterity.posterior.files import atomic_json, read_json, strict_json

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

__all__ = ["Evaluation", "Row"]


class Row(TypedDict):
    """The metrics of one way to predict with one method."""

    method: str
    via: str
    metrics: dict[str, Metric]


# Columns of the table in this order, others behind; the sign says which way is better, 0 that neither is.
_ORDER = {"accuracy": 1, "nll": -1, "brier": -1, "ece": -1, "aurc": -1, "ood_auroc": 1, "ood_auroc_epistemic": 1}
_ORDER |= {"rmse": -1, "crps": -1, "interval_coverage": 0, "interval_width": 0}


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one or several methods.

    Args:
        rows: one {"method", "via", "metrics": {name: Metric}} per method and way of predicting.
        settings: what all rows share (data, levels, bins); must be JSON.

    Evaluations add up: `first + second` has the rows of both.
    """

    rows: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: Evaluation) -> Evaluation:
        """The rows of both. Raises CompatibilityError if a setting differs: such rows do not belong in one table."""
        if differ := [
            key for key in self.settings if self.settings[key] != other.settings.get(key, self.settings[key])
        ]:
            raise CompatibilityError(f"evaluations with different settings do not add up: {', '.join(differ)}")
        return Evaluation(self.rows + other.rows, {**self.settings, **other.settings})

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """{"rows": [{"method", "via", "metrics": {name: {"value", "low", "high", "n"}}}]}, "settings" if there are any.

        With `path` the same is written there, whole or not at all. Raises StorageError if it cannot be.
        """
        rows = [{**row, "metrics": {name: m.to_json() for name, m in row["metrics"].items()}} for row in self.rows]
        record: dict[str, Any] = strict_json({"rows": rows, **({"settings": self.settings} if self.settings else {})})
        if path is not None:
            atomic_json(path, record)
        return record

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Evaluation:
        """The inverse of `to_json`, from its file or its value. Raises StorageError if it is not one."""
        where = "this record" if isinstance(source, Mapping) else os.fspath(source)
        record = source if isinstance(source, Mapping) else read_json(source)
        try:
            rows: list[Row] = [
                {
                    "method": row["method"],
                    "via": row["via"],
                    "metrics": {name: Metric.from_json(metric) for name, metric in row["metrics"].items()},
                }
                for row in record["rows"]
            ]
            return cls(rows, dict(record.get("settings", {})))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{where} is not an evaluation: {error!r}") from error

    def to_frame(self) -> pandas.DataFrame:
        """One line per metric: method, via, metric, value, low, high, n, reason.

        `frame.pivot(index=["method", "via"], columns="metric", values="value")` is the wide form.
        Raises ImportError without pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
        lines = [
            {"method": row["method"], "via": row["via"], "metric": name, **metric._asdict()}
            for row in self.rows
            for name, metric in row["metrics"].items()
        ]
        return pandas.DataFrame(lines, columns=["method", "via", "metric", *Metric._fields])

    def table(self, metrics: Sequence[str] | None = None) -> Table:
        """A table for the terminal: the value, half the width of its 95 % interval under it, the best of a column bold.

        Args:
            metrics: which, in this order; all of them unless given. Undefined values are a dash, their reasons under
                the table.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        names = list(metrics or dict.fromkeys(name for row in self.rows for name in row["metrics"]))
        if metrics is None:
            names = [name for name in _ORDER if name in names] + [name for name in names if name not in _ORDER]
        best = {name: self._best(name) for name in names}
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("method", no_wrap=True)
        table.add_column("via", no_wrap=True)
        for name in names:
            words = name.split("_")  # one under the other; a value has at most seven characters
            table.add_column("\n".join(words), justify="right", min_width=max(7, *map(len, words)))
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            found = row["metrics"]
            cells = [_cell(found[name], best[name]) if name in found else "" for name in names]
            table.add_row(Text(row["method"]), Text(row["via"]), *map(Text.from_markup, cells))
            for name in names:
                if name in found and found[name].reason:
                    reasons.setdefault(f"{name}: {found[name].reason}", []).append(f"{row['method']} {row['via']}")
        if reasons:
            table.caption = Text("\n".join(f"{reason} ({', '.join(who)})" for reason, who in reasons.items()))
        return table

    def _best(self, name: str) -> float | None:
        sign = _ORDER.get(name, 1 if name.startswith("ood_auroc") else 0)
        values = [row["metrics"][name].value for row in self.rows if name in row["metrics"]]
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
