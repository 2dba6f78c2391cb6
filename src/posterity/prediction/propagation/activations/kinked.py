"""Functions of two straight lines that meet: ReLU, leaky ReLU, |x|; exact.

f(x) = l x for x < 0, r x for x >= 0. With t = |m| / std, Q = Phi(-t), e = phi(t) - t Q and h = (t^2 + 1) Q - t phi(t) - e^2
(mean and variance of relu(Z - t)), for m >= 0:

    E f = r m + (r - l) std e        Var f = v (r^2 - 2 r (r - l) Q + (r - l)^2 h)

and mirrored for m < 0. Nothing cancels: the corrections to the line that the mean is on fall off away from the kink.
"""

from __future__ import annotations

from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.moments import Moments, stds, tail

__all__ = ["abs", "leaky_relu", "lines", "relu"]

# Beyond this many std from the kink Phi(-t) is below 1e-32.
_FAR = 12.0


def relu(mean: Tensor, var: Tensor) -> Moments:
    """Moments of max(X, 0); exact. mean: any shape; var: >= 0, of the same shape."""
    return lines(mean, var, 0.0, 1.0)


def leaky_relu(mean: Tensor, var: Tensor, slope: float = 0.01) -> Moments:
    """Moments of X for X >= 0 and slope X else; exact. mean: any shape; var: >= 0, of the same shape."""
    return lines(mean, var, slope, 1.0)


def abs(mean: Tensor, var: Tensor) -> Moments:
    """Moments of |X| (a folded normal); exact. mean: any shape; var: >= 0, of the same shape."""
    return lines(mean, var, -1.0, 1.0)


@in_blocks
def lines(mean: Tensor, var: Tensor, left: float, right: float) -> Moments:
    """Moments of left X for X < 0 and right X else; exact.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        left, right: slopes.
    """
    divisor, std = stds(var)
    positive = (mean >= 0).to(mean.dtype)
    # not |m|: its slope at 0 is 0, and that of the moments is not
    t = ((2 * positive - 1) * mean / divisor).clamp(max=_FAR)
    q, p = tail(t)
    e = p - t * q
    h = (t * t + 1) * q - t * p - e * e
    bend = right - left
    slope, cross = left + bend * positive, 2 * bend * (left - (left + right) * positive)
    return Moments(slope * mean + bend * std * e, (var * (slope * slope + cross * q + bend * bend * h)).clamp(min=0))
