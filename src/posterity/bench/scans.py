"""Recursions over time in a logarithmic number of tensor operations; time is the last axis."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["linear_recursion", "log_matrix_product"]


def linear_recursion(a: Tensor, b: Tensor) -> Tensor:
    """[..., T] x with x_1 = b_1, x_t = a x_(t-1) + b_t, by doubling.

    After k rounds x_t holds the last 2^k terms of sum over s of a^s b_(t-s).

    Args:
        a: [..., 1], the same at all times.
        b: [..., T].
    """
    x, shift = b, 1
    while shift < b.shape[-1]:
        x = x + a * pad(x[..., :-shift], (shift, 0))
        a, shift = a * a, 2 * shift
    return x


def log_matrix_product(logs: Tensor) -> Tensor:
    """[..., K, K] log of the product of T matrices given by their logs [..., K, K, T], neighbours first."""
    while (count := logs.shape[-1]) > 1:
        odd = logs[..., -1:] if count % 2 else None
        pairs = logs if odd is None else logs[..., :-1]
        left, right = pairs.unflatten(-1, (-1, 2)).unbind(-1)
        logs = (left.unsqueeze(-2) + right.unsqueeze(-4)).logsumexp(-3)
        logs = logs if odd is None else torch.cat([logs, odd], -1)  # stays last: products do not commute
    return logs.squeeze(-1)
