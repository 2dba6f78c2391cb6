"""A table of any mixture becomes the same finite numbers in any order of rows and columns, before and after JSON."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from posterity.errors import DataError
from posterity.interfaces.tables.columns import Columns

ROWS = 12


def mixed() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "size": [1.5, 2.0, np.nan, 4.0, 5.5, 6.0, 7.0, 8.0, 9.5, 10.0, 11.0, 12.0],
            "count": pd.array([1, None, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], dtype="Int64"),
            "on": [True, False] * 6,
            "paid": ["yes", "No", None] * 4,
            "season": ["w", "s"] * 5 + ["x", None],
            "code": pd.Categorical([3, 1, 3] * 4),
            "when": [f"2011-{month:02d}-{2 * month:02d}" for month in range(1, 13)],
            "zone": pd.date_range("2020-01-01", periods=ROWS, freq="7h", tz="Europe/Berlin"),
            "huge": [1e300, -1e300] * 6,
        }
    )


def one(values: object, train: object = None) -> torch.Tensor:
    """The inputs that a single column becomes."""
    frame = pd.DataFrame({"a": values})
    return Columns.learn(pd.DataFrame({"a": values if train is None else train})).encode(frame)


def test_names_say_what_each_input_is() -> None:
    columns = Columns.learn(mixed())
    assert columns.names == (
        "size", "size missing", "count", "count missing", "on", "paid", "paid missing",
        "season=s", "season=w", "season other", "season missing", "code=1", "code=3",
        "when: days", "when: year sin", "when: year cos", "when: week-day sin", "when: week-day cos",
        "zone: days", "zone: hour sin", "zone: hour cos", "huge",
    )  # fmt: skip
    x = columns.encode(mixed())
    assert x.shape == (ROWS, columns.width)
    assert x.dtype == torch.float32
    assert torch.isfinite(x).all()
    assert columns.said == (
        "column 'season': 3 categories, of which 1 held by one row share 'other'",
        "column 'code': 2 categories",
        "column 'when': dates, as days since the first and its year, week-day",
        "column 'zone': dates, as days since the first and its hour",
        "missing values filled with the training median, and flagged: 'size', 'count', 'paid'",
    )


def test_rows_and_columns_in_any_order_and_json_give_the_same_bits() -> None:
    frame = mixed()
    columns = Columns.learn(frame)
    x = columns.encode(frame)
    again = Columns.from_json(json.loads(json.dumps(columns.to_json())))
    assert again == columns
    assert torch.equal(again.encode(frame), x)
    order = [5, 3, 0, 11, 2]
    assert torch.equal(columns.encode(frame[frame.columns[::-1]].iloc[order]), x[order])
    for row in range(ROWS):
        assert torch.equal(columns.encode(frame.iloc[[row]]), x[row : row + 1])
    assert torch.equal(columns.encode(frame.assign(more=1)), x)
    assert columns.foreign(frame.assign(more=1)) == ["more"]
    pd.testing.assert_frame_equal(frame, mixed())  # nothing was written into it


def test_a_file_gives_the_bits_of_the_frame(tmp_path: object) -> None:
    from pathlib import Path

    from posterity.interfaces.tables.read import read_table, write_table

    path = Path(str(tmp_path)) / "t.csv"
    write_table(mixed(), path)
    columns = Columns.learn(mixed())
    assert torch.equal(columns.encode(read_table(path)), columns.encode(mixed()))
    read = Columns.learn(read_table(path))
    number_code = [name for name in columns.names if not name.startswith("code")]
    assert [name for name in read.names if not name.startswith("code")] == number_code  # 1 and 3 are numbers in a file


def test_numbers_are_standardised() -> None:
    values = [2.0, 4.0, 9.0]
    mean, std = 5.0, math.sqrt(26 / 3)
    assert one(values)[:, 0].tolist() == pytest.approx([(value - mean) / std for value in values], rel=1e-6)
    assert one([Decimal("2"), Decimal("4"), Decimal("9")]).equal(one(values))
    assert one(["2", " 4", "9.0"]).equal(one(values))
    assert one([2, 4, 9], train=values).equal(one(values))
    gaps = one([2.0, 4.0, np.nan, 9.0])
    assert gaps[2].tolist() == [
        one([2.0, 4.0, 4.0, 9.0], train=[2.0, 4.0, np.nan, 9.0])[2, 0].item(),
        1.0,
    ]  # the median 4


def test_numbers_far_from_training_stay_apart_and_finite() -> None:
    train = [-1.0, 1.0] * 4
    far = one([9.0, 10.0, 11.0, 1e3, 1e10, 1e300, -1e300], train)[:, 0].tolist()
    assert far[0] == 9.0
    assert far == sorted(far[:-1]) + [-far[-2]]
    assert len(set(far)) == len(far)
    assert far[2] == pytest.approx(10 * (1 + math.log(1.1)), rel=1e-6)
    assert far[5] == pytest.approx(10 * (1 + math.log(1e299)), rel=1e-6)


def test_numbers_that_few_rows_stretch() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(5, 2, 1001)
    values[17] = 1e9  # the std is 3e7
    columns = Columns.learn(pd.DataFrame({"a": values}))
    x = columns.encode(pd.DataFrame({"a": values}))[:, 0]
    rest = torch.cat([x[:17], x[18:]])
    # half the width of the middle 68 % estimates the std with a relative error of about 1.2 / sqrt(1001) = 4 %
    assert abs(rest.std().item() - 1) < 0.15
    assert x[17] > 10 * (1 + math.log(1e6))
    assert columns.said == (
        "column 'a': few rows are far from the others; scaled by its middle 68 %, the far ones by their logarithm",
    )


def test_columns_that_tell_nothing() -> None:
    frame = pd.DataFrame(
        {
            "a": [1.0, 2.0, 3.0, 4.0],
            "same": [7, 7, 7, 7],
            "rounding": [0.1 + 0.2, 0.3, 0.3, 0.3],
            "word": ["x"] * 4,
            "twice": [1, 2, 3, 4],
            "s": ["p", "q", "p", "q"],
            "s2": ["p", "q", "p", "q"],
            "empty": [None] * 4,
            "mark": ["yes", None, None, "yes"],
            "y": [1, 0, 1, 0],
            "id": [4, 3, 2, 1],
        }
    )
    columns = Columns.learn(frame, leave_out=["y", "absent"], drop=["id"])
    assert columns.needed == ("a", "s", "mark")
    assert columns.names == ("a", "s=p", "s=q", "mark=yes", "mark missing")
    assert columns.said[:7] == (
        "left out on request: 'id'",
        "column 'same' is 7 in every row: ignored",
        "column 'rounding' is 0.3 in every row: ignored",
        "column 'word' is x in every row: ignored",
        "column 'twice' holds the same as 'a': ignored",
        "column 's2' holds the same as 's': ignored",
        "column 'empty' holds nothing but missing values: ignored",
    )
    assert columns.foreign(frame) == []
    assert columns.encode(frame[["mark", "s", "a"]]).shape == (4, 5)
    with pytest.raises(DataError, match=r"no feature is left .* is 7 in every row"):
        Columns.learn(frame[["same", "y"]], leave_out=["y"])
    with pytest.raises(DataError, match=re.escape("--drop ids: the table has no such column; did you mean 'id'?")):
        Columns.learn(frame, drop=["ids"])


def test_one_number_with_gaps_says_where_the_gaps_are() -> None:
    assert one([7.0, np.nan, 7.0]).tolist() == [[0, 0], [0, 1], [0, 0]]


def test_levels() -> None:
    columns = Columns.learn(pd.DataFrame({"s": ["a", "b", "a", "b", "c", "d", "a", "b"]}))
    assert columns.names == ("s=a", "s=b", "s other")
    later = pd.DataFrame({"s": ["b", "d", "new", None, " a "]})
    assert columns.encode(later).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert columns.unseen(later) == {"s": 1}
    assert columns.imputed(later) == {"s": 1}
    assert columns.unseen(later.iloc[[0]]) == {}
    numbers = Columns.learn(pd.DataFrame({"s": pd.Categorical([1, 2, 1, 2])}))
    assert numbers.encode(pd.DataFrame({"s": [2.0, np.nan, 1.0]})).tolist() == [[0, 1], [0, 0], [1, 0]]


def test_booleans() -> None:
    assert one([True, False, True])[:, 0].tolist() == [1, 0, 1]
    assert one(["Yes", "no", "no", None]).tolist() == [[1, 0], [0, 0], [0, 0], [pytest.approx(1 / 3), 1]]
    assert one([1, 0], train=[True, False])[:, 0].tolist() == [1, 0]
    assert one(["TRUE", "false"], train=[True, False])[:, 0].tolist() == [1, 0]
    with pytest.raises(
        DataError, match=re.escape("column 'a' holds 'maybe', which is not true or false, in 1 row (row 1,")
    ):
        one(["true", "maybe"], train=[True, False])


DAYS = [f"2011-01-{day:02d}" for day in (3, 4, 5, 9, 13, 22)]


LAYOUTS = ["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%dT%H:%M:%S", "%m-%d-%Y %H:%M"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dates_in_every_layout(layout: str) -> None:
    dates = pd.Series(pd.to_datetime(DAYS))
    expected = one(dates)
    assert one(dates.dt.strftime(layout)).equal(expected)
    days = np.array([0, 1, 2, 6, 10, 19.0])
    assert expected[:, 0].numpy() == pytest.approx((days - days.mean()) / days.std(), rel=1e-6)
    # 1970-01-01 was a Thursday: Monday 2011-01-03 is 4 days further in its week
    assert expected[0, 1:].tolist() == pytest.approx([math.sin(8 * math.pi / 7), math.cos(8 * math.pi / 7)], abs=1e-6)


def test_missing_dates_are_the_median_one_and_times_keep_their_day() -> None:
    train = pd.to_datetime([*DAYS, None])
    x = one(["2011-01-05", None, "2011-01-05 18:00"], train)  # the third of six days is the lower median
    assert x[1, :-1].equal(x[0, :-1])
    assert x[:, -1].tolist() == [0, 1, 0]
    assert x[2, 1:3].equal(x[0, 1:3])  # the week-day
    assert x[2, 0] > x[0, 0]


def test_dates_of_every_type() -> None:
    expected = one(pd.Series(pd.to_datetime(DAYS)))
    assert one([date.fromisoformat(day) for day in DAYS]).equal(expected)
    assert one(pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("UTC")).equal(expected)
    assert one(pd.PeriodIndex(DAYS, freq="D")).equal(expected)
    assert one(DAYS, train=pd.to_datetime(DAYS)).equal(expected)
    berlin = pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    assert one(berlin).equal(expected)
    assert one(berlin.map(lambda moment: moment.isoformat())).equal(expected)


def test_dates_that_can_be_read_in_two_ways() -> None:
    message = "column 'my day' holds dates such as 03/04/2011 that may be day/month or month/day"
    with pytest.raises(DataError, match=re.escape(message)) as error:
        Columns.learn(pd.DataFrame({"my day": ["03/04/2011", "05/04/2011", "06/07/2011"]}))
    assert "--drop 'my day'" in str(error.value)
    assert one(["03/04/2011", "13/04/2011"]).shape[1] >= 1


def test_dates_with_a_few_words_among_them() -> None:
    days = [f"20{year:02d}-03-04" for year in range(100)]
    columns = Columns.learn(pd.DataFrame({"d": [*days, "unknown", None]}))
    x = columns.encode(pd.DataFrame({"d": ["2050-03-04", "never", None]}))
    assert columns.names[-1] == "d missing"
    assert x[:, -1].tolist() == [0, 1, 1]
    assert "values that are no dates count as missing" in columns.said[0]
    strict = Columns.learn(pd.DataFrame({"d": days}))
    with pytest.raises(
        DataError, match=re.escape("column 'd' holds 'never', which is no date (2011-03-04), in 1 row (row 1,")
    ):
        strict.encode(pd.DataFrame({"d": ["2050-03-04", "never"]}))
    assert strict.imputed(pd.DataFrame({"d": ["2050-03-04", None]})) == {"d": 1}


def test_free_text_is_refused_with_the_way_out() -> None:
    rows = 120
    frame = pd.DataFrame(
        {
            "a": range(rows),
            "note": [f"note {row}" for row in range(rows)],
            "the city": [f"city {row % 55}" for row in range(rows)],
            "items": [[row] for row in range(rows)],
        }
    )
    with pytest.raises(DataError) as error:
        Columns.learn(frame)
    assert str(error.value) == (
        "column 'note' holds free text (120 distinct values in 120 rows); column 'the city' holds more than 50 categories "
        "(55 distinct values in 120 rows); column 'items' holds values of type list: leave them out with --drop note "
        "--drop 'the city' --drop items"
    )
    assert Columns.learn(frame, drop=["note", "the city", "items"]).width == 1
    with pytest.raises(DataError, match=r"durations .*: leave it out with --drop a"):
        Columns.learn(pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}))


def test_numbers_with_a_few_words_among_them() -> None:
    values = [*map(str, range(60)), "n.k.", "n.k."]
    with pytest.raises(DataError, match=re.escape("column 'a' holds numbers, but 'n.k.' in 2 rows (rows 60, 61,")):
        Columns.learn(pd.DataFrame({"a": values}))


def test_tables_that_do_not_fit() -> None:
    columns = Columns.learn(pd.DataFrame({"Age": [1.0, 2, 3], "sex": ["f", "m", "f"], "z": [3, 1, 2]}))
    fitting = pd.DataFrame({"Age": [1.0, 2], "sex": ["f", "m"], "z": [1, 2]})
    message = "lacks 2 columns that the model was trained on: 'Age', 'z'; did you mean 'age'?"
    with pytest.raises(DataError, match=re.escape(message)):
        columns.encode(pd.DataFrame({"age": [1], "sex": ["f"]}))
    with pytest.raises(DataError, match=re.escape("column 'Age' holds 'old', which is not a number, in 1 row (row 1,")):
        columns.encode(fitting.assign(Age=["1", "old"]))
    with pytest.raises(DataError, match=re.escape("column 'z' is infinite in 1 row (row 0, counted from 0)")):
        columns.encode(fitting.assign(z=[np.inf, 1]))
    with pytest.raises(DataError, match="column 'a' is infinite"):
        one([1.0, 2.0, np.inf])
    with pytest.raises(DataError, match="the table has no rows"):
        columns.encode(fitting.iloc[:0])
    with pytest.raises(DataError, match="is not a number"):
        columns.encode(fitting.assign(Age=pd.to_datetime(["2011-01-01", "2011-01-02"])))


def test_a_column_of_gaps_only_is_encoded() -> None:
    columns = Columns.learn(mixed())
    gaps = mixed().iloc[[4]].copy()
    for name in gaps.columns:
        gaps[name] = np.nan
    x = columns.encode(gaps)
    assert torch.isfinite(x).all()
    flags = [x[0, index].item() for index, name in enumerate(columns.names) if name.endswith("missing")]
    assert flags == [1, 1, 1, 1]
    assert columns.imputed(gaps) == {"on": 1, "code": 1, "when": 1, "zone": 1, "huge": 1}


def test_about_says_a_row_in_a_few_words() -> None:
    columns = Columns.learn(mixed())
    assert columns.about(mixed(), 2) == "size=missing, count=3, on=true, paid=missing, season=w"
    dates = Columns.learn(mixed()[["when", "zone", "huge"]])
    assert dates.about(mixed(), 0) == "when=2011-01-02, zone=2020-01-01 00:00:00+01:00, huge=1e+300"
