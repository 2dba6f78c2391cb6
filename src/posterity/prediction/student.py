"""The standard Student-t distribution with a whole number of degrees of freedom, in float64.

The cdf is a finite sum in powers of the cosine of atan(t / sqrt(df)) (Abramowitz and Stegun 26.7.3 and 26.7.4), exact
to 1e-15.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cdf", "distance", "quantile"]


def cdf(t: Tensor, df: int) -> Tensor:
    """P(T <= t), df >= 2.

    >>> round(cdf(torch.tensor(2.776445, dtype=torch.float64), 4).item(), 6)
    0.975
    """
    length = torch.hypot(t.clamp(-1e150, 1e150), torch.full((), math.sqrt(df), dtype=t.dtype))
    cosine = math.sqrt(df) / length
    sine = t.clamp(-1e150, 1e150) / length
    square = cosine.square()
    # odd: cos + (2/3) cos^3 + (2 4)/(3 5) cos^5 ...; even: 1 + (1/2) cos^2 + (1 3)/(2 4) cos^4 ...; up to cos^(df - 2)
    term = cosine if df % 2 else torch.ones_like(sine)
    total = term
    for power in range(3 if df % 2 else 2, df - 1, 2):
        term = term * square * ((power - 1) / power)
        total = total + term
    inside = sine * total  # P(-|t| < T < |t|), with the sign of t
    if df % 2:
        inside = (2 / math.pi) * (torch.atan(t / math.sqrt(df)) + inside)
    return 0.5 + 0.5 * inside


def quantile(q: float, df: int) -> float:
    """The t with P(T <= t) = q, by bisection to the last bit of the cdf."""
    if q == 0.5:
        return 0.0
    tail = min(q, 1 - q)

    def below(t: float) -> float:
        return 1 - float(cdf(torch.tensor(t, dtype=torch.float64), df))

    upper = 1.0
    while below(upper) > tail and upper < 1e16:
        upper *= 2
    lower = 0.0
    for _ in range(100):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if below(middle) > tail else (lower, middle)
    return math.copysign(upper, q - 0.5)


def distance(t: Tensor, df: int) -> Tensor:
    """E|T - t| = t (2 F(t) - 1) + 2 f(t) (df + t^2) / (df - 1)."""
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    density_times = torch.exp(constant - 0.5 * (df + 1) * torch.log1p(t.square() / df) + torch.log(df + t.square()))
    return t * (2 * cdf(t, df) - 1) + 2 * density_times / (df - 1)
