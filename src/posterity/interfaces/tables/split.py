"""Rows for training, for validation and for the test: at random, by a column, by groups, or by time.

random    stratified by class: each class is shared out in the same fractions, and every class with 3 rows or more is in
          every part where the parts have room
column    a column says train, validation (val, valid, dev) or test of each row
group     all rows of a group go to one part
time      the last rows are the test, those before them validation; rows of one time stay together
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.kinds import kind_of, numbers, texts
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import listed, option, plural, rows_where, similar

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["PARTS", "Split", "split"]

Rows = NDArray[np.int64]

PARTS = {
    "train": "train", "training": "train", "validation": "validation", "val": "validation", "valid": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows are for what.

    Args:
        train, validation, test: int64 row numbers, increasing (by time: in the order of time); no row is in two of them.
        said: what was decided, one sentence each.
        not_features: columns that are no features: the split's column, and that of the groups.
    """

    train: Rows
    validation: Rows
    test: Rows
    said: tuple[str, ...] = ()
    not_features: tuple[str, ...] = ()


def split(
    frame: DataFrame,
    target: Target | None = None,
    *,
    validation: float = 0.15,
    test: float = 0.2,
    column: str | None = None,
    group: str | None = None,
    time: str | None = None,
    seed: int = 0,
) -> Split:
    """Share out the rows of a table; the same for the same seed and rows.

    Args:
        target: of a classification, to stratify by (only where rows are drawn at random); its rows must be readable.
        validation, test: fractions of all rows, in [0, 1); 0 leaves the part empty.
        column, group, time: at most one of them; see the top of this file. Where `column` names no validation rows, they
            are taken from the training rows at random, as many as the fraction says of all rows.

    Raises:
        DataError: fractions out of range, too few rows (or groups, or times), an absent column, missing values in it,
            another word in the split's column, a part that would be empty.
    """
    if not 0 <= validation < 1 or not 0 <= test < 1 or validation + test >= 1:
        raise DataError(
            f"validation and test are fractions in [0, 1) that leave rows for training, got {validation:g} and {test:g}"
        )
    given = [name for name, value in (("column", column), ("group", group), ("time", time)) if value is not None]
    if len(given) > 1:
        raise DataError(f"rows are split by one of column, group and time, got {' and '.join(given)}: choose one")
    parts = 1 + (validation > 0) + (test > 0)
    if len(frame) < parts:
        raise DataError(f"{plural(len(frame), 'row')} cannot be split into {parts} parts: give more rows")
    rng = np.random.default_rng([seed, 0x5F1])
    if column is not None:
        return _by_column(frame, target, column, validation, test, rng)
    if group is not None:
        return _by_group(frame, group, validation, test, rng)
    if time is not None:
        return _by_time(frame, time, validation, test)
    rows = np.arange(len(frame))
    wanted = tuple(max(1, round(share * len(frame))) if share else 0 for share in (validation, test))
    found = _random(rows, _classes(frame, target, rows), (wanted[0], wanted[1]), rng)
    stratified = ", the classes in equal shares" if target is not None and target.task == "classification" else ""
    return _checked(*found, validation, test, f"at random (seed {seed}){stratified}")


def _checked(train: Rows, held: Rows, test: Rows, want_held: float, want_test: float, how: str, *skip: str) -> Split:
    for name, part, wanted in (("training", train, 1), ("validation", held, want_held), ("test", test, want_test)):
        if wanted and not len(part):
            raise DataError(
                f"the {name} part would be empty when rows are split {how}: give more rows or another fraction"
            )
    counts = f"{len(train):,} train, {len(held):,} validation, {len(test):,} test"
    return Split(train, held, test, (f"rows split {how}: {counts}",), skip)


def _column(frame: DataFrame, name: str, flag: str) -> Series:
    columns = list(map(str, frame.columns))
    if name not in columns:
        raise DataError(
            f"{option(flag, name)}: the table has no such column{similar(name, columns)}; it has {listed(columns, 20)}"
        )
    found = frame.iloc[:, columns.index(name)]
    if bool(found.isna().any()):
        raise DataError(
            f"column {name!r}, by which rows are split, is missing in {rows_where(found.isna())}: fill it in"
        )
    return found


# At random


def _classes(frame: DataFrame, target: Target | None, rows: Rows) -> Rows:
    """[rows] a number for each class; zeros where there are none."""
    if target is None or target.task != "classification":
        return np.zeros(len(rows), dtype=np.int64)
    return np.unique(target.read(frame)[rows], return_inverse=True)[1].astype(np.int64)


def _random(rows: Rows, classes: Rows, wanted: tuple[int, int], rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Train, validation and test: every part gets its share of each class."""
    counts = np.bincount(classes)
    in_test = _shares(counts, wanted[1])
    in_held = np.minimum(_shares(counts, wanted[0]), np.maximum(counts - in_test - 1, 0))
    parts: list[list[Rows]] = [[], [], []]
    for label in range(len(counts)):
        mine = rng.permutation(rows[classes == label])
        cuts = np.cumsum([in_test[label], in_held[label]])
        for part, piece in zip(parts, np.split(mine, cuts)):
            part.append(piece)
    test_rows, held_rows, train_rows = (np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    return train_rows, held_rows, test_rows


def _shares(counts: Rows, wanted: int) -> Rows:
    """`wanted` rows shared out in proportion to `counts` by largest remainders, 1 at least for each class of 3 or more."""
    exact = wanted * counts / max(1, counts.sum())
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - shares), kind="stable")
    shares[order[: wanted - int(shares.sum())]] += 1
    if wanted:
        shares[(counts >= 3) & (shares == 0)] = 1
    return np.minimum(shares, np.maximum(counts - 1, 0))  # a class of one row is for training


# By a column


def _by_column(
    frame: DataFrame, target: Target | None, name: str, validation: float, test: float, rng: np.random.Generator
) -> Split:
    codes, words = texts(_column(frame, name, "--split-column"))
    known = [PARTS.get(word.lower(), "") for word in words]
    if strange := [word for word, part in zip(words, known) if not part]:
        rows = rows_where(np.array([not part for part in known])[codes])
        raise DataError(
            f"the split's column {name!r} holds {listed(strange, 3)} in {rows}: "
            "its values are train, validation and test"
        )
    part = np.array(known)[codes]
    train, held, tested = (np.flatnonzero(part == name) for name in ("train", "validation", "test"))
    if test and not len(tested):
        raise DataError(f"the split's column {name!r} names no test rows: mark some as test, or ask for none (test 0)")
    drawn = ""
    if not len(held) and validation and len(train) > 1:
        wanted = min(max(1, round(validation * len(frame))), len(train) - 1)
        train, held, _ = _random(train, _classes(frame, target, train), (wanted, 0), rng)
        drawn = ", validation drawn from its training rows"
    return _checked(train, held, tested, validation, test, f"by column {name!r}{drawn}", name)


# By groups


def _by_group(frame: DataFrame, name: str, validation: float, test: float, rng: np.random.Generator) -> Split:
    codes, groups = texts(_column(frame, name, "--group"))
    parts = 1 + (validation > 0) + (test > 0)
    if len(groups) < parts:
        raise DataError(
            f"column {name!r} has {plural(len(groups), 'group')}, too few for {parts} parts: split without --group"
        )
    sizes = np.bincount(codes, minlength=len(groups))
    left = list(rng.permutation(len(groups)))
    taken: list[Any] = []
    for fraction, later in ((test, 1 + (validation > 0)), (validation, 1)):
        mine = _nearest(left, sizes, fraction * len(frame), later) if fraction else []
        left = [group for group in left if group not in set(mine)]
        taken.append(np.flatnonzero(np.isin(codes, mine)))
    rest = np.flatnonzero(np.isin(codes, left))
    how = f"by the {plural(len(groups), 'group')} of column {name!r}, which is no feature"
    return _checked(rest, taken[1], taken[0], validation, test, how, name)


def _nearest(left: list[Any], sizes: Rows, wanted: float, later: int) -> list[Any]:
    """Groups, taken in turn where that brings the rows closer to `wanted`; at least `later` groups remain."""
    mine: list[Any] = []
    total = 0
    for group in left:
        if len(left) - len(mine) > later and abs(total + sizes[group] - wanted) < abs(total - wanted):
            mine.append(group)
            total += int(sizes[group])
    return mine or [min(left, key=lambda group: sizes[group])]


# By time


def _by_time(frame: DataFrame, name: str, validation: float, test: float) -> Split:
    from posterity.interfaces.tables.dates import days_of

    column = _column(frame, name, "--time")
    kind = kind_of(name, column)
    if kind.name not in ("date", "number"):
        raise DataError(
            f"column {name!r}, by which rows are split, holds no dates or numbers: name another one with --time"
        )
    moments = days_of(column, kind.detail) if kind.name == "date" else numbers(name, column)
    if np.isnan(moments).any():
        raise DataError(
            f"column {name!r} holds values that are no dates in {rows_where(np.isnan(moments))}: correct them"
        )
    order = np.argsort(moments, kind="stable").astype(np.int64)
    ordered = moments[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1  # where a new time begins
    parts = 1 + (validation > 0) + (test > 0)
    if len(edges) + 1 < parts:
        raise DataError(
            f"column {name!r} has {plural(len(edges) + 1, 'time')}, too few for {parts} parts: split without --time"
        )
    last = _edge(edges, len(order) * (1 - test), 1 + (validation > 0)) if test else len(order)
    inner = edges[edges < last]
    first = _edge(inner, len(order) * (1 - test - validation), 1) if validation else last
    how = f"by time, column {name!r} (which stays a feature), the last rows for the test"
    return _checked(order[:first], order[first:last], order[last:], validation, test, how)


def _edge(edges: Rows, wanted: float, after: int) -> int:
    """The edge nearest to `wanted` with `after` times at least before it."""
    allowed = edges[after - 1 :]
    return int(allowed[np.argmin(np.abs(allowed - wanted))])
