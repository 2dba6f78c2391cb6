"""Sigmoid and tanh.

A wide input goes through sigmoid(x) = sum_j p_j Phi(s_j x), off by less than 3e-9, whose mean over a normal is closed:

    F = E sigmoid(X) = sum_j p_j Phi(c_j m),  c_j = s_j / sqrt(1 + s_j^2 v),      Var = F (1 - F) - dF/dm

(sigmoid^2 = sigmoid - sigmoid'). That difference cancels for a narrow one, which goes through quadrature. And
tanh(x) = 2 sigmoid(2x) - 1.
Source of the mixture: Monahan and Stefanski (1992).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.moments import Accuracy, Moments
from posterity.prediction.propagation.activations.quadrature import elementwise

__all__ = ["sigmoid", "tanh"]

_MIXTURE = (
    (0.003246343272134, 1.365340806296348),
    (0.051517477033972, 1.059523971016916),
    (0.195077912673858, 0.830791313765644),
    (0.315569823632818, 0.650732166639391),
    (0.274149576158423, 0.508135425366489),
    (0.131076880695470, 0.396313345166341),
    (0.027912418727972, 0.308904252267995),
    (0.001449567805354, 0.238212616409306),
)
# Gauss and Hermite's 7 nodes have 5 digits to here, and the identity has lost 2 of its 7.
_NARROW = 0.5


@in_blocks
def sigmoid(mean: Tensor, var: Tensor, accuracy: Accuracy = "fast") -> Moments:
    """Moments of 1 / (1 + exp(-X)).

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        accuracy: "fast" is quadrature with 5 nodes, for std to 1.
    """
    if accuracy == "fast":
        return elementwise(torch.sigmoid, mean, var, nodes=5)
    narrow, (wide, wide_var) = elementwise(torch.sigmoid, mean, var, nodes=7), _mixture(mean, var)
    near = var < _NARROW**2
    return Moments(torch.where(near, narrow.mean, wide), torch.where(near, narrow.var, wide_var))


@in_blocks
def tanh(mean: Tensor, var: Tensor, accuracy: Accuracy = "fast") -> Moments:
    """Moments of tanh(X).

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        accuracy: "fast" is quadrature with 5 nodes, for std to 0.5.
    """
    if accuracy == "fast":
        return elementwise(torch.tanh, mean, var, nodes=5)
    narrow, (wide, wide_var) = elementwise(torch.tanh, mean, var, nodes=7), _mixture(2 * mean, 4 * var)
    near = 4 * var < _NARROW**2
    return Moments(torch.where(near, narrow.mean, 2 * wide - 1), torch.where(near, narrow.var, 4 * wide_var))


def _mixture(mean: Tensor, var: Tensor) -> Moments:
    """Mean and variance of the sigmoid by its mixture, from the side where the tail is small."""
    negative = mean < 0
    m = torch.where(negative, mean, -mean)
    tail, slope = torch.zeros_like(mean), torch.zeros_like(mean)
    for p, s in _MIXTURE:
        c = torch.rsqrt(var + 1 / (s * s))
        k = c * m * math.sqrt(0.5)
        tail = tail + (torch.erf(k) + 1) * (0.5 * p)
        slope = slope + c * torch.exp(-k * k) * (p / math.sqrt(2 * math.pi))
    return Moments(torch.where(negative, tail, 1 - tail), (tail * (1 - tail) - slope).clamp(min=0))
