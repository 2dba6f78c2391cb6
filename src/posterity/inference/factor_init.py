"""Where factors start: at the scale of a weight, at its best approximation, or at no change of it.

    scale    M_A, M_B ~ N(0, c^2),  S = e c,  c^4 = v / (r (1 + e^2)^2)       so that E W_ij^2 = v, the tensor's mean square
    svd      M_A = U_r Sigma_r^1/2,  M_B = V_r Sigma_r^1/2                     of the tensor itself
    change   M_A = 0,  M_B ~ N(0, c^2)                                          E W = W0

Both means at zero would be a saddle: the gradient by each is proportional to the other.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from posterity.random import Random

__all__ = ["FactorStart", "Initial", "first_factors", "padding_rows", "typical_size"]

Initial = Literal["scale", "svd"]


class FactorStart(NamedTuple):
    left: Tensor  # [m, r]
    right: Tensor  # [*rest, r]
    std: float  # of every entry of both


def first_factors(
    weight: Tensor, rank: int, how: Initial | Literal["change"], size: float, relative_std: float, random: Random
) -> FactorStart:
    """The factors that a weight (m, *rest) starts at.

    Args:
        size: root mean square that an entry of W should have.
        relative_std: e, the std as a share of the factors' typical entry.
    """
    matrix = weight.flatten(1)
    (m, n), shape = matrix.shape, (*weight.shape[1:], rank)
    typical = (size**2 / (rank * (1.0 + relative_std**2) ** 2)) ** 0.25
    if how == "svd":
        u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        root = s[:rank].sqrt()
        left, right = (u[:, :rank] * root).to(weight), (vh[:rank].T * root).to(weight)
    else:
        right = random.fold("right").normal((n, rank), like=weight) * typical
        left = torch.zeros_like(weight, memory_format=torch.contiguous_format).new_zeros(m, rank)
        if how == "scale":
            left = random.fold("left").normal((m, rank), like=weight) * typical
    return FactorStart(left.contiguous(), right.reshape(shape).contiguous(), relative_std * typical)


def typical_size(weight: Tensor, prior_std: float) -> float:
    """The root mean square of a tensor; of one that is zero throughout, what its fan-in suggests, or the prior."""
    size = float(weight.double().square().mean().sqrt())
    return size if size > 0.0 else min(prior_std, max(1, weight[0].numel() if weight.ndim > 1 else 1) ** -0.5)


def padding_rows(problem: Any) -> dict[str, int]:
    """The row of each embedding that its network keeps at zero for padding."""
    network = getattr(problem, "network", None)
    if network is None:
        return {}
    found = {}
    for path, module in network.module.named_modules():
        row = module.padding_idx if isinstance(module, nn.Embedding) else None
        if row is not None and not bool(module.weight.detach()[row].any()):
            found[f"{path}.weight" if path else "weight"] = row
    return found
