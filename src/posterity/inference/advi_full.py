"""Automatic differentiation variational inference over one normal of all weights.

    L(q) = E[ log q(theta) - log p(theta | data) ],    theta = m + L z,    z ~ N(0, I),    L lower triangular, L_ii > 0
    r    = grad log q(theta) - s(theta),    grad log q = -L^-T z,    s(theta) = grad log p(theta) - w N g
    dL/dm = <r>,    dL/dL = tril <r z^T>,    by log L_ii: times L_ii

averages over the draws of a step, everything divided by w N, and Adam on m, L and log L_ii. Passing through theta alone,
as in `advi.py`, this gradient sticks the landing: no noise at the end. The price is paid on the way: L^-T z has a mean
square of |L^-1|^2, and an L that Adam has made ill-conditioned gives steps of noise; with d = 100 and rates of 0.02 q can be
lost. By default, therefore, the entropy's gradient is the closed one, dL/dm = <-s>, dL/dL = tril <-s z^T> - diag(1 / L_ii).

The path is in the coordinates of L, not of q: `ScoreDense`, with the same fixed point, takes its steps in units of q,
whatever the condition of the covariance.

Kucukelbir et al. (2017); Roeder, Wu and Duvenaud (2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.inference.adam import Adam
from posterity.inference.algorithm import Plan, Start, keep_buffers
from posterity.inference.full_covariance import FullCovariance
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import (
    drawn,
    joined,
    joined_info,
    normal_rows,
    put_back_,
    score_rows,
    varied,
)
from posterity.problem.batches import Batch
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["ADVIFull", "ADVIFullState", "full_gradients"]


class ADVIFullState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    free: Tensor  # [members, d, d] L with the logarithm of its diagonal
    mean_first: Tensor  # [members, d] Adam's moments of dL/dm ...
    mean_second: Tensor
    free_first: Tensor  # [members, d, d] ... and by the free parameters
    free_second: Tensor
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ADVIFull(FullCovariance):
    """The evidence lower bound over one normal with a full covariance.

    Args:
        draws: S, draws a step, >= 1, all on the member's one batch.
        learning_rate: Adam's step size for the means, a number or a schedule.
        factor_learning_rate: the same for L and the logarithm of its diagonal.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that matrices of [d, d] may take.
        stick_the_landing: take the entropy's gradient through the draws instead of in closed form.
        beta1, beta2: Adam's decay rates, in [0, 1).

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    name: ClassVar[str] = "advi-full"
    copies: ClassVar[int] = (
        6  # L, Adam's two moments, the posterior's; the step's gradient and L for all members at most
    )

    learning_rate: Schedule = Cosine(2e-2)
    factor_learning_rate: Schedule = Cosine(2e-2)
    stick_the_landing: bool = False
    beta1: float = 0.9
    beta2: float = 0.999

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ADVIFullState:
        mean, factor, idle_std = self.start_normal(problem, start)
        factor.diagonal(dim1=1, dim2=2).log_()
        zeros = factor.new_zeros(factor.shape[:2])
        return ADVIFullState(
            mean=mean,
            free=factor,
            mean_first=zeros,
            mean_second=zeros.clone(),
            free_first=torch.zeros_like(factor),
            free_second=torch.zeros_like(factor),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def factors(self, state: ADVIFullState) -> Tensor:
        factors = state.free.clone()
        factors.diagonal(dim1=1, dim2=2).exp_()
        return factors

    def step(
        self, problem: Problem, state: ADVIFullState, batches: Sequence[Batch], random: Random
    ) -> tuple[ADVIFullState, Info]:
        t, steps = int(state.step), int(state.steps)
        names = varied(state.mean, state.idle_std)
        share = 1.0 / (problem.data_weight * problem.data_size)
        by_mean = Adam(at(self.learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        by_free = Adam(at(self.factor_learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        infos = []
        for k, batch in enumerate(batches):
            factor, center = state.free[k].clone(), joined(state.mean, names, k)
            factor.diagonal().exp_()
            z = normal_rows(state.mean, names, drawn(problem, self.draws), random, k, t)
            h, info = score_rows(problem, state.mean, names, center + z @ factor.T, batch, random, k, t)
            if bool(info.finite):
                dm, dfree = full_gradients(factor, z, h, share, self.stick_the_landing)
                # an L without an inverse is not finite either
                info = info._replace(finite=info.finite & torch.isfinite(dfree.sum() + dm.sum()))
            infos.append(info)
            if bool(info.finite):
                first, second = state.mean_first[k], state.mean_second[k]
                put_back_(state.mean, names, k, center.sub_(by_mean.step_(dm, first, second, torch.empty_like(dm))))
                state.free[k].sub_(by_free.step_(dfree, state.free_first[k], state.free_second[k], factor))
        info = joined_info(infos)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info


def full_gradients(
    factor: Tensor, z: Tensor, h: Tensor, share: float, stick_the_landing: bool = True
) -> tuple[Tensor, Tensor]:
    """dL/dm [d] and dL by L with log L_ii [d, d], over w N, from S draws z and h = -s(theta) / (w N), all [S, d]."""
    r = h
    if stick_the_landing:
        r = torch.sub(h, torch.linalg.solve_triangular(factor, z, upper=False, left=False), alpha=share)  # z L^-1
    gradient = (r.T @ z).div_(len(z)).tril_()
    gradient.diagonal().mul_(factor.diagonal()).sub_(0.0 if stick_the_landing else share)
    return r.mean(0), gradient
