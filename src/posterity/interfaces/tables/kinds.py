"""What a column holds, and its values as plain arrays.

number      int, float, nullable, Decimal; text in which every value is a number
boolean     bool, nullable, or two words: true / false, yes / no (in any case)
category    text, mixed or categorical values: at most 50 distinct ones, each in two rows on average (or two of them)
date        see `dates`
text        more distinct values than that
empty       nothing but missing values
unusable    lists, durations, complex numbers
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.dates import find_layout, is_date_type
from posterity.interfaces.tables.words import option, pandas, plural, rows_where

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["LEVELS", "Kind", "booleans", "digest", "kind_of", "numbers", "texts"]

LEVELS = 50  # most distinct values of a category

_WORDS = ({"true": 1.0, "false": 0.0}, {"yes": 1.0, "no": 0.0})
_TRUTH = _WORDS[0] | _WORDS[1] | {"1": 1.0, "0": 0.0}
_MOSTLY = 0.5  # with so many numbers among its distinct values, text is meant to be numbers


class Kind(NamedTuple):
    """What a column holds; for dates how they are written, for the last three a phrase that says what is the matter."""

    name: Literal["number", "boolean", "category", "date", "text", "empty", "unusable"]
    detail: str = ""


def kind_of(name: str, column: Series) -> Kind:
    """The kind of a column.

    Raises:
        DataError: dates whose day and month cannot be told apart; numbers among which a few values are text.
    """
    pd = pandas()
    types = pd.api.types
    if bool(column.isna().all()):
        return Kind("empty", "holds nothing but missing values")
    if types.is_bool_dtype(column.dtype):
        return Kind("boolean")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _category_or_text(column, int(column.nunique()), declared=True)
    if types.is_timedelta64_dtype(column.dtype):
        return Kind("unusable", "holds durations (turn them into numbers)")
    if types.is_complex_dtype(column.dtype):
        return Kind("unusable", "holds complex numbers (turn them into two columns)")
    if types.is_numeric_dtype(column.dtype):
        return Kind("number")
    if is_date_type(column):
        return Kind("date", "iso")
    inferred = types.infer_dtype(column, skipna=True)
    if inferred == "boolean":
        return Kind("boolean")
    if inferred in ("integer", "floating", "mixed-integer-float", "decimal"):
        return Kind("number")
    return _kind_of_text(name, column)


def _kind_of_text(name: str, column: Series) -> Kind:
    pd = pandas()
    try:
        _, found = pd.factorize(column)
    except TypeError:
        found = [next(value for value in column if isinstance(value, list | dict | set | np.ndarray))]
    strange = [value for value in found if not isinstance(value, str | int | float | bool | np.generic)]
    if strange:
        return Kind("unusable", f"holds values of type {type(strange[0]).__name__}")
    distinct = pd.Series(found, dtype=object).map(as_text).drop_duplicates()
    lower = set(distinct.iloc[:8].str.lower())
    if len(distinct) <= 8 and any(lower == set(words) for words in _WORDS):
        return Kind("boolean")
    parsed = pd.to_numeric(distinct, errors="coerce").notna()
    if bool(parsed.all()):
        return Kind("number")
    if layout := find_layout(name, distinct):
        return Kind("date", layout)
    kind = _category_or_text(column, len(distinct))
    if kind.name == "text" and parsed.mean() >= _MOSTLY:
        bad = column.map(as_text, na_action="ignore").isin(distinct[~parsed])
        raise DataError(
            f"column {name!r} holds numbers, but {distinct[~parsed].iloc[0]!r} in {rows_where(bad)}: correct these rows, or "
            f"leave the column out with {option('--drop', name)}"
        )
    return kind


def _category_or_text(column: Series, distinct: int, declared: bool = False) -> Kind:
    filled = int(column.notna().sum())
    few = 2 * distinct <= filled or distinct == 1 or (distinct == 2 < filled)
    if distinct <= LEVELS and (few or declared):
        return Kind("category")
    counted = f"({plural(distinct, 'distinct value')} in {plural(filled, 'row')})"
    if 2 * distinct <= filled:
        return Kind("text", f"holds more than {LEVELS} categories {counted}")
    return Kind("text", f"holds free text {counted}")


def as_text(value: Any) -> str:
    """A value as the name of a level: text without blanks around it; 1.0 is "1", as it would be in a file."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return str(value).strip()


def numbers(name: str, column: Series, allow_infinite: bool = False) -> NDArray[np.float64]:
    """[rows] float64 of its own, NaN where missing.

    Raises:
        DataError: a value that is no number, or infinity unless allowed; the rows are named.
    """
    pd = pandas()
    types = pd.api.types
    if types.is_numeric_dtype(column.dtype) and not types.is_complex_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    else:
        values = np.full(len(column), np.nan)
        missing = column.isna().to_numpy()
        if not missing.all():
            dates = is_date_type(column)
            plain = column.astype(object)
            values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
            _refuse(name, column, (np.isnan(values) & ~missing) | (dates & ~missing), "a number")
    if not allow_infinite and np.isinf(values).any():
        raise DataError(
            f"column {name!r} is infinite in {rows_where(np.isinf(values))}: correct these rows or leave their values empty"
        )
    return values


def booleans(name: str, column: Series) -> NDArray[np.float64]:
    """[rows] 1, 0, or NaN where missing; from booleans, 1 and 0, true and false, yes and no.

    Raises:
        DataError: another value; the rows are named.
    """
    codes, found = pandas().factorize(column)
    known = [_TRUTH.get(as_text(value).lower(), np.nan) for value in found]
    values = np.array([*known, np.nan])[codes]
    _refuse(name, column, np.isnan(values) & column.notna().to_numpy(), "true or false")
    return values


def texts(column: Series) -> tuple[NDArray[np.int64], list[str]]:
    """[rows] positions in the list of distinct texts, -1 where missing."""
    pd = pandas()
    codes, found = pd.factorize(column)
    slots, names = pd.factorize(pd.Series([as_text(value) for value in found], dtype=object))
    return np.append(np.asarray(slots, dtype=np.int64), -1)[codes], list(names)


def digest(kind: Kind, name: str, column: Series) -> bytes:
    """Equal for columns that hold the same values; 1 and 1.0 are the same."""
    if kind.name == "number":
        values = numbers(name, column, allow_infinite=True) + 0.0  # -0.0 becomes 0.0
        parts = [np.ascontiguousarray(np.where(np.isnan(values), np.nan, values)).tobytes()]
    else:
        codes, names = texts(column)
        parts = [codes.tobytes(), "\0".join(names).encode()]
    return blake2b(b"".join([kind.name.encode(), *parts]), digest_size=16).digest()


def level_counts(column: Series) -> Counter[str]:
    """How many rows hold each text."""
    codes, names = texts(column)
    return Counter(dict(zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist())))


def _refuse(name: str, column: Series, bad: NDArray[np.bool_], wanted: str) -> None:
    if bad.any():
        value = column.iloc[int(np.flatnonzero(bad)[0])]
        raise DataError(f"column {name!r} holds {str(value)!r}, which is not {wanted}, in {rows_where(bad)}")
