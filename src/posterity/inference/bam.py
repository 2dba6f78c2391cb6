"""Batch and match: the q nearest to the last one whose scores are, over a batch of draws, the target's.

    q' = argmin  E_B |grad log q' - g|^2_{Sigma'} + (2 / lambda) KL(q || q'),    theta ~ q = N(m, Sigma),  g = s(theta)

    C, G     = covariances of the draws and of their scores (divided by B), with the means theta_, g_
    U = lambda G + lambda / (1 + lambda) g_ g_^T
    V = Sigma + lambda C + lambda / (1 + lambda) (m - theta_)(m - theta_)^T
    Sigma' U Sigma' + Sigma' = V,       m' = m / (1 + lambda) + lambda / (1 + lambda) (Sigma' g_ + theta_)

Two forms of the same root:

    V = R R^T,                       Sigma' = R 2 (I + (I + 4 R^T U R)^1/2)^-1 R^T                  O(d^3)
    U = Q Q^T, Q [d, B + 1],         Sigma' = V - V Q [ 1/2 I + (Q^T V Q + 1/4 I)^1/2 ]^-2 Q^T V       O(d^2 B)

of which the second is taken where B < d; the Cholesky factor of Sigma' from which the next draws are made remains d^3 / 3.
For a normal target the fixed point is the target itself. Scores with noise enter U as if they were curvature: Sigma' is then
too small, and a solution that is no normal is refused (`full_covariance.py`). Cai et al. (2024), arXiv 2402.14758.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posterity.inference.algorithm import Plan, Start
from posterity.inference.full_covariance import MatchedState, Matching
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive
from posterity.problem.problem import Problem
from posterity.random import Random

__all__ = ["BaM", "batch_and_match"]


@dataclass(frozen=True)
class BaM(Matching):
    """Batch and match over one normal with a full covariance; for exact scores and small networks.

    Args:
        draws: B, draws a step, >= 1.
        learning_rate: lambda, > 0, a number or a schedule; None for B d / (1 + t) at step t. Large ones trust the batch.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that matrices of [d, d] may take.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    name: ClassVar[str] = "bam"
    scratch: ClassVar[int] = 8  # L, V, its factor, U, an eigenbasis, their products, Sigma' and its factor

    draws: int = 32
    learning_rate: Schedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate is not None and not isinstance(self.learning_rate, Cosine):
            check_positive(learning_rate=self.learning_rate)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> MatchedState:
        return self.matched_start(problem, start, plan.steps)

    def solve(
        self, mean: Tensor, factor: Tensor, draws: Tensor, scores: Tensor, t: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        size = float(draws.numel()) / (1 + t) if self.learning_rate is None else at(self.learning_rate, t, steps)
        return batch_and_match(mean, factor, draws, scores, size, low_rank=len(draws) < len(mean))


def batch_and_match(
    mean: Tensor, factor: Tensor, theta: Tensor, g: Tensor, size: float, low_rank: bool
) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] after one step of lambda = `size` from mean and L, with draws and scores [B, d]."""
    share = size / (1.0 + size)
    center, pull = theta.mean(0), g.mean(0)
    spread = (size / len(g)) ** 0.5
    shifts = torch.cat([(theta - center) * spread, (mean - center)[None] * share**0.5])
    q = torch.cat([(g - pull) * spread, pull[None] * share**0.5])  # Q^T
    v = (factor @ factor.T).addmm_(shifts.T, shifts)
    if low_rank:
        forward = q @ v  # Q^T V
        values, basis = _eigh(forward @ q.T)
        shrink = basis.T @ forward / (0.5 + (values.clamp_(min=0.0) + 0.25).sqrt()).unsqueeze(-1)
        covariance = v.addmm_(shrink.T, shrink, alpha=-1.0)
    else:
        root, failed = torch.linalg.cholesky_ex(v)
        beside = q @ (root if int(failed) == 0 else root.fill_(torch.nan))
        values, basis = _eigh(beside.T @ beside)
        half = root @ basis * (2.0 / (1.0 + (1.0 + 4.0 * values.clamp_(min=0.0)).sqrt())).sqrt()
        covariance = half @ half.T
    return mean.lerp(covariance @ pull + center, share), covariance


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and -vectors; NaN where there are none, so that the step is refused."""
    if bool(torch.isfinite(matrix).all()):
        with suppress(RuntimeError):
            values, basis = torch.linalg.eigh(matrix)
            return values, basis
    return torch.full_like(matrix[0], torch.nan), torch.full_like(matrix, torch.nan)
