"""What the loop did since the last step: how many rows, and by what its losses were divided."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Gathered"]


@dataclass
class Gathered:
    """The losses that went backward since the last step.

    Every loss is a sum over its rows, divided by the rows of the first one, so that parts of any size add up to a multiple
    of the mean over all rows.
    """

    rows: int = 0
    counted: int = 0  # rows in which anything counts
    first: int = 0  # rows of the first part
    total: Tensor | float = 0.0  # summed NLL

    def loss(self, nlls: Tensor, counted: int) -> Tensor:
        """() of a part with [rows] `nlls`."""
        self.first = self.first or len(nlls)
        self.rows += len(nlls)
        self.counted += counted
        summed = nlls.sum()
        self.total = self.total + summed.detach()
        return summed / self.first

    def nll(self) -> Tensor:
        """() mean per row."""
        return torch.as_tensor(self.total / self.rows)

    def factor(self, parts: int) -> float:
        """What makes the gradient that came of the losses, each divided by `parts`, that of the mean NLL."""
        return self.first * parts / self.rows
