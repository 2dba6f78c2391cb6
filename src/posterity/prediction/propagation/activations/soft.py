"""SiLU (swish) and softplus, by quadrature: with poles at pi i, evenly spaced nodes are right to std 4 and beyond."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from posterity.prediction.propagation.activations.moments import Accuracy, Moments
from posterity.prediction.propagation.activations.quadrature import elementwise

__all__ = ["silu", "softplus"]


def silu(mean: Tensor, var: Tensor, accuracy: Accuracy = "fast") -> Moments:
    """Moments of X sigmoid(X).

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        accuracy: "fast" is quadrature with 5 nodes, for std to 0.7.
    """
    return elementwise(F.silu, mean, var, nodes=5, accuracy=accuracy)


def softplus(
    mean: Tensor, var: Tensor, beta: float = 1.0, threshold: float = 20.0, accuracy: Accuracy = "fast"
) -> Moments:
    """Moments of log(1 + exp(beta X)) / beta, which torch takes as X where beta X > threshold.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        accuracy: "fast" is quadrature with 5 nodes, for beta std to 1.
    """
    return elementwise(lambda x: F.softplus(x, beta, threshold), mean, var, nodes=5, accuracy=accuracy)
