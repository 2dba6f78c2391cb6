"""The two kinds of rows that a pretrained network takes: files of pictures, and texts in a column of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from posterity.errors import DataError
from posterity.interfaces.pretrained.backbones import Kind
from posterity.interfaces.pretrained.content import file_keys, text_keys
from posterity.interfaces.pretrained.pictures import FILE, read_pictures
from posterity.interfaces.pretrained.pixels import opened
from posterity.interfaces.pretrained.texts import texts_of
from posterity.interfaces.tables.read import read_table

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Source"]

_THUMBNAIL = 96  # pixels of a picture's longer side in a report


@dataclass(frozen=True)
class Source:
    """Where rows are found in a frame.

    Args:
        kind: "image" or "text".
        column: that holds the texts, or the paths of the files.
    """

    kind: Kind
    column: str = FILE

    def read(self, path: Path, tell: Callable[[str], None]) -> DataFrame:
        """The frame of a folder of pictures, or of a table. Raises DataError: as `read_pictures` and `read_table`."""
        if self.kind == "image":
            return read_pictures(path, tell)
        return read_table(path, tell)

    def rows(self, frame: DataFrame) -> list[str]:
        """Paths or texts. Raises DataError: not there, or empty."""
        if self.kind == "text":
            return texts_of(frame, self.column)
        if self.column not in frame.columns:
            raise DataError(f"a frame of pictures has the column {self.column!r} with their paths")
        return [str(path) for path in frame[self.column]]

    def keys(self, rows: list[str]) -> Tensor:
        """[rows] int64, equal for equal contents."""
        return file_keys(rows) if self.kind == "image" else text_keys(rows)

    def shown(self, rows: list[str]) -> Callable[[int], Any]:
        """What a row looks like in a report: the picture with its file's name, or the text."""
        if self.kind == "text":
            return lambda row: rows[row]

        def show(row: int) -> tuple[str, Any]:
            picture = opened(rows[row])
            picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
            return Path(rows[row]).name, np.array(picture)

        return show
