"""What is predicted is guessed as a person would, said, and read without touching a value."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from posterity.errors import DataError
from posterity.interfaces.tables.target import Target


def frame_of(values: object, name: str = "y") -> pd.DataFrame:
    values = pd.Series(values)
    return pd.DataFrame({"x": np.arange(len(values)), name: values.to_numpy() if values.dtype == object else values})


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["a", "b", "c"], "c"),
        (["Target", "y", "c"], "Target"),
        (["label", "Y", "c"], "Y"),
        (["OUTCOME", "b"], "OUTCOME"),
    ],
)
def test_which_column(columns: list[str], name: str) -> None:
    target, said = Target.guess(pd.DataFrame([[0.5] * len(columns), [1.5] * len(columns)], columns=columns))
    assert target.name == name
    assert repr(name) in said[0]
    assert "--target" in said[0]


def test_a_name_that_is_given_is_not_discussed() -> None:
    target, said = Target.guess(frame_of([0.5, 1.5, 2.5]), name="x", task="regression")
    assert target == Target("x", "regression", None, True)
    assert said == []


@pytest.mark.parametrize(
    ("values", "task", "labels"),
    [
        (["b", "a", "b"], "classification", ("a", "b")),
        ([True, False, True], "classification", (False, True)),
        ([0, 1, 1], "classification", (0, 1)),
        ([1.0, 0.0, 0.0], "classification", (0, 1)),
        (pd.array([0, 1, 1], dtype="Int64"), "classification", (0, 1)),
        (pd.Categorical(["low", "high", "low"]), "classification", ("high", "low")),
        ([0.5, 1.0, 3.0], "regression", None),
        ([3, 4, 5, 6, 7, 8] * 20, "classification", (3, 4, 5, 6, 7, 8)),  # grades of wine: 20 rows each
        ([3, 4, 5, 6, 7, 8] * 19, "regression", None),
        (list(range(11)) * 40, "regression", None),  # more than 10 values: ages, counts
        (["1.5", "2", "3"], "regression", None),
    ],
)
def test_which_task(values: object, task: str, labels: object) -> None:
    target, said = Target.guess(frame_of(values))
    assert (target.task, target.labels) == (task, labels)
    assert f"task: {task}, because 'y' holds" in said[-1]


def test_the_way_to_change_the_task_is_said() -> None:
    assert Target.guess(frame_of([0, 1, 1]))[1][-1].endswith("as numbers with --task regression")
    assert Target.guess(frame_of([0, 1, 2]))[1][-1].endswith("as classes with --task classification")
    assert Target.guess(frame_of([0, 1, 2]), task="classification")[0].labels == (0, 1, 2)
    assert Target.guess(frame_of([0, 1, 1]), task="regression")[0].whole


@pytest.mark.parametrize(
    ("values", "dtype"),
    [(["b", "a", "b"], "U"), ([True, False, True], "b"), ([4, 2, 4], "i"), (pd.Categorical([4, 2, 4]), "i")],
)
def test_labels_are_read_as_they_are(values: object, dtype: str) -> None:
    target, _ = Target.guess(frame_of(values), task="classification")
    read = target.read(frame_of(values))
    assert read.dtype.kind == dtype
    assert read.tolist() == list(values)  # type: ignore[call-overload]
    again = Target.from_json(json.loads(json.dumps(target.to_json())))
    assert again == target
    assert [type(label) for label in again.labels or ()] == [type(label) for label in target.labels or ()]


def test_numbers_are_read_exactly() -> None:
    values = [0.1, -1e300, 3.0]
    target, _ = Target.guess(frame_of(values))
    assert target.read(frame_of(values)).tolist() == values
    assert target.read(frame_of(pd.array([1, 2, 3], dtype="Int64"))).dtype == np.float64
    assert not target.whole
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_labels_that_another_file_writes_in_another_way() -> None:
    text = Target("y", "classification", ("1", "2", "x"))
    assert text.read(frame_of([2, 1, 1])).tolist() == ["2", "1", "1"]
    assert text.read(frame_of([2.0, 1.0])).tolist() == ["2", "1"]
    whole = Target("y", "classification", (1, 2))
    assert whole.read(frame_of([2.0, 1.0])).tolist() == [2, 1]
    assert whole.read(frame_of(["2", "1"])).tolist() == [2, 1]
    truth = Target("y", "classification", (False, True))
    assert truth.read(frame_of(["true", "False"])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (["a", "a"], None, "holds one class only, 'a', in 2 rows"),
        ([1, 1, 1], "classification", "holds one class only, 1, in 3 rows"),
        ([7], None, "a table of 1 row teaches nothing"),
        ([None, None], None, "is missing in all 2 rows"),
        ([0.5, 1.5], "classification", "holds numbers with fractions, such as 0.5"),
        (["a", "b"], "regression", "holds text, such as 'a', in 2 rows (rows 0, 1, counted from 0)"),
        ([f"text {row}" for row in range(60)], None, "60 distinct values in 60 rows"),
        (pd.date_range("2020-01-01", periods=3), None, "holds dates"),
        ([0, 1], "clustering", "the task is 'classification' or 'regression', got 'clustering'"),
    ],
)
def test_targets_that_cannot_be_learned(values: object, task: str | None, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Target.guess(frame_of(values), task=task)


def test_rows_that_cannot_be_read_are_named() -> None:
    number, label = Target("y", "regression"), Target("y", "classification", ("a", "b"))
    with pytest.raises(DataError, match=re.escape("'y' is missing in 2 rows (rows 1, 3, counted from 0)")):
        number.read(frame_of([1.0, np.nan, 2.0, np.nan]))
    with pytest.raises(DataError, match=re.escape("'y' is infinite in 1 row (row 2,")):
        number.read(frame_of([1.0, 2.0, np.inf]))
    with pytest.raises(DataError, match=re.escape("such as 'oops', in 1 row (row 1,")):
        number.read(frame_of(["1", "oops", "2"]))
    message = "unknown label 'c' in 2 rows (rows 1, 2, counted from 0); the known ones are 'a', 'b'"
    with pytest.raises(DataError, match=re.escape(message)):
        label.read(frame_of(["a", "c", "c"]))
    with pytest.raises(DataError, match=re.escape("no column 'yy'; did you mean 'y'?; its columns are 'x', 'y'")):
        Target.guess(frame_of([1, 2]), name="yy")
    with pytest.raises(DataError, match="no rows"):
        number.read(frame_of(np.array([], dtype=float)))
