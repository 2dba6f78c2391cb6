"""Times as whole numbers on a regular grid: milliseconds apart, months apart, or numbers apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.dates import days_of, find_layout, is_date_type
from posterity.interfaces.tables.words import pandas, rows_where

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["Grid", "read_ticks"]

Ticks = NDArray[np.int64]

_HOUR, _DAY = 3_600_000, 86_400_000  # milliseconds
_EMPTY = 0.5  # share of the grid without a row, beyond which the step was misread


def read_ticks(column: Series) -> tuple[Ticks, bool]:
    """[rows] milliseconds since 1970-01-01 UTC and True, or whole numbers as they are and False.

    Raises DataError: missing, neither dates nor whole numbers, or dates whose day and month cannot be told apart.
    """
    pd, name = pandas(), str(column.name)
    if missing := int(column.isna().sum()):
        raise DataError(f"column {name!r} has {missing:,} missing times: {rows_where(column.isna())}")
    if is_date_type(column):
        days = days_of(column)
    elif pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        values = column.to_numpy(np.float64)
        if not bool(np.isfinite(values).all() and (values == np.round(values)).all()):
            raise DataError(f"column {name!r} holds numbers that are not whole: times are dates or whole numbers")
        return values.astype(np.int64), False
    else:
        texts = column.astype(str).str.strip()
        layout = find_layout(name, texts.drop_duplicates())
        if layout is None:
            raise DataError(
                f"column {name!r} holds no dates (such as {texts.iloc[0]!r}): write them as 2011-03-04 17:00"
            )
        days = days_of(column, layout)
    if not np.isfinite(days).all():
        raise DataError(f"column {name!r} holds what is no date in {rows_where(~np.isfinite(days))}")
    return np.rint(days * _DAY).astype(np.int64), True


@dataclass(frozen=True)
class Grid:
    """A step between times.

    Args:
        unit: "time" (ticks are milliseconds), "month" (ticks are months since 1970-01) or "number".
        step: ticks between two times of the grid.
        day: of months, the day of all times; 0 for the last of each month.
        clock: of months, milliseconds after midnight.
    """

    unit: str
    step: int
    day: int = 1
    clock: int = 0

    @classmethod
    def find(cls, several: Sequence[Ticks], dated: bool) -> Grid:
        """The grid of series whose times are in order: months where all have the same day, else the commonest step.

        Raises DataError: less than two times, times off the grid of that step, most of it empty.
        """
        found = _months(several) if dated else None
        ticks = [found.ticks(each) for each in several] if found else list(several)
        steps = np.concatenate([np.diff(each) for each in ticks])
        if not len(steps):
            raise DataError("a series of one time has no step: give at least a few dozen")
        values, counts = np.unique(steps, return_counts=True)
        step = int(values[counts.argmax()])
        unit = found.unit if found else ("time" if dated else "number")
        grid = cls(unit, step, *((found.day, found.clock) if found else ()))
        off = values[values % step != 0]
        if len(off):
            raise DataError(
                f"the times have mixed frequencies: most are {grid.said(step)} apart, others {grid.said(int(off[0]))}; "
                "bring them to one step (pandas: resample)"
            )
        whole = sum(int(each[-1] - each[0]) // step + 1 for each in ticks)
        there = sum(map(len, ticks))
        if there < (1 - _EMPTY) * whole:
            raise DataError(
                f"the times have mixed frequencies: at steps of {grid.said(step)} only {there:,} of {whole:,} times are "
                "there; bring them to one step (pandas: resample)"
            )
        return grid

    def ticks(self, milliseconds: Ticks) -> Ticks:
        """What `read_ticks` gave, in ticks of this grid."""
        if self.unit != "month":
            return milliseconds
        stamps = milliseconds.astype("datetime64[ms]")
        return stamps.astype("datetime64[M]").astype(np.int64)

    def stamps(self, ticks: Ticks) -> NDArray[Any]:
        """Ticks as datetime64[ms], or as they are where times are numbers."""
        if self.unit == "number":
            return ticks
        if self.unit == "time":
            return ticks.astype("datetime64[ms]")
        months = ticks.astype("datetime64[M]")
        first = months.astype("datetime64[D]").astype("datetime64[ms]")
        if self.day:
            return first + np.timedelta64((self.day - 1) * _DAY + self.clock, "ms")
        after = (months + 1).astype("datetime64[D]").astype("datetime64[ms]")
        return after + np.timedelta64(self.clock - _DAY, "ms")

    def texts(self, ticks: Ticks) -> list[Any]:
        """Times as a person writes them; numbers as they are."""
        if self.unit == "number":
            return ticks.tolist()
        stamps = self.stamps(ticks)
        days = bool((stamps == stamps.astype("datetime64[D]")).all()) and self.step % _DAY == 0
        unit = "D" if days or (self.unit == "month" and not self.clock) else "s"
        return [str(text).replace("T", " ") for text in stamps.astype(f"datetime64[{unit}]")]

    def said(self, step: int) -> str:
        """A number of ticks in words.

        >>> Grid("time", 3_600_000).said(7_200_000), Grid("month", 1).said(3), Grid("number", 1).said(1)
        ('2 hours', '3 months', '1')
        """
        if self.unit == "number":
            return f"{step:,}"
        if self.unit == "month":
            count, noun = float(step), "month"
        elif step % _DAY == 0:
            count, noun = step / _DAY, "day"
        elif step % _HOUR == 0:
            count, noun = step / _HOUR, "hour"
        else:
            count, noun = step / 60_000, "minute"
        return f"{count:g} {noun}{'s' * (count != 1)}"

    @property
    def season(self) -> int:
        """Steps in a day, week or year, whichever comes next above the step; 1 where none is a whole number of steps."""
        if self.unit == "number":
            return 1
        if self.unit == "month":
            return 12 // self.step if 12 % self.step == 0 else 1
        if self.step == 7 * _DAY:
            return 52
        for period in (_DAY, 7 * _DAY):
            if self.step < period and period % self.step == 0:
                return period // self.step
        return 1

    def calendar(self, ticks: Ticks, years: bool) -> tuple[list[str], NDArray[np.float64]]:
        """Names and values [times, columns]: sine and cosine of the hour, the week-day, and (`years`) the time of the year.

        Only what varies from time to time.
        """
        if self.unit == "number":
            return [], np.zeros((len(ticks), 0))
        stamps = self.stamps(ticks)
        days = stamps.astype(np.int64) / _DAY
        turns: dict[str, NDArray[np.float64]] = {}
        if self.unit == "time" and self.step % _DAY:
            turns["hour"] = days % 1
        if self.unit == "time" and self.step % (7 * _DAY):
            turns["week-day"] = np.floor(days + 3) % 7 / 7  # 1970-01-01 was a Thursday
        if years:
            begin = stamps.astype("datetime64[Y]").astype("datetime64[ms]").astype(np.int64) / _DAY
            turns["year"] = (days - begin) / 365.25
        names = [f"{wave} of the {name}" for name in turns for wave in ("sine", "cosine")]
        waves = [wave(2 * np.pi * turn) for turn in turns.values() for wave in (np.sin, np.cos)]
        return names, np.stack(waves, 1) if waves else np.zeros((len(ticks), 0))

    def lasts_years(self, times: int) -> bool:
        """Whether so many times are two years at least: the time of the year is then not only another clock."""
        return self.unit != "number" and times * self.step >= (24 if self.unit == "month" else 730 * _DAY)


def _months(several: Sequence[Ticks]) -> Grid | None:
    """A grid of months, where all times are at least 28 days apart and on one day of the month, or on its last."""
    if not all((np.diff(each) >= 28 * _DAY).all() for each in several) or not any(len(each) > 1 for each in several):
        return None
    stamps = np.concatenate(several).astype("datetime64[ms]")
    days = stamps.astype("datetime64[D]")
    clock = np.unique((stamps - days).astype(np.int64))
    day = np.unique((days - stamps.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) + 1)
    if len(clock) != 1:
        return None
    if bool(((days + 1).astype("datetime64[M]") != days.astype("datetime64[M]")).all()):
        return Grid("month", 1, 0, int(clock[0]))
    return Grid("month", 1, int(day[0]), int(clock[0])) if len(day) == 1 else None
