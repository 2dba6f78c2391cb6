"""`X` as a frame of known columns: a frame of pandas, polars or pyarrow as it is, numbers in an array by their place.

Columns are known by their place, as everywhere in scikit-learn, which checks their names: those of a frame of strings, else
x0, x1, ... What becomes of them is said by `interfaces.tables`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from posterity.errors import DataError
from posterity.interfaces.sklearn.needed import validate_data
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.read import to_frame
from posterity.interfaces.tables.words import pandas

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["encoded", "frame_of", "index_of", "speaking_python"]

_OPTION = re.compile(r" with --drop .*$", re.DOTALL)  # ends the sentence wherever it stands


def frame_of(estimator: Any, X: Any, reset: bool, least: int = 1) -> DataFrame:
    """A pandas frame of `X` with the names that training knows; `reset` makes its names and number those to know.

    Raises:
        ValueError, TypeError: other names or another number of columns than in training, sparse data, infinity, text in an
            array; fewer than `least` rows.
    """
    if _is_frame(X):
        validate_data(estimator, X=X, reset=reset, skip_check_array=True)
        with speaking_python():
            frame = to_frame(X)
        if len(frame) < least:
            raise DataError(f"Found array with {len(frame)} sample(s), while a minimum of {least} is required.")
    else:
        checks = {"dtype": "numeric", "ensure_all_finite": "allow-nan", "ensure_min_samples": least}
        try:
            array = validate_data(estimator, X=X, reset=reset, **checks)
        except ValueError as error:
            if "convert string" in str(error):
                raise DataError(
                    f"{error}: an array holds numbers; give text and categories as the columns of a pandas or polars frame"
                ) from error
            raise
        frame = pandas().DataFrame(array)
    given = getattr(estimator, "feature_names_in_", None)
    names = [f"x{i}" for i in range(frame.shape[1])] if given is None else [str(name).strip() for name in given]
    return frame.set_axis(names, axis="columns")


def index_of(X: Any) -> Any:
    """The index of a pandas frame, None of anything else."""
    return X.index if isinstance(X, pandas().DataFrame) else None


def encoded(columns: Columns, frame: DataFrame) -> Tensor:
    """[rows, width] float32. Raises DataError as `Columns.encode`."""
    with speaking_python():
        return columns.encode(frame)


@contextmanager
def speaking_python() -> Iterator[None]:
    """Errors about columns name the option of a command line that leaves them out: here it is done before the fit."""
    try:
        yield
    except DataError as error:
        told = _OPTION.sub(" before the fit", str(error))
        raise (error if told == str(error) else DataError(told)) from error.__cause__


def _is_frame(X: Any) -> bool:
    import narwhals

    found = narwhals.from_native(X, pass_through=True)
    if isinstance(found, narwhals.LazyFrame):
        raise DataError(f"a {type(X).__name__} has no rows yet: collect() it first")
    return isinstance(found, narwhals.DataFrame)
