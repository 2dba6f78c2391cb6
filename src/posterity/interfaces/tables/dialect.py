"""How a text table is written: encoding, separator, names; and the line that does not fit."""

from __future__ import annotations

import csv
import gzip
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from posterity.errors import DataError
from posterity.interfaces.tables.words import listed, plural

__all__ = ["MISSING", "SEPARATORS", "Dialect", "find_ragged", "sniff"]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MISSING = ("?",)  # beside pandas' own markers

_LINES = 200  # records that the separator is sniffed from
_HEAD = 1 << 16


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, and its names."""

    encoding: str
    separator: str
    names: tuple[str, ...]
    said: tuple[str, ...] = ()


def sniff(path: Path) -> Dialect:
    """Look at the head of a file.

    Raises:
        DataError: binary content; a name that is missing or there twice; no header; a second line of another length.
    """
    encoding = _encoding(path)
    best: tuple[int, bool, int] | None = None
    separator, records = ",", []
    for candidate in SEPARATORS:
        found = list(itertools.islice(_records(path, encoding, candidate), _LINES))
        if not found:
            raise DataError(f"{path} is empty: a table has a header and at least one row")
        width = len(found[0][1])
        fitting = sum(len(fields) == width for _, fields in found)
        rank = (int(width > 1) * (1 + int(fitting == len(found))), fitting * 2 > len(found), width)
        if best is None or rank > best:
            best, separator, records = rank, candidate, found
    if len(records[0][1]) == 1 and _decimals(records[1:]):
        separator, records = ";", list(itertools.islice(_records(path, encoding, ";"), _LINES))
    elif len(records[0][1]) == 1:
        _refuse_hidden_columns(path, encoding)
    names = _names(path, records[0][1])
    said = [f"read with {SEPARATORS[separator]} between the columns"] if separator != "," and len(names) > 1 else []
    said += [f"read as {encoding.upper()} text"] if encoding == "utf-16" else []
    if len(records) > 1 and len(records[1][1]) != len(names):
        raise DataError(_misfit(path, *records[1], len(names)))
    return Dialect(encoding, separator, names, tuple(said))


def _decimals(records: list[tuple[int, list[str]]]) -> bool:
    """Whether a single column, split at its commas, holds decimal commas."""
    return all(len(fields) <= 2 and all(part.strip(" +-").isdigit() for part in fields) for _, fields in records)


def _refuse_hidden_columns(path: Path, encoding: str) -> None:
    """DataError where only the first line is a single column, or where the separator is a blank."""
    for candidate in SEPARATORS:
        found = list(itertools.islice(_records(path, encoding, candidate), _LINES))
        widths = {len(fields) for _, fields in found[1:]}
        if len(found[0][1]) == 1 and len(widths) == 1 and widths != {1}:
            raise DataError(_misfit(path, *found[1], 1))
    words = {len(fields[0].split()) for _, fields in found}
    if len(words) == 1 and words != {1}:
        raise DataError(
            f"{path}: the columns are separated by blanks: separate them with commas, semicolons, tabs or bars"
        )


def find_ragged(path: Path, dialect: Dialect) -> str:
    """What is wrong with the first line that has more or fewer values than the header; "" where all fit."""
    for line, fields in _records(path, dialect.encoding, dialect.separator):
        if len(fields) != len(dialect.names):
            return _misfit(path, line, fields, len(dialect.names))
    return ""


def _misfit(path: Path, line: int, fields: list[str], columns: int) -> str:
    if any(value.count("\n") > 20 for value in fields):
        return f"{path}, line {line}: a quote is opened and closed much later or never: double or remove it"
    return (
        f"{path}, line {line}: {plural(len(fields), 'value')} where the header has {plural(columns, 'column')}: "
        "correct the line, or quote values that hold the separator"
    )


def _encoding(path: Path) -> str:
    with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as file:
        head = file.read(_HEAD)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\r\f")
    if b"\0" in head or controls > len(head) / 100:
        raise DataError(f"{path} is not text: a table is CSV text or, with the suffix .parquet, Parquet")
    return "utf-8-sig"


def _open(path: Path, encoding: str) -> TextIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return open(path, encoding=encoding, newline="")


def _records(path: Path, encoding: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line, and the values, of each record that is not blank."""
    with _open(path, encoding) as file:
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
        line = 1
        try:
            for fields in reader:
                if fields and (len(fields) > 1 or fields[0].strip()):
                    yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(f"{path}, line {line}: {error}") from error


def _names(path: Path, header: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in header]
    if len(names) == 1 and not names[0]:
        raise DataError(f"{path} has no header: its first line must name the columns")
    if unnamed := [index + 1 for index, name in enumerate(names) if not name]:
        where = ", ".join(map(str, unnamed[:10]))
        raise DataError(
            f"{path}: {'columns' if len(unnamed) > 1 else 'column'} {where} (counted from 1) of the header "
            f"{'have' if len(unnamed) > 1 else 'has'} no name: name it, or remove it (pandas writes none with index=False)"
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: the header names {listed(twice)} more than once: every column needs its own name")
    if all(map(_is_number, names)) and names != [str(index) for index in range(len(names))]:
        raise DataError(f"{path} has no header: its first line holds numbers ({listed(names, 3)}); add a line of names")
    return tuple(names)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True
