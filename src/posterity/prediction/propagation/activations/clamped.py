"""Functions that are a line between two constants: clamp, ReLU6, hardtanh, hardsigmoid; exact.

In units of the std around the mean, Y = clip(Z, a, b) less its value nearest to 0, mirrored so that a + b >= 0. With
t = |a|, psi(t) = phi(t) - t Phi(-t), the mean of relu(Z - t), and E Y = psi(t) - psi(b) always,

    a >= 0:  E Y^2 = psi2(t) - psi2(b) - 2 (b - t) psi(b),     psi2(t) = (t^2 + 1) Phi(-t) - t phi(t)
    a < 0:   E Y^2 = 1 - chi(t) - chi(b),                      chi(t) = (1 - t^2) Phi(-t) + t phi(t)

and Var Y = E Y^2 - (E Y)^2 does not cancel, since Y is 0 where most of Z is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.kinked import lines
from posterity.prediction.propagation.activations.moments import Moments, stds, tail

__all__ = ["clamp", "hardsigmoid"]

_FAR = 12.0


def clamp(mean: Tensor, var: Tensor, low: float | None = None, high: float | None = None) -> Moments:
    """Moments of min(max(X, low), high); exact.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        low, high: the ends; None leaves that one open. As in torch, the result is high where low > high.
    """
    if high is None:
        if low is None:
            return Moments(mean, var)
        rectified = lines(mean - low, var, 0.0, 1.0)
        return Moments(rectified.mean + low, rectified.var)
    if low is None:
        rectified = lines(mean - high, var, 1.0, 0.0)
        return Moments(rectified.mean + high, rectified.var)
    if low >= high:
        return Moments(torch.zeros_like(mean) + high, torch.zeros_like(var))
    return _between(mean, var, low, high)


def hardsigmoid(mean: Tensor, var: Tensor) -> Moments:
    """Moments of clip(X / 6 + 1/2, 0, 1); exact. mean: any shape; var: >= 0, of the same shape."""
    between = _between(mean, var, -3.0, 3.0)
    return Moments(between.mean / 6 + 0.5, between.var / 36)


@in_blocks
def _between(mean: Tensor, var: Tensor, low: float, high: float) -> Moments:
    divisor, std = stds(var)
    centre = (low + high) / 2
    lower_half = mean <= centre
    sign = torch.where(lower_half, 1.0, -1.0).to(mean.dtype)
    offset, half = (mean - centre) * sign, (high - low) / 2  # offset <= 0
    near, far = (-half - offset) / divisor, ((half - offset) / divisor).clamp(max=_FAR)
    outside = near >= 0
    t = torch.where(outside, near, -near).clamp(max=_FAR)
    (q, p), (q_far, p_far) = tail(t), tail(far)
    psi, psi_far = p - t * q, p_far - far * q_far
    t2, far2 = t * t, far * far
    beyond = (t2 + 1) * q - t * p - ((far2 + 1) * q_far - far * p_far) - 2 * (far - t) * psi_far
    within = 1 - ((1 - t2) * q + t * p) - ((1 - far2) * q_far + far * p_far)
    shift = psi - psi_far
    var_y = torch.where(outside, beyond, within) - shift * shift
    nearest = torch.where(outside, -half * sign + centre, mean)
    return Moments(nearest + sign * std * shift, (var * var_y).clamp(min=0))
