"""How one column becomes inputs of a network.

    number      f((x - center) / spread)                        and 1 where missing, if training had missing values
    boolean     1 or 0
    category    1 for its level, else 0; rare levels share "other", missing is a level of its own
    date        f(days), and sin and cos of the year, the week and the day where they come round

    f(z) = z for |z| <= 10,   sign(z) 10 (1 + log(|z| / 10)) beyond

f keeps order and is smooth (slope 1 at the knee): a row far from training is told apart from one still farther, and 1e300
does not become infinite. Missing numbers and dates are filled with the training median, booleans with the share of true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from posterity.errors import DataError
from posterity.interfaces.tables.dates import days_of
from posterity.interfaces.tables.kinds import booleans, level_counts, numbers, texts
from posterity.interfaces.tables.words import listed, rows_where

if TYPE_CHECKING:
    from pandas import Series

__all__ = ["Boolean", "Category", "Date", "Encoder", "Number", "Scale", "encoder_from_json"]

KNEE = 10.0
OTHER, GONE = "other", "missing"

_YEAR, _WEEK, _DAY = 365.2425, 7.0, 1.0
_ROUND = 0.9  # a cycle enters once the training rows span this share of it: before, it only repeats the trend


@dataclass(frozen=True)
class Scale:
    """z = (x - center) / spread: mean and std; or, where few rows make the std (it is above four times the half width of the
    middle 68 %), the median and that half width."""

    center: float
    spread: float
    heavy: bool = False

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Scale:
        """From filled values, float64 throughout, scaled so that squares do not overflow; the spread of equal ones is 1."""
        size = float(np.abs(values).max()) or 1.0
        scaled = values / size
        std = float(scaled.std())
        low, middle, high = (float(edge) for edge in np.quantile(scaled, [0.1587, 0.5, 0.8413]))
        half = (high - low) / 2
        if 0 < 4 * half < std:
            return cls(middle * size, half * size, True)
        return cls(float(scaled.mean()) * size, std * size or 1.0)

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """f((x - center) / spread)."""
        with np.errstate(over="ignore"):
            z = np.clip((values - self.center) / self.spread, -1e300, 1e300)
        far = np.abs(z) > KNEE
        z[far] = np.sign(z[far]) * KNEE * (1 + np.log(np.abs(z[far]) / KNEE))
        return z


@dataclass(frozen=True)
class Encoder(ABC):
    """A column with what training taught about it: `inputs` are the names of what `fill` writes.

    `missing`: training had missing values, so that they have an input, the last one.
    """

    name: str
    missing: bool

    kind: ClassVar[str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what is written: the column itself, and whether its value is missing."""
        return (self.name, f"{self.name} {GONE}")[: 1 + self.missing]

    @abstractmethod
    def fill(self, column: Series, out: NDArray[np.float32]) -> None:
        """Write `out` [rows, inputs]; DataError names the rows that cannot be read."""

    def unseen(self, column: Series) -> int:
        """Rows with a level that training did not have."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """Its kind, and its fields by name."""
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        fields: dict[str, Any] = {name: value for name, value in content.items() if name != "kind"}
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(value)
            elif name == "scale":
                fields[name] = Scale(**value)
        return cls(**fields)


@dataclass(frozen=True)
class Number(Encoder):
    """A standardised number."""

    scale: Scale
    median: float

    kind: ClassVar[str] = "number"

    @classmethod
    def learn(cls, name: str, column: Series) -> Number:
        """From training rows."""
        values = numbers(name, column)
        filled = values[~np.isnan(values)]
        return cls(name, len(filled) < len(values), Scale.of(filled), _median(filled))

    def fill(self, column: Series, out: NDArray[np.float32]) -> None:
        values = numbers(self.name, column)
        gone = np.isnan(values)
        values[gone] = self.median
        out[:, 0] = self.scale(values)
        if self.missing:
            out[:, 1] = gone


@dataclass(frozen=True)
class Boolean(Encoder):
    """1 or 0."""

    share: float

    kind: ClassVar[str] = "boolean"

    @classmethod
    def learn(cls, name: str, column: Series) -> Boolean:
        values = booleans(name, column)
        return cls(name, bool(np.isnan(values).any()), float(np.nanmean(values)))

    def fill(self, column: Series, out: NDArray[np.float32]) -> None:
        values = booleans(self.name, column)
        gone = np.isnan(values)
        out[:, 0] = np.where(gone, self.share, values)
        if self.missing:
            out[:, 1] = gone


@dataclass(frozen=True)
class Category(Encoder):
    """One input per level that at least two training rows hold; `rare` ones share one; unseen ones are zero everywhere."""

    levels: tuple[str, ...]
    rare: tuple[str, ...]

    kind: ClassVar[str] = "category"

    @classmethod
    def learn(cls, name: str, column: Series) -> Category:
        counts = level_counts(column)
        levels = tuple(sorted(level for level, count in counts.items() if count > 1))
        rare = tuple(sorted(level for level, count in counts.items() if count == 1))
        return cls(name, bool(column.isna().any()), levels, rare)

    @property
    def inputs(self) -> tuple[str, ...]:
        special = [f"{self.name} {OTHER}"] * bool(self.rare) + [f"{self.name} {GONE}"] * self.missing
        return (*(f"{self.name}={level}" for level in self.levels), *special)

    def _slots(self, column: Series) -> NDArray[np.int64]:
        """[rows] the input that is 1; -1 where missing and -2 where unseen."""
        slots = {level: index for index, level in enumerate(self.levels)} | {
            level: len(self.levels) for level in self.rare
        }
        codes, found = texts(column)
        gone = len(self.inputs) - 1 if self.missing else -1
        return np.array([*(slots.get(value, -2) for value in found), gone], dtype=np.int64)[codes]

    def fill(self, column: Series, out: NDArray[np.float32]) -> None:
        slots = self._slots(column)
        for index in range(out.shape[1]):
            out[:, index] = slots == index

    def unseen(self, column: Series) -> int:
        return int((self._slots(column) == -2).sum())


@dataclass(frozen=True)
class Date(Encoder):
    """Days since the first training date, standardised, and the cycles among "year", "week-day" and "hour" that vary."""

    layout: str
    first: float
    scale: Scale
    median: float
    lenient: bool
    cycles: tuple[str, ...]

    kind: ClassVar[str] = "date"

    @classmethod
    def learn(cls, name: str, column: Series, layout: str) -> Date:
        days = days_of(column, layout)
        filled = days[~np.isnan(days)]
        first, span = float(filled.min()), float(np.ptp(filled))
        cycles = []
        if span >= _ROUND * _YEAR:
            cycles.append("year")
        if span >= _ROUND * (_WEEK - 1) and len(np.unique(np.floor(filled) % _WEEK)) > 1:
            cycles.append("week-day")
        if span >= _ROUND * _DAY and len(np.unique(np.round(filled % _DAY, 5))) > 1:
            cycles.append("hour")
        lenient = bool((np.isnan(days) & column.notna().to_numpy()).any())
        since = filled - first
        missing = len(filled) < len(days)
        return cls(name, missing, layout, first, Scale.of(since), _median(since), lenient, tuple(cycles))

    @property
    def inputs(self) -> tuple[str, ...]:
        waves = [f"{self.name}: {cycle} {wave}" for cycle in self.cycles for wave in ("sin", "cos")]
        return (f"{self.name}: days", *waves, *([f"{self.name} {GONE}"] * self.missing))

    def fill(self, column: Series, out: NDArray[np.float32]) -> None:
        days = days_of(column, self.layout)
        gone = np.isnan(days)
        bad = gone & column.notna().to_numpy()
        if bad.any() and not self.lenient:
            value = str(column.iloc[int(np.flatnonzero(bad)[0])])
            example = "2011-03-04" if self.layout == "iso" else self.layout
            raise DataError(f"column {self.name!r} holds {value!r}, which is no date ({example}), in {rows_where(bad)}")
        days[gone] = self.first + self.median
        out[:, 0] = self.scale(days - self.first)
        for index, cycle in enumerate(self.cycles):
            phase = {"year": days / _YEAR, "week-day": np.floor(days) / _WEEK, "hour": days / _DAY}[cycle]
            out[:, 1 + 2 * index] = np.sin(2 * np.pi * (phase % 1))
            out[:, 2 + 2 * index] = np.cos(2 * np.pi * (phase % 1))
        if self.missing:
            out[:, -1] = gone


def encoder_from_json(content: Mapping[str, Any]) -> Encoder:
    """The encoder that `to_json` described."""
    kinds: dict[str, type[Encoder]] = {kind.kind: kind for kind in (Number, Boolean, Category, Date)}
    if content.get("kind") not in kinds:
        raise DataError(f"unknown kind of column {content.get('kind')!r}: the known ones are {listed(kinds)}")
    return kinds[content["kind"]].from_json(content)


def _median(values: NDArray[np.float64]) -> float:
    """The lower median: a value that occurs."""
    return float(np.quantile(values, 0.5, method="lower"))
