"""Rows in order of falling confidence, and their ties: rows of one confidence, which no threshold tells apart."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.evaluation.metric import as_events, as_rows

__all__ = ["ordered", "tie_ends", "tie_means"]


def ordered(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[rows] confidence and error in order of falling confidence, and the number of the tie that each row is in."""
    confidence, correct = as_rows(confidence=confidence, correct=as_events("correct", correct))
    confidence, order = confidence.sort(descending=True)
    ties = torch.unique_consecutive(confidence, return_inverse=True)[1]
    return confidence, 1 - correct[order], ties


def tie_ends(ties: Tensor) -> Tensor:
    """[ties] the last row of each tie, from the numbers that `ordered` gives."""
    return torch.bincount(ties).cumsum(0) - 1


def tie_means(values: Tensor, ties: Tensor) -> Tensor:
    """[rows] of values in order: each becomes the mean of its tie."""
    return (torch.bincount(ties, values) / torch.bincount(ties))[ties]
