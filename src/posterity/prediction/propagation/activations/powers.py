"""exp and the square: exact, in elementary functions."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.moments import Moments

__all__ = ["exp", "square"]


def exp(mean: Tensor, var: Tensor) -> Moments:
    """Moments of exp(X), a lognormal: exp(m + v/2) and exp(2m + v) (exp(v) - 1); exact.

    float32 overflows to inf at m + v/2 > 88 for the mean and at m + v > 44 for the variance.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
    """
    # exp(v) - 1 = 2 sinh(v/2) exp(v/2) keeps its digits next to 0
    return Moments(torch.exp(mean + var / 2), 2 * torch.sinh(var / 2) * torch.exp(2 * mean + 1.5 * var))


def square(mean: Tensor, var: Tensor) -> Moments:
    """Moments of X^2: m^2 + v and 4 m^2 v + 2 v^2; exact. mean: any shape; var: >= 0, of the same shape."""
    squared = mean * mean
    return Moments(squared + var, var * (4 * squared + 2 * var))
