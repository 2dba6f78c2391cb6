"""Score-based variational inference over one normal of all weights, without an inverse.

    q = N(m, L L^T),    theta = m + L z,    z ~ N(0, I),    grad log q = -L^-T z
    w = L^T (grad log q - s(theta)) = -(z + L^T s(theta))                     averages over the draws of a step:

    m <- m - h L <w>
    L <- L - (h / 4) [ <L z w^T> + <L w z^T> ]

A step in units of q: the gradient of the objective of `score_matching.py` with the residual in the norm of Sigma_t = L L^T,
preconditioned by Sigma_t. The fixed point is that of the evidence lower bound and, for a normal posterior, the posterior
itself, where w = 0 for every draw and noise ends. Trust region: |h <w>| <= sqrt(d) / 2, and the relative change of L is at
most 1/2. Here q = q_t at every step, so that the proximal term is zero: there is no alpha.

Kim (2026), arXiv 2602.05873; the step in whitened coordinates is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.inference.algorithm import Plan, Start, keep_buffers
from posterity.inference.full_covariance import FullCovariance
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import (
    drawn,
    joined,
    joined_info,
    noise_limit,
    normal_rows,
    put_back_,
    score_rows,
    varied,
)
from posterity.problem.batches import Batch
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["ScoreDense", "ScoreDenseState", "dense_step_"]

MOST = 0.3  # default rate
TRUST = 0.5  # largest relative change of the factor, and of the mean per sqrt(d)


class ScoreDenseState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    factor: Tensor  # [members, d, d] L
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ScoreDense(FullCovariance):
    """Score-based variational inference over one normal with a full covariance.

    Args:
        draws: S, draws a step, >= 1, all on the member's one batch; fewer than d / 16 need small steps.
        learning_rate: h, a number or a schedule; None for a cosine from the smallest of 0.3, 4 S / d and 2 B / (w N).
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that the factors may take; they grow with the square of the number of weights.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    name: ClassVar[str] = "score-vi-dense"
    learning_rate: Schedule | None = None

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ScoreDenseState:
        mean, factor, idle_std = self.start_normal(problem, start)
        return ScoreDenseState(mean, factor, idle_std, torch.tensor(0), torch.tensor(plan.steps))

    def _rate(self, problem: Problem, rows: int, d: int, t: int, steps: int) -> float:
        if self.learning_rate is None:
            most = min(MOST, 4.0 * drawn(problem, self.draws) / d)
            return Cosine(noise_limit(problem, rows, most))(t, steps)
        return at(self.learning_rate, t, steps)

    def step(
        self, problem: Problem, state: ScoreDenseState, batches: Sequence[Batch], random: Random
    ) -> tuple[ScoreDenseState, Info]:
        t, steps = int(state.step), int(state.steps)
        names = varied(state.mean, state.idle_std)
        size = problem.data_weight * problem.data_size
        infos = []
        for k, batch in enumerate(batches):
            factor, center = state.factor[k], joined(state.mean, names, k)
            z = normal_rows(state.mean, names, drawn(problem, self.draws), random, k, t)
            shifts = z @ factor.T
            h, info = score_rows(problem, state.mean, names, center + shifts, batch, random, k, t)
            infos.append(info)
            if bool(info.finite):
                rate = self._rate(problem, batch_rows(batch), len(center), t, steps)
                dense_step_(center, factor, z, shifts, h.mul_(size), rate)
                put_back_(state.mean, names, k, center)
        info = joined_info(infos)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info


def dense_step_(mean: Tensor, factor: Tensor, z: Tensor, shifts: Tensor, h: Tensor, rate: float) -> None:
    """One step of mean [d] and factor L [d, d], in place, from S draws: z and shifts = L z and h = -s(theta), all [S, d]."""
    w = torch.sub(h @ factor, z)
    sideways = w @ factor.T
    step = rate * w.mean(0)
    longest = TRUST * len(mean) ** 0.5
    norm = float(torch.linalg.vector_norm(step))
    mean.sub_(sideways.mean(0), alpha=rate * (longest / norm if norm > longest else 1.0))
    change = 0.5 * rate * float((torch.linalg.vector_norm(z, dim=1) * torch.linalg.vector_norm(w, dim=1)).mean())
    stride = 0.25 * rate / len(z) * (TRUST / change if change > TRUST else 1.0)
    factor.addmm_(shifts.T, w, alpha=-stride).addmm_(sideways.T, z, alpha=-stride)
