"""The same metrics for parts of the rows: a pretty average can hide a bad group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from posterity.errors import ShapeError
from posterity.evaluation.calibration import confidence_gap, reliability
from posterity.evaluation.details import Detail
from posterity.evaluation.intervals import share
from posterity.evaluation.metric import Metric, mean_interval
from posterity.evaluation.proper import accuracy, crps, nll, root
from posterity.evaluation.rows import Rows

__all__ = ["as_groups", "group_reliability", "group_table", "group_values"]

_LARGEST = 6  # groups of one column whose reliability is kept


def as_groups(groups: Any) -> dict[str, Any]:
    """Groups as name -> [rows] values: a mapping or a frame as it is, a Series by its name, an array as "group"."""
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        return dict(groups)
    if hasattr(groups, "columns"):
        return {str(name): groups[name] for name in groups.columns}
    return {str(getattr(groups, "name", None) or "group"): groups}


def group_table(rows: Rows, groups: Mapping[str, Any], labels: Sequence[Any] = ()) -> Detail:
    """The detail "groups": by, group, metric, value, low, high, n, reason, a line per metric of each group.

    Args:
        rows: fed with labelled predictions.
        groups: name -> one value per row of the data, in its order (rows that do not count included).
        labels: of the classes: then the true class is one more grouping, "class".

    Classification: accuracy, nll, confidence_gap; regression: rmse, nll, crps, interval_coverage, interval_width (level
    0.9); n is the rows of the group. Raises ShapeError where there is not one value per row.
    """
    table: Detail = {name: [] for name in ("by", "group", "metric", *Metric._fields)}
    parts = {name: group_values(name, values, rows) for name, values in groups.items()}
    if len(labels) and "target" in rows and "correct" in rows:
        parts["class"] = np.array([str(label) for label in labels], dtype=object)[rows["target"].numpy()]
    for by, values in parts.items():
        found, members = np.unique(values, return_inverse=True)
        for code, group in enumerate(found.tolist()):
            chosen = rows.select(torch.from_numpy(np.flatnonzero(members == code)))
            for name, metric in _metrics(chosen).items():
                for column, value in zip(table, (by, str(group), name, *metric)):
                    table[column].append(value)
    return table


def group_reliability(rows: Rows, groups: Mapping[str, Any], bins: int = 10) -> Detail:
    """The detail "group_reliability": by, group, and the columns of `reliability` in each of the largest groups.

    Args: as of `group_table`. {} without groups, or where the predictions are no classes.
    """
    table: Detail = {}
    if "correct" not in rows:
        return table
    for by, values in groups.items():
        found, members, counts = np.unique(group_values(by, values, rows), return_inverse=True, return_counts=True)
        for code in np.argsort(-counts, kind="stable")[:_LARGEST].tolist():
            chosen = rows.select(torch.from_numpy(np.flatnonzero(members == code)))
            columns: Detail = reliability(chosen["confidence"], chosen["correct"], bins).columns()
            columns = {"by": [by] * bins, "group": [str(found[code])] * bins, **columns}
            for name, column in columns.items():
                table.setdefault(name, []).extend(column)
    return table


def _metrics(rows: Rows) -> dict[str, Metric]:
    if "correct" in rows:
        return {
            "accuracy": accuracy(rows["correct"]),
            "nll": nll(rows["log_prob"]),
            "confidence_gap": confidence_gap(rows["confidence"], rows["correct"]),
        }
    if "squared_error" not in rows:
        return {"nll": nll(rows["log_prob"])}
    metrics = {"rmse": root(mean_interval(rows["squared_error"], lowest=0.0))}
    if "log_prob" in rows:
        metrics |= {"nll": nll(rows["log_prob"]), "crps": crps(rows["crps"])}
    if "covered" in rows:
        metrics |= {
            "interval_coverage": share(rows["covered"]),
            "interval_width": mean_interval(rows["width"], lowest=0.0),
        }
    return metrics


def _plain(value: Any) -> Any:
    """A whole number as one: tables with gaps hold 3 as 3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def group_values(name: str, values: Any, rows: Rows) -> np.ndarray[Any, Any]:
    column = np.asarray(values)
    if column.shape != (rows.seen,):
        raise ShapeError(f"groups {name!r} {list(column.shape)} must have one value for each of the {rows.seen} rows")
    plain = ["missing" if value is None or value != value else _plain(value) for value in column.tolist()]
    if len(set(map(type, plain))) > 1:  # values of several types have no order
        plain = [str(value) for value in plain]
    return np.array(plain)[rows["row"].numpy()]
