"""What happened, epoch by epoch."""

from __future__ import annotations

from typing import Any

__all__ = ["History"]


class History(list):
    """A list of one dict per epoch: stage, epoch, step, nll, val_nll, gradient_norm, skipped, and an algorithm's own.

    NLLs are means per row in network units (a scaled regression target is in stds of the target).
    """

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
