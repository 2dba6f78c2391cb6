"""A finding: what a check looked at, what it found, and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One line of `posterity doctor`.

    Args:
        check: its name, e.g. "duplicate columns".
        status: "ok", "warning" (look at it), "fault" (the results cannot be trusted) or "skipped" (the message says why).
        message: what was found, with numbers.
        remedy: what to do about it; empty where nothing is to be done.
        values: the numbers, as JSON.
    """

    check: str
    status: Literal["ok", "warning", "fault", "skipped"]
    message: str
    remedy: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Its fields by name."""
        return {
            "check": self.check, "status": self.status, "message": self.message, "remedy": self.remedy,
            "values": dict(self.values),
        }  # fmt: skip
