"""Step sizes over the length of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Cosine", "Schedule", "at"]


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up to `peak`, then half a cosine down to `final`.

    Args:
        peak: largest value, > 0.
        warmup: share of the steps that rise from 0, in [0, 1).
        final: value at the last step, as a share of the peak, in [0, 1].

    >>> [round(Cosine(1.0)(t, 5), 3) for t in range(5)]
    [1.0, 0.905, 0.655, 0.345, 0.095]
    """

    peak: float
    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        if not (self.peak > 0 and math.isfinite(self.peak)):
            raise ValueError(f"peak must be finite and > 0, got {self.peak}")
        if not (0.0 <= self.warmup < 1.0 and 0.0 <= self.final <= 1.0):
            raise ValueError(f"warmup must lie in [0, 1) and final in [0, 1], got {self.warmup} and {self.final}")

    def __call__(self, step: int, steps: int) -> float:
        progress = step / max(steps, 1)
        if progress < self.warmup:
            return self.peak * (step + 1) / (self.warmup * steps + 1)
        turn = min((progress - self.warmup) / (1.0 - self.warmup), 1.0)
        return self.peak * (self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * turn)))


Schedule = Cosine | float


def at(schedule: Schedule, step: int, steps: int) -> float:
    """The value at `step` of `steps`; a number is constant."""
    return schedule(step, steps) if isinstance(schedule, Cosine) else float(schedule)
