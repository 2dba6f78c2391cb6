"""A folder of pictures as a frame: a row per file, its class by the folder it is in.

ants/1.jpg, bees/7.png                   classes
train/ants/1.jpg, test/bees/7.png        parts (train, val, test) above the classes
1.jpg, 2.jpg                             no classes: to be predicted
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from posterity.errors import DataError
from posterity.interfaces.tables.split import PARTS
from posterity.interfaces.tables.words import pandas, plural

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["CLASS", "FILE", "PART", "read_pictures"]

FILE, CLASS, PART = "file", "class", "part"
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def read_pictures(folder: Path, tell: Callable[[str], None] = lambda line: None) -> DataFrame:
    """The pictures of a folder in the order of their names: columns file, and class and part where its folders say so.

    Args:
        tell: hears of files that are left out.

    Raises:
        DataError: absent, no folder, no pictures; pictures both in folders and beside them.
    """
    if not folder.exists():
        raise DataError(f"{folder} does not exist: check the path (the current folder is {Path.cwd()})")
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: pictures are read from a folder")
    files = sorted(
        path for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    )  # fmt: skip
    pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
    others = [path for path in files if path.suffix.lower() not in SUFFIXES]
    if not pictures:
        raise DataError(f"{folder} holds no pictures: they end in {', '.join(SUFFIXES)}")
    if others:
        tell(f"{plural(len(others), 'file')} in {folder} left out, by the ending no pictures: {others[0].name}")
    inside = [path.relative_to(folder).parts for path in pictures]
    parts = all(part[0].lower() in PARTS for part in inside)
    depth = 2 if parts else 1
    classed = [len(part) > depth for part in inside]
    if any(classed) and not all(classed):
        beside = pictures[classed.index(False)]
        raise DataError(
            f"{folder} holds pictures in folders, which are classes, and {plural(classed.count(False), 'picture')} beside "
            f"them such as {beside}: put each into the folder of its class"
        )
    columns = {FILE: [str(path) for path in pictures]}
    if all(classed):
        columns[CLASS] = [part[depth - 1] for part in inside]
    if parts:
        columns[PART] = [part[0] for part in inside]
    return pandas().DataFrame(columns)
