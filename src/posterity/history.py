"""What happened, epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

__all__ = ["History"]


class History(list):
    """A list of one dict per epoch: stage, epoch, step, nll, val_nll, gradient_norm, skipped, and an algorithm's own.

    NLLs are means per row in network units (a scaled regression target is in stds of the target).
    """

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]]) -> History:
        """Rows as a run folder keeps them: null stands for a number that was not finite."""
        return cls({name: math.nan if value is None else value for name, value in row.items()} for row in rows)

    def to_frame(self) -> Any:
        """The same as a pandas frame.

        Raises:
            ImportError: pandas is not installed; it comes with `posterity[tables]`.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install 'posterity[tables]'") from error
        return pandas.DataFrame(list(self))
