"""What a bench is: pieces of work, the claims computed from their rows, and limits that the published claims keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Bench", "Cell", "Limit", "Row", "finite"]

Row: TypeAlias = dict[str, Any]
Cell: TypeAlias = Callable[[], list[Row]]


class Limit(NamedTuple):
    """The range of a claim, both ends in it; None where it is open.

    >>> str(Limit(high=1.5)), str(Limit(low=0.8)), str(Limit(0.97, 1.03))
    ('at most 1.5', 'at least 0.8', 'from 0.97 to 1.03')
    >>> Limit(high=1.5).holds(1.5), Limit(high=1.5).holds(float("nan"))
    (True, False)
    """

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the value is in the range; a NaN is not."""
        return value == value and (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high:.3g}"
        return f"at least {self.low:.3g}" if self.high is None else f"from {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class Bench:
    """One bench.

    Args:
        about: one line.
        cells: (quick, peers) -> the pieces of work by name.
        claims: the published numbers, from the rows of all cells.
        limits: the range of each claim that has one.
        shown: the fields of the rows that a terminal shows beside their cell; all unless given.
    """

    about: str
    cells: Callable[[bool, bool], Mapping[str, Cell]]
    claims: Callable[[list[Row]], dict[str, float]]
    limits: Mapping[str, Limit]
    shown: tuple[str, ...] = ()


def finite(value: float) -> float | None:
    """A number of a row, which JSON can hold: None where it is not finite.

    >>> finite(0.5), finite(float("inf"))
    (0.5, None)
    """
    return value if math.isfinite(value) else None
