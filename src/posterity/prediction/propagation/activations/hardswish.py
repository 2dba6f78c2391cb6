"""Hardswish, x clip(x/6 + 1/2, 0, 1): 0, then x (x + 3) / 6 from -3, then x from 3; exact up to rounding.

(f(X) - f(m)) / std is a polynomial alpha + beta Z + gamma Z^2 on each piece, over Z from l to u, and its first two
moments there are sums of

    M_k = int_l^u z^k phi(z) dz = (k - 1) M_(k-2) + l^(k-1) phi(l) - u^(k-1) phi(u)
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.moments import Moments, cdf, pdf, stds, upper

__all__ = ["hardswish"]

_FAR = 12.0


@in_blocks
def hardswish(mean: Tensor, var: Tensor) -> Moments:
    """Moments of X clip(X/6 + 1/2, 0, 1).

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
    """
    divisor, std = stds(var)
    low, high = ((-3 - mean) / divisor).clamp(-_FAR, _FAR), ((3 - mean) / divisor).clamp(-_FAR, _FAR)
    at_low, at_high, below, above = pdf(low), pdf(high), cdf(low), upper(high)
    m0 = torch.where(low > 0, upper(low) - above, torch.where(high < 0, cdf(high) - below, 1 - below - above))
    m1 = at_low - at_high
    m2 = m0 + low * at_low - high * at_high
    m3 = 2 * m1 + low * low * at_low - high * high * at_high
    m4 = 3 * m2 + low * low * low * at_low - high * high * high * at_high

    here = mean * ((mean + 3) / 6).clamp(0, 1)
    left, middle, right = -here / divisor, (mean * (mean + 3) / 6 - here) / divisor, (mean - here) / divisor
    beta, gamma = (2 * mean + 3) / 6, std / 6
    shift = left * below + (middle * m0 + beta * m1 + gamma * m2) + (right * above + at_high)
    squares = (
        left * left * below
        + (middle * middle * m0 + 2 * middle * beta * m1 + (beta * beta + 2 * middle * gamma) * m2)
        + (2 * beta * gamma * m3 + gamma * gamma * m4)
        + (right * right * above + 2 * right * at_high + above + high * at_high)
    )
    return Moments(here + std * shift, (var * (squares - shift * shift)).clamp(min=0))
