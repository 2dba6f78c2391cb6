"""Powers and logarithms, which only positive numbers have: X is lognormal with this mean and variance.

    r = v / m^2,   s = log(1 + r)            variance of log X
    X^a      m^a exp(a (a - 1) s / 2)        var: mean^2 (exp(a^2 s) - 1)
    log X    log m - s / 2                   var: s

A normal X would be negative with some probability, and its moments would not exist. Of a narrow X both say the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.moments import Moments

__all__ = ["log", "power"]


def power(mean: Tensor, var: Tensor, exponent: float) -> Moments:
    """Moments of X^a; NaN where m^a is.

    Args:
        mean: of any shape; a negative one stands for -X.
        var: >= 0, of the same shape.
        exponent: a.
    """
    spread = torch.log1p(var / mean.square())
    found = torch.pow(mean, exponent) * torch.exp(exponent * (exponent - 1) / 2 * spread)
    return Moments(found, found.square() * torch.expm1(exponent**2 * spread))


def log(mean: Tensor, var: Tensor) -> Moments:
    """Moments of log X; mean: any shape; var: >= 0, of the same shape."""
    spread = torch.log1p(var / mean.square())
    return Moments(torch.log(mean) - spread / 2, spread)
