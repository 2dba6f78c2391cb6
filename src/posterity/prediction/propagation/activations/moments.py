"""What every activation returns, and the pieces of the normal distribution that they share.

X ~ N(mean, var) independently for each element. Every function here is plain torch without branches on values, so that it
can be exported, differentiated and mapped.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Accuracy", "Moments", "cdf", "legendre", "pdf", "stds", "tail", "upper", "widened"]

Accuracy = Literal["fast", "exact"]

# Below this variance the std is a fixed one: sqrt has no finite slope at 0.
_FLOOR = 1e-12

_SCALE = 0.28
_RATIO = (
    0.2928988314044517,
    0.1641489059889019,
    0.6862876245925293,
    -0.6087821469902001,
    0.9860742616991929,
    -0.26731333937937574,
)


class Moments(NamedTuple):
    """Mean and variance of f(X), element by element, of the input's shape and dtype; the variance is >= 0."""

    mean: Tensor
    var: Tensor


def pdf(z: Tensor) -> Tensor:
    """phi(z), the density of N(0, 1)."""
    return torch.exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))


def cdf(z: Tensor) -> Tensor:
    """Phi(z), the probability below z of N(0, 1); exactly 0 and 1 far out."""
    return torch.erf(z * math.sqrt(0.5)) * 0.5 + 0.5


def upper(z: Tensor) -> Tensor:
    """Phi(-z), the probability above z of N(0, 1)."""
    return torch.erf(z * -math.sqrt(0.5)) * 0.5 + 0.5


def tail(t: Tensor) -> tuple[Tensor, Tensor]:
    """Phi(-t) and phi(t) for t >= 0: Phi(-t) = phi(t) R(t), R a polynomial in u = 1 / (1 + 0.28 t).

    Unlike 1 - erf it keeps its digits far out: its error times 1 + t^2 is below 2e-8, which the fit was for.
    """
    density, u = pdf(t), 1 / (1 + _SCALE * t)
    ratio = u * _RATIO[-1] + _RATIO[-2]
    for coefficient in _RATIO[-3::-1]:
        ratio = ratio * u + coefficient
    return density * u * ratio, density


def stds(var: Tensor) -> tuple[Tensor, Tensor]:
    """The std to divide by, >= 1e-6, and the std to multiply with, exactly 0 at var = 0; equal where var >= 1e-12."""
    divisor = var.clamp(min=_FLOOR).sqrt()
    return divisor, var / divisor


def widened(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """A std that is large enough to take differences over, about |mean| / 1000; and var over its square, in [0, 1]."""
    least = (mean.detach().abs().clamp(max=8.0) / 1024 + 1e-5).square()
    used = torch.maximum(var, least)
    return used.sqrt(), var / used


def legendre(count: int) -> list[tuple[float, float]]:
    """Nodes in [0, 1] and weights (their sum is 1) of Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [(float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights)]
