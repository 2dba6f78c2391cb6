"""Rows of several methods, measured on the same data, and the differences between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation import differences as paired
from posterity.evaluation.details import Detail
from posterity.evaluation.metric import Metric, mean_interval
from posterity.evaluation.rows import Rows

__all__ = ["Measured", "differences", "pooled"]

_TOP = ("confidence", "correct")
# name of a metric -> the statistic over the last axis, and the columns it is computed of
STATISTICS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...], int]] = {
    "nll": (paired.mean, ("log_prob",), -1),
    "accuracy": (paired.mean, ("correct",), 1),
    "brier": (paired.mean, ("brier",), 1),
    "ece": (paired.ece, _TOP, 1),
    "aurc": (paired.aurc, _TOP, 1),
    "rmse": (paired.root_mean, ("squared_error",), 1),
    "crps": (paired.mean, ("crps",), 1),
    "interval_score": (paired.mean, ("interval_score",), 1),
    "interval_width": (paired.mean, ("width",), 1),
}


@dataclass(frozen=True)
class Measured:
    """The rows of one way to predict with one fitted method, before they become metrics.

    Args:
        method, via: whose rows these are.
        classes: whether classes were predicted, not numbers.
        rows, foreign, held_out: fed with the test rows, the foreign sets, and the rows that pick a threshold.
        labels: of the classes, where a row has one.
    """

    method: str
    via: str
    classes: bool
    rows: Rows
    foreign: dict[str, Rows]
    held_out: Rows | None
    labels: tuple[Any, ...]


def differences(found: Mapping[tuple[str, str], Sequence[Measured]], baseline: tuple[str, str]) -> Detail:
    """A line per metric and (method, via) other than the baseline: its metric minus the baseline's.

    Args:
        found: (method, via) -> its seeds.
        baseline: one of these keys.

    Raises DataError where two have other rows.
    """
    names = ("metric", "method", "via", "baseline", "baseline_via", *Metric._fields)
    table: Detail = {name: [] for name in names}
    reference = found[baseline]
    for (method, via), seeds in found.items():
        if (method, via) == baseline:
            continue
        _check_same_rows([*reference, *seeds])
        for name, (statistic, columns, sign) in STATISTICS.items():
            if any(column not in each.rows for each in (*seeds, *reference) for column in columns):
                continue
            first, second = (
                [tuple(-each.rows[c] if sign < 0 else each.rows[c] for c in columns) for each in side]
                for side in (seeds, reference)
            )
            metric = paired.paired_difference(statistic, first, second)
            for column, value in zip(names, (name, method, via, *baseline, *metric)):
                table[column].append(value)
    return table if table["metric"] else {}


def pooled(table: Detail) -> Detail:
    """Lines of one pair and metric from several comparisons, other rows each, as one: their mean, and Student's interval.

    Lines that stand alone stay as they are; n is that of the first.
    """
    keys = ("metric", "method", "via", "baseline", "baseline_via")
    together: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*(table[name] for name in keys))) if table else ():
        together.setdefault(key, []).append(index)
    found: Detail = {name: [] for name in table}
    for places in together.values():
        line = {name: column[places[0]] for name, column in table.items()}
        values = torch.tensor(
            [math.nan if (v := table["value"][i]) is None else v for i in places], dtype=torch.float64
        )
        if len(places) > 1 and bool(values.isfinite().all()):
            over = mean_interval(values)
            line |= {"value": over.value, "low": over.low, "high": over.high}
        for name, value in line.items():
            found[name].append(value)
    return found


def _check_same_rows(measured: Sequence[Measured]) -> None:
    first = measured[0]
    for other in measured[1:]:
        same = len(first.rows) == len(other.rows) and bool((first.rows["target"] == other.rows["target"]).all())
        if not same:
            raise DataError(
                f"{first.method} and {other.method} were evaluated on other rows: differences need the same"
            )
