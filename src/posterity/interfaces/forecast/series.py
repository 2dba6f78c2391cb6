"""The series in a table: one or several, each in the order of time, on one grid, its gaps NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.forecast.grid import Grid, read_ticks
from posterity.interfaces.tables.words import listed, pandas, plural, rows_where, similar

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Series", "Table", "read_series"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One series, from its first observed time on.

    Args:
        name: what the column of series says; "" where there is one series only.
        first: the tick of its first observed time.
        y: [times] as observed, NaN in gaps, up to the last observed time.
        known: [times, or more, columns] of the known columns; what goes on beyond `y` is the future.
    """

    name: str
    first: int
    y: Numbers
    known: Numbers

    @property
    def called(self) -> str:
        """How a message calls it."""
        return f"series {self.name!r}" if self.name else "the series"


@dataclass(frozen=True)
class Table:
    """All series of a table on their grid, and what was found out on the way."""

    grid: Grid
    series: tuple[Series, ...]
    target: str
    known: tuple[str, ...]
    said: tuple[str, ...]


def read_series(
    frame: DataFrame, time: str, target: str, series: str | None = None, known: Sequence[str] = ()
) -> Table:
    """The series of a frame.

    Args:
        time: the column of dates or whole numbers; in order within each series.
        target: the column of numbers to forecast; empty in gaps, and in rows of the future that bring known columns.
        series: the column that says which series a row belongs to.
        known: columns of numbers that are known ahead (promotions, holidays, prices).

    Raises DataError: columns that are not there or named twice; times that are missing, unsorted, twice there or of mixed
    frequencies; a target that is no number, infinite, constant or never observed; gaps in known columns.
    """
    named = [time, target, *([series] if series else []), *known]
    there = list(map(str, frame.columns))
    for name in named:
        if name not in there:
            raise DataError(f"no column is called {name!r}{similar(name, there)}; there are {listed(there)}")
        if named.count(name) > 1:
            raise DataError(
                f"column {name!r} is named twice: time, target, series and known columns are different ones"
            )
    ticks, dated = read_ticks(frame[time])
    y = _numbers(frame, target)
    columns = np.stack([_numbers(frame, name) for name in known], 1) if known else np.zeros((len(frame), 0))
    if series is None:
        parts = {"": np.arange(len(frame))}
    else:
        if frame[series].isna().any():
            raise DataError(f"column {series!r} is missing in {rows_where(frame[series].isna())}")
        parts = {str(name): rows for name, rows in frame.groupby(series, sort=True, observed=True).indices.items()}
    for name, rows in parts.items():
        _check_order(ticks[rows], rows, name, frame[time])
    grid = Grid.find([ticks[rows] for rows in parts.values()], dated)
    found, gaps = [], 0
    for name, rows in parts.items():
        one = _on_grid(name, grid, grid.ticks(ticks[rows]), y[rows], columns[rows], known)
        gaps += int(np.isnan(one.y).sum())
        found.append(one)
    times = sum(len(one.y) for one in found)
    said = [
        f"{len(found):,} series of {plural(times, 'time')}{' together' * (len(found) > 1)}, {grid.said(grid.step)} apart"
    ]
    if gaps:
        said.append(f"{plural(gaps, 'time')} of {times:,} not observed: the last value stands there, flagged")
    return Table(grid, tuple(found), target, tuple(known), tuple(said))


def _numbers(frame: DataFrame, name: str) -> Numbers:
    pd = pandas()
    column = frame[name]
    numbers = pd.to_numeric(column, errors="coerce")
    bad = (numbers.isna() & column.notna()).to_numpy()
    if bad.any():
        raise DataError(f"column {name!r} holds {column[bad].iloc[0]!r}, which is no number: {rows_where(bad)}")
    values = numbers.to_numpy(np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise DataError(f"column {name!r} is infinite in {rows_where(np.isinf(values))}")
    return np.asarray(values)


def _check_order(ticks: NDArray[np.int64], rows: NDArray[np.int64], name: str, times: Any) -> None:
    where = f" of series {name!r}" if name else ""
    steps = np.diff(ticks)
    if (steps < 0).any():
        at = int((steps < 0).argmax())
        raise DataError(
            f"the times{where} are not in order: {times.iloc[rows[at + 1]]} (row {rows[at + 1]}, counted from 0) comes "
            f"after {times.iloc[rows[at]]}; sort the table by {times.name!r}"
            + ("" if name else ", or name the column of several series with --series")
        )
    if (steps == 0).any():
        at = int((steps == 0).argmax())
        raise DataError(
            f"the time {times.iloc[rows[at]]}{where} is there twice (rows {rows[at]} and {rows[at + 1]}, counted from 0): "
            + ("keep one of them" if name else "keep one of them, or name the column of several series with --series")
        )


def _on_grid(
    name: str, grid: Grid, ticks: NDArray[np.int64], y: Numbers, known: Numbers, names: Sequence[str]
) -> Series:
    called = f"series {name!r}" if name else "the series"
    observed = np.flatnonzero(np.isfinite(y))
    if not len(observed):
        raise DataError(f"{called} has no observed target: there is nothing to forecast from")
    if y[observed].min() == y[observed].max():
        raise DataError(f"the target of {called} is constant ({y[observed[0]]:g}): there is nothing to forecast")
    for column, values in zip(names, known.T):
        if np.isnan(values).any():
            raise DataError(
                f"the known column {column!r} of {called} has {int(np.isnan(values).sum())} missing values: fill them in, "
                "since it is said to be known"
            )
    first, last = observed[0], observed[-1]
    place = (ticks - ticks[first]) // grid.step
    on_grid = np.full(place[last] + 1, np.nan)
    kept = (place >= 0) & (place <= place[last])
    on_grid[place[kept]] = y[kept]
    source = np.full(place[-1] + 1, -1)
    source[place[place >= 0]] = np.flatnonzero(place >= 0)
    whole = known[np.maximum.accumulate(source)]
    # beyond the last observed time only what is there is known: a gap there is not filled in
    ahead = source[place[last] + 1 :]
    upto = place[last] + 1 + (int((ahead < 0).argmax()) if (ahead < 0).any() else len(ahead))
    return Series(name, int(ticks[first]), on_grid, whole[:upto])
