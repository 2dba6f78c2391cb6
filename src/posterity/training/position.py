"""Where a run is, in JSON: with the State of its algorithm, all that a resumed run needs beside the seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from posterity.history import History

__all__ = ["Position"]


@dataclass
class Position:
    """Where a run is; JSON, beside the State in a checkpoint."""

    stage: int = 0
    epoch: int = 0
    step: int = 0  # of this stage
    consumed: list[int] = field(default_factory=list)  # batches of this epoch, per member
    rows: int = 0  # of this epoch, first member
    sums: dict[str, float] = field(default_factory=dict)  # of this epoch
    failures: list[int] = field(default_factory=list)  # non-finite steps in a row, per member
    skipped: int = 0  # non-finite steps of this epoch
    left_out: int = 0  # batches of one row, or without any target, of this epoch
    best: list[float] = field(default_factory=list)  # validation NLL per member
    stale: int = 0  # epochs since any of them fell
    draws: int = 0  # emitted to shards
    digest: str = ""  # of these draws
    history: list[dict[str, Any]] = field(default_factory=list)
    replaces: str | None = None  # hash of the manifest of the older run that this one will take the place of

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Position:
        """The inverse of a checkpoint's JSON, in which what is not finite is null."""
        position = cls(**content)
        position.best = [math.inf if value is None else value for value in position.best]
        position.sums = {name: math.nan if value is None else value for name, value in position.sums.items()}
        position.history = list(History.from_json(position.history))
        return position
