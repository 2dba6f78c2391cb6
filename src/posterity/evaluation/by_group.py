"""Tables with a line per group of rows: none is pooled with another, however few rows it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from posterity.errors import DataError
from posterity.evaluation.groups import as_groups, group_values
from posterity.evaluation.rows import Rows

if TYPE_CHECKING:
    import pandas

__all__ = ["GroupTable", "groups_of", "in_order"]


@dataclass(frozen=True)
class GroupTable:
    """Columns of one length, a line per group, in JSON types; NaN where a value is undefined.

    >>> table = GroupTable({"by": ["all"], "n": [7]})
    >>> table["n"], len(table)
    ([7], 1)
    """

    columns: Mapping[str, list[Any]]

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Each line by the names of its columns."""
        for values in zip(*self.columns.values()):
            yield dict(zip(self.columns, values))

    def to_frame(self) -> pandas.DataFrame:
        """The same as a frame. Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
        return pandas.DataFrame(dict(self.columns))

    def __str__(self) -> str:
        cells = [list(self.columns), *([_shown(value) for value in line.values()] for line in self.lines())]
        widths = [max(map(len, column)) for column in zip(*cells)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def in_order(data: Any, groups: Any) -> dict[str, Any]:
    """Groups by name. Raises DataError where a loader shuffles, so that they would go to other rows."""
    named = as_groups(groups)
    if named and isinstance(getattr(data, "sampler", None), RandomSampler):
        raise DataError("the loader shuffles, so groups would go to other rows: give one that does not")
    return named


def groups_of(rows: Rows, groups: Mapping[str, Any], labels: Sequence[Any] = ()) -> Iterator[tuple[str, str, Tensor]]:
    """(by, group, [rows] indices), all rows first; with `labels`, by the true "class" and the "predicted" one last.

    Raises ShapeError where a grouping has not one value per row.
    """
    yield "all", "all", torch.arange(len(rows))
    parts = {name: group_values(name, values, rows) for name, values in groups.items()}
    if len(labels):
        names = np.array([str(label) for label in labels], dtype=object)
        parts |= {by: names[rows[column].numpy()] for by, column in (("class", "target"), ("predicted", "predicted"))}
    for by, values in parts.items():
        found, members = np.unique(values, return_inverse=True)
        for code, group in enumerate(found.tolist()):
            yield by, str(group), torch.from_numpy(np.flatnonzero(members == code))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4f}"
    return str(value)
