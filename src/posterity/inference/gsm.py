"""Gaussian score matching: the q nearest to the last one whose score is the target's at a draw.

    q' = argmin KL(q || q')   such that   grad log q'(theta) = s(theta),      theta ~ q = N(m, Sigma),  g = s(theta)

    c = (m - theta)^T g,    rho = 1/2 sqrt(1 + 4 (g^T Sigma g + c^2)) - 1/2,    e = Sigma g - m + theta
    m'     = m + [ e - (m - theta) (g^T e) / (1 + rho + c) ] / (1 + rho)
    Sigma' = Sigma + (m - theta)(m - theta)^T - (m' - theta)(m' - theta)^T

and the mean of these moves over the draws of a step. No step size. For a normal target the fixed point is the target
itself. Scores with noise are matched, noise and all: q then wanders and does not settle, and a step whose covariance is not
positive definite is refused (`full_covariance.py`). Modi et al. (2023), arXiv 2307.07849, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posterity.inference.algorithm import Plan, Start
from posterity.inference.full_covariance import MatchedState, Matching
from posterity.problem.problem import Problem
from posterity.random import Random

__all__ = ["GSM", "matched_scores"]


@dataclass(frozen=True)
class GSM(Matching):
    """Gaussian score matching over one normal with a full covariance; for exact scores and small networks.

    Args:
        draws: draws a step, >= 1, whose moves are averaged.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that matrices of [d, d] may take.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    name: ClassVar[str] = "gsm"
    scratch: ClassVar[int] = 4  # L, Sigma, Sigma' and its factor

    draws: int = 2

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> MatchedState:
        return self.matched_start(problem, start, plan.steps)

    def solve(
        self, mean: Tensor, factor: Tensor, draws: Tensor, scores: Tensor, t: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        return matched_scores(mean, factor, draws, scores)


def matched_scores(mean: Tensor, factor: Tensor, theta: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] after one step from mean and L, with draws and scores [S, d]."""
    away = mean - theta
    forward = g @ factor @ factor.T  # Sigma g
    c = (away * g).sum(1, keepdim=True)
    # rho (1 + rho) = g^T Sigma g + c^2 >= c^2: 1 + rho + c is > 0
    rho = 0.5 * (1.0 + 4.0 * ((forward * g).sum(1, keepdim=True) + c.square())).sqrt() - 0.5
    e = forward - away
    moves = (e - away * (g * e).sum(1, keepdim=True) / (1.0 + rho + c)) / (1.0 + rho)
    after = away + moves
    covariance = (factor @ factor.T).addmm_(away.T, away, alpha=1 / len(g)).addmm_(after.T, after, alpha=-1 / len(g))
    return mean + moves.mean(0), covariance
