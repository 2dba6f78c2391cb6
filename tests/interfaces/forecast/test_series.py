"""Times onto a grid, and every table that cannot be: each error says what is wrong and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from posterity.errors import DataError
from posterity.interfaces.forecast.grid import Grid
from posterity.interfaces.forecast.series import read_series

pandas = pytest.importorskip("pandas")


def frame(start: str = "2024-01-30", periods: int = 29, freq: str = "D", **columns: Any) -> Any:
    times = pandas.date_range(start, periods=periods, freq=freq)
    return pandas.DataFrame({"t": times, "y": np.arange(periods) % 7.0, **columns})


@pytest.mark.parametrize(
    ("freq", "unit", "said", "season"),
    [
        ("h", "time", "1 hour", 24), ("15min", "time", "15 minutes", 96), ("D", "time", "1 day", 7),
        ("7D", "time", "7 days", 52), ("MS", "month", "1 month", 12), ("ME", "month", "1 month", 12),
        ("QS", "month", "3 months", 4), ("YS", "month", "12 months", 1), ("5h", "time", "5 hours", 1),
    ],
)  # fmt: skip
def test_the_step_is_found_and_goes_on(freq: str, unit: str, said: str, season: int) -> None:
    whole = frame(freq=freq)
    table = read_series(whole.drop(index=[4, 11]), "t", "y")
    grid, one = table.grid, table.series[0]
    assert (grid.unit, grid.said(grid.step), grid.season) == (unit, said, season)
    assert np.flatnonzero(np.isnan(one.y)).tolist() == [4, 11]
    stamps = grid.stamps(one.first + grid.step * np.arange(29))
    assert (stamps == whole["t"].to_numpy("datetime64[ms]")).all()
    if (24 % grid.season, unit) == (0, "time") and freq == "h":
        assert grid.texts(one.first + grid.step * np.arange(1)) == ["2024-01-30 00:00:00"]


def test_whole_numbers_are_times_too() -> None:
    table = read_series(pandas.DataFrame({"t": [3, 5, 9, 11], "y": [1.0, 2, 3, 4]}), "t", "y")
    assert (table.grid.unit, table.grid.step, table.grid.season) == ("number", 2, 1)
    assert np.isnan(table.series[0].y).tolist() == [False, False, True, False, False]
    assert table.grid.calendar(np.arange(3), True)[0] == []


def test_the_calendar_is_the_clock_of_the_table() -> None:
    ticks = pandas.Series(pandas.to_datetime(["2024-02-01 06:00", "2024-02-05 18:00"])).to_numpy("datetime64[ms]")
    names, values = Grid("time", 3_600_000).calendar(ticks.astype(np.int64), years=True)
    assert names == [f"{wave} of the {turn}" for turn in ("hour", "week-day", "year") for wave in ("sine", "cosine")]
    expected = [6 / 24, 18 / 24], [3 / 7, 0 / 7], [31.25 / 365.25, 35.75 / 365.25]  # a Thursday and a Monday
    for column, turns in zip((0, 2, 4), expected):
        assert values[:, column] == pytest.approx(np.sin(2 * np.pi * np.array(turns)), abs=1e-12)
        assert values[:, column + 1] == pytest.approx(np.cos(2 * np.pi * np.array(turns)), abs=1e-12)


def test_rows_without_a_target_at_the_end_are_the_future() -> None:
    table = frame(promo=np.arange(29.0))
    table.loc[25:, "y"] = np.nan
    table.loc[0, "y"] = np.nan
    one = read_series(table, "t", "y", known=["promo"]).series[0]
    assert len(one.y) == 24
    assert one.known[:, 0].tolist() == list(range(1, 29))
    short = read_series(table.drop(index=27), "t", "y", known=["promo"]).series[0]
    assert short.known[:, 0].tolist() == list(range(1, 27))  # what comes after a gap ahead is not known


def test_several_series_may_be_interleaved() -> None:
    both = pandas.concat([frame(shop="a"), frame(start="2024-02-03", shop="b")]).sort_values("t")
    table = read_series(both, "t", "y", "shop")
    assert [one.name for one in table.series] == ["a", "b"]
    assert [len(one.y) for one in table.series] == [29, 29]
    assert table.said[0] == "2 series of 58 times together, 1 day apart"
    with pytest.raises(DataError, match="there twice.*--series"):
        read_series(both, "t", "y")


def changed(**columns: Any) -> Any:
    return frame().assign(**columns)


def mixed() -> Any:
    daily = frame()
    weekly = frame(start="2024-03-04", periods=29, freq="7D")
    return pandas.concat([daily, weekly], ignore_index=True)


def shifted() -> Any:
    table = frame()
    table.loc[20:, "t"] += pandas.Timedelta("5h")
    return table


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame(), {"target": "Y"}, "no column is called 'Y'; did you mean 'y'"),
        (frame(), {"known": ["y"]}, "column 'y' is named twice"),
        (frame()[::-1].reset_index(drop=True), {}, r"not in order: .* \(row 1, counted from 0\)"),
        (pandas.concat([frame(), frame().tail(1)], ignore_index=True), {}, r"is there twice \(rows 28 and 29"),
        (mixed(), {}, "mixed frequencies: at steps of 1 day only 58 of"),
        (shifted(), {}, "mixed frequencies: most are 1 day apart, others 29 hours"),
        (changed(t=["x"] * 29), {}, "holds no dates .such as 'x'."),
        (changed(t=[None, *frame()["t"][1:]]), {}, "1 missing times"),
        (changed(t=np.arange(29) + 0.5), {}, "not whole"),
        (changed(y=3.0), {}, "is constant .3."),
        (changed(y=np.nan), {}, "no observed target"),
        (changed(y=["a"] + ["1"] * 28), {}, "'a', which is no number: 1 row .row 0"),
        (changed(y=[np.inf, *range(28)]), {}, "infinite in 1 row"),
        (changed(promo=[np.nan] + [1.0] * 28), {"known": ["promo"]}, "known column 'promo' .* has 1 missing"),
        (changed(shop=[None] + ["a"] * 28), {"series": "shop"}, "'shop' is missing in 1 row"),
        (frame(periods=1), {}, "one time has no step"),
    ],
)  # fmt: skip
def test_what_cannot_be_forecast_says_why(table: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_series(table, **{"time": "t", "target": "y", **options})
