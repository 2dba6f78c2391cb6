"""Features that know the target: what a single column, or the sum of two, gives away.

equal      x = y in every row                                                 (regression)
sum        x_1 + x_2 = y or x_1 - x_2 = y in every row                        (regression)
order      |Spearman rank correlation of x and y| > 0.999                     (regression)
bins       1 - (variance of y within bins of x) / (variance of y) > 0.999     (regression; bins of equal mass, or values)
classes    sorted by x, the classes change at most (classes - 1) + n / 1000 times;
           or each value of x has one class in 99.9 % of the rows, with 10 rows or more per value on average
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST", "ROWS", "Leak", "class_leak", "number_leak", "pair_leaks", "spearman"]

FEWEST = 50  # rows below which chance may do the same
ROWS = 100_000  # drawn from longer tables

_PERFECT = 0.999
_PER_BIN = 20
_PER_VALUE = 10
_MOST_PAIRED = 60  # columns whose pairs are looked at

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


class Leak(NamedTuple):
    """A way in which a feature gives the target away, as a phrase, and the number behind it."""

    how: str
    value: float


def spearman(x: Floats, y: Floats) -> float:
    """The correlation of the ranks, ties at their mean rank; NaN where all are tied."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def number_leak(x: Floats, y: Floats, categorical: bool) -> Leak | None:
    """How x gives the number y away; [rows] each, without missing values. Codes where `categorical`."""
    if len(y) < FEWEST or (y == y[0]).all():
        return None
    if not categorical:
        if np.array_equal(x, y):
            return Leak("equals the target in every row", 1.0)
        if abs(rho := spearman(x, y)) > _PERFECT:
            return Leak(f"orders the rows as the target does (rank correlation {rho:.4f})", rho)
    explained = _explained(x, y / np.abs(y).max(), categorical)  # scaled: squares do not overflow
    if explained > _PERFECT:
        return Leak(f"explains {100 * explained:.2f} % of the target's variance alone", explained)
    return None


def class_leak(x: Floats, labels: Codes, categorical: bool) -> Leak | None:
    """How x gives the class away; [rows] each, without missing values. Codes where `categorical`."""
    rows, classes = len(labels), len(np.unique(labels))
    if rows < FEWEST or classes < 2:
        return None
    rarest = float(rows - np.bincount(labels).max()) / rows
    values, codes = np.unique(x, return_inverse=True)
    if len(values) * _PER_VALUE <= rows:
        table = np.zeros((len(values), int(labels.max()) + 1), dtype=np.int64)
        np.add.at(table, (codes, labels), 1)
        right = float(table.max(1).sum()) / rows
        if right >= _PERFECT and 1 - right < rarest / 10:
            return Leak(f"says the class in {100 * right:.2f} % of the rows, alone", right)
        return None
    if categorical:
        return None
    changes = int((np.diff(labels[np.argsort(x, kind="stable")]) != 0).sum())
    # By chance alone neighbours differ in rows * (1 - sum of p^2) places, at least rows * rarest of them.
    if changes <= classes - 1 + rows / 1000 and changes < rows * rarest / 10:
        return Leak(f"says the class alone: sorted by it, the class changes {changes} times in {rows:,} rows", 1.0)
    return None


def pair_leaks(columns: Mapping[str, Floats], y: Floats) -> list[tuple[str, str, str]]:
    """Pairs of columns, and the sign between them, whose sum or difference is y in every row."""
    names = list(columns)[:_MOST_PAIRED]
    if len(y) < FEWEST or len(names) < 2 or (y == y[0]).all():
        return []
    size = max(float(np.abs(column).max()) for column in (y, *columns.values())) or 1.0
    columns, y = {name: columns[name] / size for name in names}, y / size
    probe = np.unique(np.linspace(0, len(y) - 1, 97).astype(int))
    head = np.stack([columns[name][probe] for name in names])
    found = []
    for index, name in enumerate(names):
        for sign, combined in (("+", head[index] + head), ("-", head[index] - head)):
            for other in np.flatnonzero(_close(combined, y[probe]).all(1)):
                if other == index or (sign == "+" and other < index):
                    continue
                a, b = columns[name], columns[names[other]]
                # a column of zeros adds nothing, and the rest is then equal to the target, which is said elsewhere
                if a.any() and b.any() and _close(a + b if sign == "+" else a - b, y).all():
                    found.append((name, sign, names[other]))
    return found


def _close(a: Floats, b: Floats) -> NDArray[np.bool_]:
    return np.isclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max()))


def _ranks(x: Floats) -> Floats:
    _, codes, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[codes]


def _explained(x: Floats, y: Floats, categorical: bool) -> float:
    """1 - (mean variance of y within bins, n - 1 each) / (variance of y); -inf where there are too few rows for bins."""
    values, codes = np.unique(x, return_inverse=True)
    if len(values) * _PER_VALUE > len(y):
        if categorical or len(y) < 2 * 32 * _PER_BIN / 2:
            return -np.inf
        order = np.argsort(x, kind="stable")
        codes = np.empty(len(y), dtype=np.int64)
        codes[order] = np.arange(len(y)) // _PER_BIN
    y = y - y.mean()
    counts = np.bincount(codes)
    means = np.bincount(codes, y) / np.maximum(counts, 1)
    within = float(((y - means[codes]) ** 2).sum()) / max(1, len(y) - len(counts))
    return 1 - within / float(y.var())
