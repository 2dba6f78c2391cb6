"""Every row has one part; classes, groups and times are kept as promised; the same seed gives the same rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from posterity.errors import DataError
from posterity.interfaces.tables.split import Split, split
from posterity.interfaces.tables.target import Target

ROWS = 107
NAMES = Target("y", "classification", ("a", "b", "c"))


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    labels = np.array(["a"] * 91 + ["b"] * 13 + ["c"] * 3)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.permutation(ROWS) // 4, unit="D")
    frame = pd.DataFrame({"x": rng.normal(size=ROWS), "g": rng.integers(0, 17, ROWS), "day": days})
    return frame.assign(y=rng.permutation(labels))


def parts(found: Split) -> list[np.ndarray]:
    return [found.train, found.validation, found.test]


@pytest.mark.parametrize("options", [{}, {"group": "g"}, {"time": "day"}, {"test": 0}, {"validation": 0}])
def test_every_row_has_one_part(options: dict[str, Any]) -> None:
    found = split(table(), NAMES, **options)
    assert sorted(np.concatenate(parts(found)).tolist()) == list(range(ROWS))
    assert all(part.dtype == np.int64 for part in parts(found))
    again = split(table(), NAMES, **options)
    assert all(np.array_equal(a, b) for a, b in zip(parts(found), parts(again)))
    wanted = [ROWS * options.get("validation", 0.15), ROWS * options.get("test", 0.2)]
    for part, rows in zip((found.validation, found.test), wanted):
        assert (len(part) > 0) == (rows > 0)
        assert abs(len(part) - rows) <= 7  # a group, or a day, has at most 13 rows, and the nearest edge is taken
    assert f"{len(found.train)} train" in found.said[0]


def test_classes_are_shared_out_evenly() -> None:
    frame = table()
    for seed in range(5):
        found = split(frame, NAMES, seed=seed)
        counts = [frame["y"].iloc[part].value_counts().to_dict() for part in parts(found)]
        assert all(count["c"] == 1 for count in counts)
        assert abs(counts[2]["a"] - 0.2 * 91) < 1
        assert abs(counts[1]["a"] - 0.15 * 91) < 1
    assert not np.array_equal(split(frame, NAMES, seed=0).test, split(frame, NAMES, seed=1).test)


def test_a_class_of_one_row_is_for_training() -> None:
    frame = pd.DataFrame({"y": ["a"] * 20 + ["b"]})
    for seed in range(20):
        assert 20 in split(frame, Target("y", "classification", ("a", "b")), seed=seed).train


def test_many_classes_of_one_row_are_for_training() -> None:
    labels = [*["a"] * 20, *(f"b{row:02d}" for row in range(20))]  # in proportion, 4 of them would be for the test
    found = split(pd.DataFrame({"y": labels}), Target("y", "classification", tuple(sorted(set(labels)))))
    assert set(range(20, 40)) <= set(found.train.tolist())


def test_groups_stay_together_and_are_no_feature() -> None:
    frame = table()
    found = split(frame, NAMES, group="g")
    groups = [set(frame["g"].iloc[part]) for part in parts(found)]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    assert found.not_features == ("g",)
    # one group of nine tenths of the rows is for training, whatever the order in which they are drawn
    frame = frame.assign(g=[0] * 97 + [1, 2] * 5)
    for seed in range(9):
        found = split(frame, group="g", seed=seed)
        assert set(frame["g"].iloc[found.train]) == {0}


def test_time_runs_from_training_to_test() -> None:
    frame = table()
    found = split(frame, NAMES, time="day")
    train, held, test = (frame["day"].iloc[part] for part in parts(found))
    assert train.max() < held.min()
    assert held.max() < test.min()
    assert found.not_features == ()
    text = frame.assign(day=frame["day"].dt.strftime("%d.%m.%Y"))
    assert np.array_equal(split(text, time="day").test, found.test)


def test_a_column_decides() -> None:
    frame = table().assign(part=["Train"] * 60 + ["VAL"] * 30 + ["test"] * 17)
    found = split(frame, NAMES, column="part")
    assert [len(part) for part in parts(found)] == [60, 30, 17]
    assert found.not_features == ("part",)
    frame["part"] = frame["part"].replace("VAL", "train")
    found = split(frame, NAMES, column="part")
    assert [len(part) for part in parts(found)] == [73, 17, 17]  # 0.15 of 107 is 16, and one of the rare class
    assert found.test.tolist() == list(range(90, 107))
    assert "validation drawn from its training rows" in found.said[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "g", "time": "day"}, "one of column, group and time, got group and time"),
        ({"column": "parts"}, "--split-column parts: the table has no such column; did you mean 'part'?"),
        (
            {"column": "part"},
            "holds 'dunno' in 1 row (row 3, counted from 0): its values are train, validation and test",
        ),
        ({"column": "all"}, "names no test rows"),
        ({"group": "one"}, "has 1 group, too few for 3 parts"),
        ({"time": "one"}, "has 1 time, too few for 3 parts"),
        ({"time": "words"}, "holds no dates or numbers"),
        ({"group": "gaps"}, "is missing in 2 rows (rows 0, 1, counted from 0)"),
        ({"test": 1.5}, "validation and test are fractions in [0, 1)"),
        ({"test": 0.6, "validation": 0.4}, "that leave rows for training, got 0.4 and 0.6"),
    ],
)
def test_splits_that_cannot_be(options: dict[str, Any], message: str) -> None:
    frame = table().assign(
        part=["train"] * 3 + ["dunno"] + ["test"] * 103,
        all="train",
        one=1,
        words=["a", "b"] * 53 + ["a"],
        gaps=[None, None, *range(105)],
    )
    with pytest.raises(DataError, match=re.escape(message)):
        split(frame, NAMES, **options)


def test_few_rows() -> None:
    with pytest.raises(DataError, match="1 row cannot be split into 3 parts"):
        split(table().iloc[:1])
    assert [len(part) for part in parts(split(table().iloc[:3]))] == [1, 1, 1]
    assert [len(part) for part in parts(split(table().iloc[:1], test=0, validation=0))] == [1, 0, 0]
    with pytest.raises(DataError, match="the training part would be empty"):
        split(table().assign(part="test"), column="part")
    with pytest.raises(DataError, match="the (validation|test) part would be empty"):
        split(pd.DataFrame({"y": ["a", "b", "c"]}), NAMES)
