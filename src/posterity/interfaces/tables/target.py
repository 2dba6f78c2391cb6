"""What is to be predicted: which column, and whether its values are classes or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.words import listed, option, pandas, plural, rows_where, similar

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["NAMES", "Label", "Target", "Task"]

Label = str | int | bool | float
Task = Literal["classification", "regression"]

NAMES = ("target", "y", "label", "class", "outcome")  # of the column that is taken where none is given, in this order

_MOST_GRADES = 10  # whole numbers of more values than this are numbers
_ROWS_PER_GRADE = 20


@dataclass(frozen=True)
class Target:
    """The column that is predicted.

    Args:
        name: of the column.
        task: "classification" or "regression".
        labels: of a classification, sorted (as scikit-learn does): all of type str, bool or int; None for a regression.
        whole: a regression whose training values are all whole numbers (counts, grades).
    """

    name: str
    task: Task
    labels: tuple[Label, ...] | None = None
    whole: bool = False

    @classmethod
    def guess(cls, frame: DataFrame, name: str | None = None, task: str | None = None) -> tuple[Target, list[str]]:
        """The target of a table, and what was decided.

        Without a name: the first of `NAMES` that is a column (in any case), else the last column. Without a task: text,
        booleans, categories and whole numbers of two values are classes; so are whole numbers of at most 10 values with 20
        rows for each on average; other numbers are numbers.

        Raises:
            DataError: fewer than 2 rows, an absent column, an unknown task, one class only, text where numbers are wanted,
                numbers with fractions where classes are wanted, text with a value of its own in most rows.
        """
        if task not in (None, "classification", "regression"):
            raise DataError(f"the task is 'classification' or 'regression', got {task!r}")
        said: list[str] = []
        if name is None:
            name, reason = _pick(list(map(str, frame.columns)))
            said.append(f"target: column {name!r} ({reason}); another one with --target NAME")
        column = _column(frame, name)
        if len(frame) < 2:
            raise DataError(f"a table of {plural(len(frame), 'row')} teaches nothing: give at least 2 rows")
        values = column.dropna()
        if not len(values):
            raise DataError(f"the target {name!r} is missing in all {plural(len(frame), 'row')}: name another column")
        if task is None:
            task, reason = _task(name, values)
            flip = ""
            if _is_numeric(values) and task == "classification":
                flip = "; as numbers with --task regression"
            elif "whole" in reason:
                flip = "; as classes with --task classification"
            said.append(f"task: {task}, because {name!r} holds {reason}{flip}")
        if task == "classification":
            labels = _labels(name, values)
            if len(labels) < 2:
                gone = len(column) - len(values)
                missing = f" ({plural(gone, 'row')} read as missing)" if gone else ""
                raise DataError(
                    f"the target {name!r} holds one class only, {labels[0]!r}, in {plural(len(values), 'row')}{missing}: "
                    "there is nothing to tell apart"
                )
            return cls(name, "classification", labels), said
        numbers = _numbers(name, column)
        numbers = numbers[np.isfinite(numbers)]
        return cls(name, "regression", None, bool(len(numbers)) and bool((numbers == np.round(numbers)).all())), said

    def read(self, frame: DataFrame) -> NDArray[Any]:
        """The target of every row: [rows] labels as they are (str, bool or int64), or float64 numbers.

        Raises:
            DataError: an absent column, missing values, infinity, text where numbers are wanted, a label that is not among
                `labels`; the rows are named.
        """
        column = _column(frame, self.name)
        if not len(column):
            raise DataError("the table has no rows")
        if bool(column.isna().any()):
            raise DataError(
                f"the target {self.name!r} is missing in {rows_where(column.isna())}: remove these rows, nothing is imputed "
                "for a target"
            )
        if self.labels is None:
            numbers = _numbers(self.name, column)
            if not np.isfinite(numbers).all():
                raise DataError(
                    f"the target {self.name!r} is infinite in {rows_where(~np.isfinite(numbers))}: remove these rows"
                )
            return numbers
        return self._as_labels(column)

    def _as_labels(self, column: Series) -> NDArray[Any]:
        pd = pandas()
        assert self.labels is not None
        kind = type(self.labels[0])
        codes, found = pd.factorize(column)
        values = [_as(kind, value) for value in _plain(found)]
        unknown = [value not in self.labels for value in values]
        if any(unknown):
            strange = [value for value, bad in zip(values, unknown) if bad]
            raise DataError(
                f"the target {self.name!r} holds the unknown label {strange[0]!r} in "
                f"{rows_where(np.array(unknown)[codes])}; the known ones are {listed(self.labels)}"
            )
        dtype: Any = {str: np.str_, bool: np.bool_, int: np.int64}.get(kind, np.float64)
        return np.array(values, dtype=dtype)[codes]

    def to_json(self) -> dict[str, Any]:
        """Its fields by name."""
        labels = None if self.labels is None else list(self.labels)
        return {"name": self.name, "task": self.task, "labels": labels, "whole": self.whole}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Target:
        """What `to_json` gave."""
        labels = content["labels"]
        return cls(content["name"], content["task"], None if labels is None else tuple(labels), content["whole"])


def _pick(columns: Sequence[str]) -> tuple[str, str]:
    if not columns:
        raise DataError("the table has no columns")
    lower = {name.lower(): name for name in reversed(columns)}
    for name in NAMES:
        if name in lower:
            return lower[name], "by its name"
    return columns[-1], "the last one"


def _column(frame: DataFrame, name: str) -> Series:
    columns = list(map(str, frame.columns))
    if name not in columns:
        raise DataError(
            f"the table has no column {name!r}{similar(name, columns)}; its columns are {listed(columns, 20)}"
        )
    return frame.iloc[:, columns.index(name)]


def _is_numeric(values: Series) -> bool:
    types = pandas().api.types
    return bool(types.is_numeric_dtype(values.dtype) and not types.is_bool_dtype(values.dtype))


def _task(name: str, values: Series) -> tuple[Task, str]:
    """The task that the filled values of a target suggest, and what they are."""
    types = pandas().api.types
    if types.is_datetime64_any_dtype(values.dtype) or types.is_timedelta64_dtype(values.dtype):
        raise DataError(f"the target {name!r} holds dates: turn them into numbers (days until ...) first")
    if not _is_numeric(values):
        numbers = None if isinstance(values.dtype, pandas().CategoricalDtype) else _parsed(values)
        if numbers is None:
            return "classification", f"{plural(values.nunique(), 'value')} that are not numbers"
    else:
        numbers = values.to_numpy(dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    distinct = len(np.unique(numbers))
    if (numbers != np.round(numbers)).any():
        return "regression", "numbers with fractions"
    few = distinct <= _MOST_GRADES and len(numbers) >= _ROWS_PER_GRADE * distinct
    if distinct <= 2 or few:
        return "classification", f"{plural(distinct, 'distinct whole number')} in {plural(len(numbers), 'row')}"
    return "regression", f"{plural(distinct, 'distinct whole number')}"


def _parsed(values: Series) -> NDArray[np.float64] | None:
    """Text that holds nothing but numbers, as numbers."""
    if pandas().api.types.infer_dtype(values, skipna=True) not in ("string", "mixed-integer", "decimal"):
        return None
    numbers = pandas().to_numeric(values.astype(str), errors="coerce").to_numpy(dtype=np.float64)
    return None if np.isnan(numbers).any() else numbers


def _plain(values: Any) -> list[Any]:
    return [value.item() if hasattr(value, "item") else value for value in values]


def _as(kind: type, value: Any) -> Any:
    """`value` as a label of type `kind`, where it is one written in another way: 1.0 for 1, 1 for "1", "true" for True."""
    if isinstance(value, float) and value.is_integer() and kind is not float:
        value = int(value)
    if kind is str:
        return str(value).strip()
    if kind is bool and str(value).strip().lower() in ("true", "false", "1", "0"):
        return str(value).strip().lower() in ("true", "1")
    if kind is int and (isinstance(value, bool) or str(value).strip().lstrip("+-").isdigit()):
        return int(value)
    return value


def _labels(name: str, values: Series) -> tuple[Label, ...]:
    """The sorted distinct values: all bool, all int, or all as str."""
    found = _plain(values.unique())
    if all(isinstance(value, bool) for value in found):
        return tuple(sorted(found))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
        if fractions := [value for value in found if value != _whole_part(value)]:
            raise DataError(
                f"the target {name!r} holds numbers with fractions, such as {fractions[0]:g}: classes are text, booleans or "
                "whole numbers; use --task regression"
            )
        return tuple(sorted(int(value) for value in found))
    labels = tuple(sorted({_as(str, value) for value in found}))
    if len(labels) > 50 and 2 * len(labels) > len(values):
        raise DataError(
            f"the target {name!r} holds text with {len(labels):,} distinct values in {plural(len(values), 'row')}: that is "
            f"no set of classes; name another column with {option('--target', 'NAME')}"
        )
    return labels


def _whole_part(value: float) -> float:
    """The nearest whole number; NaN for infinity, which is unequal to everything."""
    return float(round(value)) if np.isfinite(value) else float("nan")


def _numbers(name: str, column: Series) -> NDArray[np.float64]:
    pd = pandas()
    types = pd.api.types
    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        raise DataError(f"the target {name!r} holds dates: turn them into numbers (days until ...) first")
    if types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    numbers = pd.to_numeric(column.astype(object), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.isnan(numbers) & column.notna().to_numpy()
    if bad.any():
        value = column.iloc[int(np.flatnonzero(bad)[0])]
        raise DataError(
            f"the target {name!r} holds text, such as {value!r}, in {rows_where(bad)}: correct these rows, or predict "
            "classes with --task classification"
        )
    return np.asarray(numbers)
