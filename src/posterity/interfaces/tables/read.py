"""Tables from and to files: CSV in whatever dialect it comes, and Parquet.

What was found out about a file (separator, decimal sign, encoding) is in `frame.attrs["said"]`, a list of sentences.
Missing are pandas' own markers ("", NA, NaN, null, None, n/a, ...) and "?". Blanks around names and values are stripped.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.errors import DataError
from posterity.interfaces.tables.dialect import MISSING, Dialect, find_ragged, sniff
from posterity.interfaces.tables.words import listed, pandas, plural
from posterity.posterior.files import atomic

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["SUFFIXES", "read_table", "to_frame", "write_table"]

_TEXT = (".csv", ".tsv", ".txt")
SUFFIXES = (*_TEXT, *(f"{suffix}.gz" for suffix in _TEXT), ".parquet")

_DECIMAL_COMMA = r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+"
_GROUPED = r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d{1,3})(?:\.\d+)?"
_QUOTED_COMMA = r"[+-]?\d+(?:,\d+)?"
_WHOLE = r"[+-]?\d+"


def read_table(path: str | os.PathLike[str], tell: Callable[[str], None] = lambda line: None) -> DataFrame:
    """The table in a file, its index 0, 1, 2, ...

    Args:
        path: .csv, .tsv, .txt (each also with .gz) or .parquet. Text is UTF-8 (or UTF-16 with its mark), with a header;
            the separator is one of `,` `;` tab `|`; a decimal comma is recognised where the separator is another sign.
        tell: hears what was decided on the way, which `attrs["said"]` of the frame holds too.

    Raises:
        DataError: absent, a folder, empty, no rows, not text, ragged lines, names that are missing or twice there,
            unreadable Parquet; a suffix that is none of the above.
        ImportError: the extra `tables` is not installed.
    """
    path = Path(path)
    suffix = _suffix(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder: name the table in it")
    if not path.exists():
        raise DataError(f"{path} does not exist: check the path (the current folder is {Path.cwd()})")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a table has a header and at least one row")
    try:
        frame = _read_parquet(path) if suffix == ".parquet" else _read_text(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not len(frame):
        raise DataError(f"{path} has a header and no rows: add rows")
    for line in frame.attrs.get("said", ()):
        tell(line)
    return frame


def write_table(frame: DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table without its index, whole or not at all; the suffix says how, as in `read_table`.

    Raises:
        DataError: another suffix.
        StorageError: it cannot be written.
    """
    path = Path(path)
    suffix = _suffix(path)
    with atomic(path) as file:
        if suffix == ".parquet":
            _pyarrow()
            frame.to_parquet(file, index=False)
            return
        packed = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if suffix.endswith(".gz") else None
        text = io.TextIOWrapper(packed or file, encoding="utf-8", newline="")
        frame.to_csv(text, index=False, sep="\t" if suffix.startswith(".tsv") else ",", lineterminator="\n")
        text.flush()
        text.detach()
        if packed is not None:
            packed.close()


def to_frame(data: Any) -> DataFrame:
    """A pandas frame with names of type str and the index 0, 1, 2, ..., from pandas, from a dict of columns, or from
    whatever narwhals knows (polars, pyarrow, ...). Columns are not copied.

    Raises:
        DataError: something else, or a name that two columns have.
    """
    pd = pandas()
    if isinstance(data, pd.DataFrame):
        frame = data
    elif isinstance(data, Mapping):
        frame = pd.DataFrame(dict(data))
    else:
        try:
            import narwhals
        except ImportError as error:
            raise ImportError("frames of other libraries need narwhals: pip install 'posterity[tables]'") from error
        try:
            frame = narwhals.from_native(data, eager_only=True).to_pandas()
        except (TypeError, AttributeError) as error:
            raise DataError(f"a table is a pandas or polars frame, got {type(data).__name__}") from error
    names = [str(name).strip() for name in frame.columns]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"columns of one name: {listed(twice)}; every column needs its own")
    if names != list(frame.columns) or not isinstance(frame.index, pd.RangeIndex) or frame.index.start != 0:
        frame = frame.reset_index(drop=True)
        frame.columns = names
    return frame


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path} is no table that can be read or written: its name must end in {', '.join(SUFFIXES)}")


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'posterity[tables]'") from error
    return pyarrow


def _read_parquet(path: Path) -> DataFrame:
    pd, pyarrow = pandas(), _pyarrow()
    try:
        frame = pd.read_parquet(path)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a Parquet file that can be read: {reason}; write it again") from error
    said = []
    if not isinstance(frame.index, pd.RangeIndex):
        named = [name for name in frame.index.names if name is not None]
        frame = frame.reset_index(level=named) if named else frame
        said = [
            f"the index {listed(named)} is read as a column" if named else "the index, which has no name, is left out"
        ]
    try:
        frame = to_frame(frame)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    frame.attrs = {"said": said}
    return frame


def _read_text(path: Path) -> DataFrame:
    try:
        dialect = sniff(path)
        first = _parse(path, dialect, ".", rows=1000)
        decimal = _decimal_sign(path, first, dialect)
        frame = _parse(path, dialect, decimal)
        if decimal == "." and _decimal_sign(path, frame, dialect) == ",":  # the first 1000 rows were whole numbers
            decimal, frame = ",", _parse(path, dialect, ",")
    except UnicodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): save it as 'CSV UTF-8'") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): pack it again") from error
    # A line that is too short has nothing in its last column; only then is a look at every line needed.
    if len(frame) and frame.iloc[:, -1].isna().any() and (ragged := find_ragged(path, dialect)):
        raise DataError(ragged)
    frame.attrs["said"] = [*dialect.said, *(["numbers are written with a decimal comma"] if decimal == "," else [])]
    for name in frame.columns:
        if _is_text(frame[name]):
            frame[name] = column = _stripped(frame[name], decimal)
            if dialect.separator == "," and (grouped := _grouped(column)) is not None:
                frame[name] = column = grouped
                frame.attrs["said"].append(f"column {name!r}: commas between groups of three digits are left out")
            elif dialect.separator == "," and (fractions := _quoted_commas(column)) is not None:
                frame[name] = column = fractions
                frame.attrs["said"].append(f"column {name!r}: numbers in quotes with a decimal comma")
            if _is_text(column) and (count := int(column.str.contains("\n", regex=False, na=False).sum())):
                frame.attrs["said"].append(
                    f"column {name!r} holds values over several lines in {plural(count, 'row')} (quotes in text?)"
                )
    return frame


def _parse(path: Path, dialect: Dialect, decimal: str, rows: int | None = None) -> DataFrame:
    pd = pandas()
    try:
        frame = pd.read_csv(
            path, sep=dialect.separator, encoding=dialect.encoding, decimal=decimal, nrows=rows, na_values=list(MISSING),
            thousands="." if decimal == "," else None, skipinitialspace=True, low_memory=False,
            compression="gzip" if path.name.lower().endswith(".gz") else None,
        )  # fmt: skip
    except pd.errors.ParserError as error:
        if open_quote := re.search(r"EOF inside string starting at row (\d+)", str(error)):
            where = f"{path}, line {int(open_quote[1]) + 1}"
            raise DataError(f"{where}: a quote is opened and never closed: double or remove it") from error
        raise DataError(find_ragged(path, dialect) or f"{path} cannot be read as a table: {error}") from error
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty: a table has a header and at least one row") from error
    frame.columns = list(dialect.names)
    return frame


def _is_text(column: Series) -> bool:
    """Strings and gaps only: booleans with gaps are objects, too."""
    return column.dtype.kind not in "iufb" and pandas().api.types.infer_dtype(column, skipna=True) == "string"


def _decimal_sign(path: Path, frame: DataFrame, dialect: Dialect) -> str:
    """A comma where a column of text holds nothing but numbers with a decimal comma."""
    if dialect.separator == ",":
        return "."
    comma = []
    for name in frame.columns:
        if _is_text(frame[name]):
            filled = frame[name].dropna().astype(str).str.strip()
            numeric = filled.str.fullmatch(f"(?:{_DECIMAL_COMMA})|(?:{_WHOLE})")
            if len(filled) and bool(numeric.all()):
                comma.append(name)
    if not comma:
        return "."
    points = [name for name in frame.columns if frame[name].dtype.kind == "f" and (frame[name] % 1 > 0).any()]
    if points:
        raise DataError(
            f"{path}: column {comma[0]!r} has a decimal comma and column {points[0]!r} a decimal point: use one of them"
        )
    return ","


def _grouped(column: Series) -> Series | None:
    """Numbers written as "1,234,567.8", all of them; None where one is not."""
    if not _is_text(column) or not bool(column.str.contains(",", regex=False, na=False).any()):
        return None
    if not bool(column.dropna().str.fullmatch(_GROUPED).all()):
        return None
    return pandas().to_numeric(column.str.replace(",", "", regex=False))


def _quoted_commas(column: Series) -> Series | None:
    """Numbers in quotes written as "0,346", all of them; None where one is not."""
    if not _is_text(column) or not bool(column.str.contains(",", regex=False, na=False).any()):
        return None
    if not bool(column.dropna().str.fullmatch(_QUOTED_COMMA).all()):
        return None
    return pandas().to_numeric(column.str.replace(",", ".", regex=False))


def _stripped(column: Series, decimal: str) -> Series:
    """Without blanks at the end; what is then a missing marker or a number counts as one."""
    stripped = column.str.strip()
    if bool((stripped == column).where(column.notna(), True).all()):
        return column
    stripped = stripped.mask(stripped.isin([*MISSING, "", "NA", "N/A", "NaN", "nan", "null", "None"]))
    plain = stripped.str.replace(",", ".", regex=False) if decimal == "," else stripped
    try:
        return pandas().to_numeric(plain)
    except (ValueError, TypeError):
        return stripped
