"""The column of a table that holds texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posterity.errors import DataError
from posterity.interfaces.tables.words import listed, rows_where, similar

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["texts_of"]


def texts_of(frame: DataFrame, name: str) -> list[str]:
    """The texts of a column.

    Raises DataError: an absent column, one of numbers, empty texts; the rows are named.
    """
    columns = list(map(str, frame.columns))
    if name not in columns:
        raise DataError(
            f"--text {name}: the table has no such column{similar(name, columns)}; its columns are {listed(columns, 20)}"
        )
    column = frame[name]
    empty = column.isna() | (column.astype(str).str.strip() == "")
    if bool(empty.any()):
        raise DataError(f"the text in column {name!r} is empty in {rows_where(empty)}: take these rows out")
    if column.dtype.kind in "biufcmM":
        raise DataError(f"column {name!r} holds numbers or dates, not texts: name another one with --text")
    return [str(text) for text in column]
