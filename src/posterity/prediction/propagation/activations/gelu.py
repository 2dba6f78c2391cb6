"""GELU, x Phi(x), and so its tanh form, which differs by less than 5e-4.

With s^2 = 1/(1 + v), i^2 = 1/(1 + 2v), a = m s, b = a i and phi, Phi of N(0, 1):

    E f   = m Phi(a) + v s phi(a)
    Var f = v Phi(a)^2 + (m^2 + v) D + v s phi(a) [4 m Phi(b) - 2 m Phi(a) - v s phi(a) + 2 v s (i phi(b) - a Phi(b))]
    D     = E Phi(X)^2 - Phi(a)^2 = (1/pi) int_i^1 exp(-a^2 (1 + x^2) / 2) / (1 + x^2) dx
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.moments import Accuracy, Moments, cdf, legendre, pdf

__all__ = ["gelu"]

_NODES = legendre(5)


@in_blocks
def gelu(mean: Tensor, var: Tensor, accuracy: Accuracy = "fast") -> Moments:
    """Moments of X Phi(X).

    The mean is exact. The variance of "exact" has one integral, by Gauss and Legendre, whose integrand is positive, so that
    nothing cancels; "fast" is the series sum_k v^k / k! (d^k E f / dm^k)^2 to k = 4, which is too small for a wide input.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
    """
    return _exact(mean, var) if accuracy == "exact" else _series(mean, var)


def _exact(mean: Tensor, var: Tensor) -> Moments:
    s = torch.rsqrt(1 + var)
    i2 = 1 / (1 + 2 * var)
    i = i2.sqrt()
    a = mean * s
    b = a * i
    below, density, vs = cdf(a), pdf(a), var * s
    # (1 - i) / v = 2 i^2 / (1 + i) keeps its digits next to v = 0
    width, exponent = 2 * i2 / (1 + i), a * a * -0.5
    integral = torch.zeros_like(mean)
    for node, weight in _NODES:
        x = i + (1 - i) * node
        x2 = x * x
        integral = integral + torch.exp(exponent * x2) * weight / (1 + x2)
    inner = 2 * mean * ((2 - vs * s) * cdf(b) - below) - vs * density + 2 * vs * i * pdf(b)
    spread = (mean * mean + var) * width * integral * math.sqrt(2 / math.pi) + s * inner
    return Moments(mean * below + vs * density, (var * (below * below + density * spread)).clamp(min=0))


def _series(mean: Tensor, var: Tensor) -> Moments:
    s = torch.rsqrt(1 + var)
    r = s * s
    a = mean * s
    a2 = a * a
    below = torch.erf(a * math.sqrt(0.5)) * 0.5 + 0.5
    density = torch.exp(a2 * -0.5) * (1 / math.sqrt(2 * math.pi))
    rho = var * r
    slope = torch.addcmul(below, a * density, r)
    # derivatives 2, 3 and 4 of E f by m over phi(a) s^(k - 2)
    second = torch.addcmul(1 + r, r, a2, value=-1)
    third = a * (torch.addcmul(r * -3, r, a2) - 1)
    fourth = torch.addcmul(a2 - 1, r, a2 * (a2 - 6) + 3, value=-1)
    tail = torch.addcmul(third * third * (1 / 6), rho, fourth * fourth, value=1 / 24)
    tail = torch.addcmul(second * second * 0.5, rho, tail)
    squares = torch.addcmul(slope * slope, density * density * rho, tail)
    return Moments(torch.addcmul(mean * below, var, s * density), var * squares)
