"""The divergence's part of the gradient of the evidence lower bound, for q = N(m, s^2) of each weight, s = exp(rho).

KL(q || N(c, p^2)):   d/dm = (m - c) / p^2        d/drho = s^2 / p^2 - 1
any other prior:      d/dm = -grad log p(theta)   d/drho = -(theta - m) grad log p(theta) - 1       at the draw theta
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["add_divergence_", "add_sampled_divergence_"]


def add_divergence_(
    by_mean: Tensor,
    by_log_std: Tensor,
    mean: Tensor,
    log_std: Tensor,
    precision: float,
    center: Tensor | None,
    share: float,
    scratch: Tensor,
) -> None:
    """Add `share` times the closed form, in place, over a chunk; `precision` 0 is a flat prior."""
    variance = torch.mul(log_std, 2.0, out=scratch[: log_std.numel()]).exp_()
    by_log_std.add_(variance, alpha=precision * share).sub_(share)
    by_mean.add_(mean, alpha=precision * share)
    if center is not None:
        by_mean.sub_(center, alpha=precision * share)


def add_sampled_divergence_(
    by_mean: Tensor, by_log_std: Tensor, mean: Tensor, theta: Tensor, pull: Tensor, share: float
) -> None:
    """Add `share` times the estimate at the draw `theta`, in place; `pull` is the prior's gradient there."""
    by_mean.sub_(pull, alpha=share)
    by_log_std.addcmul_(theta - mean, pull, value=-share).sub_(share)
