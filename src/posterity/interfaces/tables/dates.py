"""Dates: one unambiguous way of writing them per column, as days since 1970-01-01 in UTC.

    year first    2011-03-04, 2011-03-04 17:00, 2011-03-04T17:00:00.5+01:00, 2011/03/04     layout "iso", "%Y/%m/%d", ...
    day first     04.03.2011, or 04/03/2011 where a day above 12 shows the order
    month first   03/04/2011 where a day above 12 shows the order

Times with a zone are turned into UTC; without one they count as UTC.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.words import option, pandas

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["SHARE", "days_of", "find_layout", "is_date_type"]

SHARE = 0.99  # of the filled rows must be dates for a column of text to be one

_DAY = 86400e6  # microseconds
_CLOCK = r"(?:(?P<mark>[T ])\d{1,2}:\d{2}(?P<seconds>:\d{2}(?P<fraction>\.\d+)?)?\s?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(r"\d{4}(?P<sign>[-/.])\d{1,2}(?P=sign)\d{1,2}" + _CLOCK)
_YEAR_LAST = re.compile(r"\d{1,2}(?P<sign>[-/.])\d{1,2}(?P=sign)\d{4}" + _CLOCK)


def is_date_type(column: Series) -> bool:
    """A column of dates already: datetime64 with or without a zone, periods, or date objects."""
    pd = pandas()
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or isinstance(column.dtype, pd.PeriodDtype):
        return True
    return pd.api.types.infer_dtype(column, skipna=True) in ("date", "datetime", "datetime64")


def find_layout(name: str, texts: Series) -> str | None:
    """The one layout in which (nearly) all of the distinct filled `texts` are dates; None where there is none.

    Raises:
        DataError: day and month cannot be told apart.
    """
    sample = texts.iloc[:100]
    for pattern in (_YEAR_FIRST, _YEAR_LAST):
        matches = [match for text in sample if (match := pattern.fullmatch(text))]
        if len(matches) < SHARE * len(sample) or not matches:
            continue
        sign, clock = matches[0]["sign"], _clock(matches[0])
        if pattern is _YEAR_FIRST:
            if sign == "-":
                return "iso" if _fits(texts, "iso") else None
            layout = f"%Y{sign}%m{sign}%d{clock}"
            return layout if _fits(texts, layout) else None
        day_first, month_first = f"%d{sign}%m{sign}%Y{clock}", f"%m{sign}%d{sign}%Y{clock}"
        fitting = [layout for layout in (day_first, month_first) if _fits(texts, layout)]
        if len(fitting) == 2 and sign != ".":
            one, other = (parse(texts, layout) for layout in fitting)
            if not np.array_equal(one, other, equal_nan=True):
                raise DataError(
                    f"column {name!r} holds dates such as {texts.iloc[0]} that may be day/month or month/day: write them "
                    f"year first (2011-03-04), or leave the column out with {option('--drop', name)}"
                )
        return fitting[0] if fitting else None
    return None


def days_of(column: Series, layout: str = "iso") -> NDArray[np.float64]:
    """[rows] float64 days since 1970-01-01, UTC; NaN where there is no date, or none written in `layout`."""
    pd = pandas()
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if is_date_type(column):
        return _days(pd.to_datetime(column, utc=True, errors="coerce"))
    codes, found = pd.factorize(column)  # dates come in many rows each, and parsing is slow
    texts = pd.Series(found, dtype=object).astype(str).str.strip()
    return np.append(parse(texts, layout), np.nan)[codes]


def parse(texts: Series, layout: str) -> NDArray[np.float64]:
    """Days of texts, NaN where one is no date in `layout`."""
    form = "ISO8601" if layout == "iso" else layout
    dates = pandas().to_datetime(texts, format=form, utc=True, errors="coerce")
    if layout == "iso":  # pandas also takes "2011" and "201103", which are numbers
        dates = dates.where(texts.str.contains("-", regex=False))
    return _days(dates)


def _fits(texts: Series, layout: str) -> bool:
    return bool(np.isfinite(parse(texts, layout)).mean() >= SHARE)


def _days(dates: Series) -> NDArray[np.float64]:
    stamps = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days = stamps.astype(np.int64) / _DAY
    days[np.isnat(stamps)] = np.nan
    return np.asarray(days)


def _clock(match: re.Match[str]) -> str:
    if not match["mark"]:
        return ""
    seconds = (":%S" if match["seconds"] else "") + (".%f" if match["fraction"] else "")
    return f"{match['mark']}%H:%M{seconds}{'%z' if match['zone'] else ''}"
