"""What the checks of `audit` look at, read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.dates import days_of
from posterity.interfaces.tables.kinds import Kind, booleans, digest, kind_of, numbers, texts
from posterity.interfaces.tables.read import to_frame
from posterity.interfaces.tables.split import Split
from posterity.interfaces.tables.target import Label, Target
from posterity.interfaces.tables.words import pandas

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["Facts"]


@dataclass(frozen=True, eq=False)
class Facts:
    """A table and what its features hold.

    Args:
        kinds: of the features that can be read.
        unreadable: a sentence for each of the others.
        numbers: [rows] float64 of the number columns, NaN where missing, infinity as it is.
        missing: share of missing values of each feature.
        infinite: rows with infinity, for each number column.
        constant, duplicates: features of one value; features that hold the same as another.
        y: [rows] float64, or int64 positions among `labels`; None where it cannot be read, then `target_error` says why.
    """

    frame: DataFrame
    target: Target
    split: Split | None
    kinds: dict[str, Kind]
    unreadable: dict[str, str]
    numbers: dict[str, NDArray[np.float64]]
    missing: dict[str, float]
    infinite: dict[str, int]
    constant: list[str]
    duplicates: dict[str, str]
    y: NDArray[Any] | None
    labels: tuple[Label, ...] | None
    target_error: str

    @classmethod
    def of(cls, frame: DataFrame, target: Target, split: Split | None, columns: Columns | None) -> Facts:
        """Read everything."""
        frame = to_frame(frame)
        skip = {target.name, *(split.not_features if split else ())}
        names = [name for name in frame.columns if name not in skip]
        if columns is not None:
            names = [name for name in names if name in columns.needed]
        kinds: dict[str, Kind] = {}
        unreadable: dict[str, str] = {}
        for name in names:
            try:
                kind = kind_of(name, frame[name])
            except DataError as error:
                unreadable[name] = str(error)
                continue
            if kind.name in ("text", "unusable"):
                unreadable[name] = f"column {name!r} {kind.detail}"
            else:
                kinds[name] = kind
        arrays, infinite = {}, {}
        for name, kind in kinds.items():
            if kind.name == "number":
                arrays[name] = numbers(name, frame[name], allow_infinite=True)
                infinite[name] = int(np.isinf(arrays[name]).sum())
        constant = [name for name in kinds if _is_constant(frame[name], arrays.get(name))]
        first: dict[bytes, str] = {}
        duplicates = {}
        for name, kind in kinds.items():
            if name not in constant and (other := first.setdefault(digest(kind, name, frame[name]), name)) != name:
                duplicates[name] = other
        y, error_text = None, ""
        try:
            y = target.read(frame)
            if target.labels is not None:
                known = np.array(target.labels)
                order = np.argsort(known, kind="stable")
                y = order[np.searchsorted(known[order], y)]
        except DataError as error:
            error_text = str(error)
        return cls(
            frame, target, split, kinds, unreadable, arrays, {name: float(frame[name].isna().mean()) for name in names},
            infinite, constant, duplicates, y, target.labels, error_text,
        )  # fmt: skip

    def values(self, name: str, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], bool]:
        """Some rows of a feature as float64, NaN where missing or infinite; and whether these are codes of categories."""
        kind, column = self.kinds[name], self.frame[name].iloc[rows]
        if kind.name == "number":
            found = self.numbers[name][rows]
            return np.where(np.isfinite(found), found, np.nan), False
        if kind.name == "boolean":
            return booleans(name, column), True
        if kind.name == "date":
            return days_of(column, kind.detail), False
        codes, _ = texts(column)
        return np.where(codes < 0, np.nan, codes), True

    def hashes(self) -> NDArray[np.uint64]:
        """[rows] a number for the features of each row."""
        pd = pandas()
        part = self.frame[list(self.kinds)].assign(**self.numbers)
        try:
            return np.asarray(pd.util.hash_pandas_object(part, index=False))
        except TypeError:  # values of several types in one column
            return np.asarray(pd.util.hash_pandas_object(part.astype(str), index=False))


def _is_constant(column: Series, values: NDArray[np.float64] | None) -> bool:
    """One value in every row; counting the distinct ones of a number column takes much longer."""
    if values is not None:
        return bool((values == values[:1]).all())
    return int(column.nunique(dropna=False)) <= 1
