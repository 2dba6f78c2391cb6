"""`Columns`: what training rows taught about the features of a table, and the tensor that any later table becomes.

Which kind a column is says `kinds`, how a kind is encoded says `encoders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.interfaces.tables.encoders import (
    Boolean,
    Category,
    Date,
    Encoder,
    Number,
    encoder_from_json,
)
from posterity.interfaces.tables.kinds import Kind, digest, kind_of, numbers
from posterity.interfaces.tables.read import to_frame
from posterity.interfaces.tables.words import listed, option, pandas, plural, similar

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["Columns"]

_SAME = 1e-14  # numbers whose range is this share of their size differ by rounding only


@dataclass(frozen=True)
class Columns:
    """The learned encoder of a table's features.

    Args:
        encoders: one per column that is used, in the order of the training table.
        ignored: columns that training saw and left out: on request, constant, doubled, or empty.
        said: what was decided, one sentence each.
    """

    encoders: tuple[Encoder, ...]
    ignored: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @classmethod
    def learn(cls, frame: DataFrame, leave_out: Iterable[str] = (), drop: Iterable[str] = ()) -> Columns:
        """Learn from training rows.

        Args:
            leave_out: columns that are no features (the target, the split's); absent ones do not matter.
            drop: columns that the user wants left out.

        Raises:
            DataError: no rows, a column in `drop` that is absent, free text or unusable values (all such columns are named
                with the options that drop them), dates that can be read in two ways, infinity, no feature that varies.
        """
        frame = to_frame(frame)
        if not len(frame):
            raise DataError("the table has no rows: columns are learned from at least one")
        _check_present(frame, drop := list(drop))
        said = [f"left out on request: {listed(drop)}"] if drop else []
        without = {*map(str, leave_out), *drop}
        ignored = [name for name in frame.columns if name in without]
        kinds = {name: kind_of(name, frame[name]) for name in frame.columns if name not in without}
        _refuse_text(kinds)
        encoders: list[Encoder] = []
        seen: dict[bytes, str] = {}
        for name, kind in kinds.items():
            reason = f"column {name!r} {kind.detail}" if kind.name == "empty" else _constant(name, frame[name], kind)
            if not reason:
                other = seen.setdefault(digest(kind, name, frame[name]), name)
                reason = f"column {name!r} holds the same as {other!r}" if other != name else ""
            if reason:
                ignored.append(name)
                said.append(f"{reason}: ignored")
                continue
            encoders.append(_learn(name, frame[name], kind))
        if not encoders:
            raise DataError(
                f"no feature is left to learn from among {plural(len(frame.columns), 'column')}"
                f"{': ' + '; '.join(said) if said else ''}"
            )
        return cls(tuple(encoders), tuple(ignored), (*said, *_told(encoders)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, such as "temp", "season=2", "date: week-day sin", "age missing"."""
        return tuple(name for encoder in self.encoders for name in encoder.inputs)

    @property
    def width(self) -> int:
        """How many inputs there are."""
        return len(self.names)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a later table must have."""
        return tuple(encoder.name for encoder in self.encoders)

    def encode(self, frame: DataFrame) -> Tensor:
        """[rows, width] float32, finite, from a table whose columns come in any order; others are not looked at.

        Raises:
            DataError: no rows, needed columns that are absent, a value of the wrong type (named with column and rows),
                infinity.
        """
        frame = self._checked(frame)
        if not len(frame):
            raise DataError("the table has no rows")
        out = np.empty((len(frame), self.width), dtype=np.float32)
        start = 0
        for encoder in self.encoders:
            stop = start + len(encoder.inputs)
            encoder.fill(frame[encoder.name], out[:, start:stop])
            start = stop
        return torch.from_numpy(out)

    def foreign(self, frame: DataFrame) -> list[str]:
        """Columns that training did not see."""
        known = {*self.needed, *self.ignored}
        return [str(name) for name in frame.columns if str(name) not in known]

    def unseen(self, frame: DataFrame) -> dict[str, int]:
        """For each category, how many rows hold a level that training did not have (they are encoded as zeros)."""
        frame = self._checked(frame)
        counts = {encoder.name: encoder.unseen(frame[encoder.name]) for encoder in self.encoders}
        return {name: count for name, count in counts.items() if count}

    def imputed(self, frame: DataFrame) -> dict[str, int]:
        """For each column that had no missing values in training, how many are missing here (the network cannot tell them
        from the filled value)."""
        frame = self._checked(frame)
        counts = {
            encoder.name: int(frame[encoder.name].isna().sum()) for encoder in self.encoders if not encoder.missing
        }
        return {name: count for name, count in counts.items() if count}

    def about(self, frame: DataFrame, row: int) -> str:
        """A row in a few words: at most 5 columns, such as "temp=0.3, season=2, date=2011-03-04"."""
        frame = self._checked(frame)
        return ", ".join(f"{encoder.name}={_short(frame[encoder.name].iloc[row])}" for encoder in self.encoders[:5])

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON; `from_json` gives back a `Columns` that encodes the same bits."""
        return {
            "encoders": [encoder.to_json() for encoder in self.encoders],
            "ignored": list(self.ignored),
            "said": list(self.said),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Columns:
        """What `to_json` gave."""
        encoders = tuple(encoder_from_json(each) for each in content["encoders"])
        return cls(encoders, tuple(content["ignored"]), tuple(content["said"]))

    def _checked(self, frame: DataFrame) -> DataFrame:
        frame = to_frame(frame)
        present = list(frame.columns)
        if absent := [name for name in self.needed if name not in present]:
            others = self.foreign(frame)
            raise DataError(
                f"the table lacks {plural(len(absent), 'column')} that the model was trained on: {listed(absent)}"
                f"{similar(absent[0], others)}"
            )
        return frame


def _check_present(frame: DataFrame, drop: list[str]) -> None:
    for name in drop:
        if name not in frame.columns:
            known = list(frame.columns)
            raise DataError(
                f"{option('--drop', name)}: the table has no such column{similar(name, known)}; it has {listed(known, 20)}"
            )


def _refuse_text(kinds: Mapping[str, Kind]) -> None:
    bad = {name: kind for name, kind in kinds.items() if kind.name in ("text", "unusable")}
    if bad:
        found = "; ".join(f"column {name!r} {kind.detail}" for name, kind in bad.items())
        options = " ".join(option("--drop", name) for name in bad)
        raise DataError(f"{found}: leave {'it' if len(bad) == 1 else 'them'} out with {options}")


def _constant(name: str, column: Series, kind: Kind) -> str:
    """Why a column tells nothing, or "". One value with gaps tells something: where the gaps are."""
    if bool(column.isna().any()):
        return ""
    if kind.name == "number":
        values = numbers(name, column)
        low, high = float(values.min()), float(values.max())
        if high / 2 - low / 2 > _SAME * max(abs(low), abs(high)) / 2:
            return ""
    elif column.nunique() > 1:
        return ""
    return f"column {name!r} is {_short(column.iloc[0])} in every row"


def _learn(name: str, column: Series, kind: Kind) -> Encoder:
    if kind.name == "date":
        return Date.learn(name, column, kind.detail)
    if kind.name == "boolean":
        return Boolean.learn(name, column)
    return Number.learn(name, column) if kind.name == "number" else Category.learn(name, column)


def _told(encoders: Iterable[Encoder]) -> list[str]:
    said = []
    for encoder in encoders:
        if isinstance(encoder, Category):
            rare = f", of which {len(encoder.rare)} held by one row share 'other'" if encoder.rare else ""
            said.append(f"column {encoder.name!r}: {len(encoder.levels) + len(encoder.rare)} categories{rare}")
        if isinstance(encoder, Date):
            cycles = f" and its {', '.join(encoder.cycles)}" if encoder.cycles else ""
            lenient = "; values that are no dates count as missing" if encoder.lenient else ""
            said.append(f"column {encoder.name!r}: dates, as days since the first{cycles}{lenient}")
        if isinstance(encoder, Number) and encoder.scale.heavy:
            said.append(
                f"column {encoder.name!r}: few rows are far from the others; scaled by its middle 68 %, the far ones by "
                "their logarithm"
            )
    filled = [encoder.name for encoder in encoders if encoder.missing and not isinstance(encoder, Category)]
    if filled:
        said.append(f"missing values filled with the training median, and flagged: {listed(filled)}")
    return said


def _short(value: Any) -> str:
    if pandas().api.types.is_scalar(value) and pandas().isna(value):
        return "missing"
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("T", " ").removesuffix(" 00:00:00")
    text = str(value).strip()
    return text if len(text) <= 40 else f"{text[:37]}..."
