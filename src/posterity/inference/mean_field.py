"""Mean-field variational inference: the evidence lower bound over a diagonal normal.

    L(m, rho) = E[mean NLL(theta)] + KL(q || p) / (w N),    theta = m + s z,  s = exp(rho),  z ~ N(0, I)

    dL/dm   = g + (m - c) / (p^2 w N)                        g = grad of the mean NLL at theta: one draw a step
    dL/drho = g (theta - m) + (s^2 / p^2 - 1) / (w N)        the KL to N(c, p^2) in closed form

Adam on both. Its fixed point is the q closest to the posterior in reverse KL: for a normal posterior with precision matrix
P, the right mean and s_i^2 = 1 / P_ii. Graves (2011); Blundell et al. (2015), whose noise this is: one draw of the
weights, shared by the rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.inference.adam import Adam
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    average_,
    gaussian_prior,
    gradients,
    keep_buffers,
    own_stream,
    stacked_start,
    survivors,
    varying,
)
from posterity.inference.elbo import add_divergence_
from posterity.inference.gaussian import diagonal_posterior, noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, tree_map

__all__ = ["MeanFieldState", "MeanFieldVI"]


class MeanFieldState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    log_std: Tree  # [members, ...]
    mean_first: Tree  # Adam's moments of dL/dm ...
    mean_second: Tree
    log_std_first: Tree  # ... and of dL/drho
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class MeanFieldVI(Algorithm):
    """The evidence lower bound over independent normals.

    Args:
        learning_rate: Adam's step size for the means, a number or a schedule.
        std_learning_rate: the same for the log stds.
        init_std: the std of every weight at the start, > 0.
        beta1, beta2: Adam's decay rates, in [0, 1).

    Raises:
        ValueError: init_std out of range.
        PriorError: a prior that is not normal (the KL is in closed form).
    """

    name: ClassVar[str] = "mean-field"
    own_draws: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    learning_rate: Schedule = Cosine(1e-2)
    std_learning_rate: Schedule = Cosine(1e-2)
    init_std: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        check_positive(init_std=self.init_std)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> MeanFieldState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        zeros = tree_map(torch.zeros_like, varying(problem, mean))
        return MeanFieldState(
            mean=mean,
            log_std=tree_map(lambda leaf: torch.full_like(leaf, math.log(self.init_std)), zeros),
            mean_first=zeros,
            mean_second=clone(zeros),
            log_std_first=clone(zeros),
            log_std_second=clone(zeros),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: MeanFieldState, batches: Sequence[Batch], random: Random
    ) -> tuple[MeanFieldState, Info]:
        t, steps, random = int(state.step), int(state.steps), own_stream(problem, random)
        thetas = noisy(state.mean, state.log_std, torch.exp, random, t)
        _, gradient, info = gradients(problem, thetas, batches, random, t)
        mean_adam = Adam(at(self.learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        std_adam = Adam(at(self.std_learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        share = 1.0 / (problem.data_weight * problem.data_size)
        alive = survivors(info)
        for name, log_std in state.log_std.items():
            precision, center = gaussian_prior(problem, name)
            views = [state.mean[name], log_std, thetas[name], gradient[name]]
            if isinstance(center, Tensor):
                views.append(center.expand_as(log_std).contiguous())
            scratch = torch.empty(min(log_std.numel(), CHUNK), dtype=log_std.dtype, device=log_std.device)
            for m, rho, theta, g, *c in chunks(*views, alive=alive):
                theta.sub_(m).mul_(g)  # dL/drho is written over theta, which has served, and dL/dm over g
                add_divergence_(g, theta, m, rho, precision, c[0] if c else None, share, scratch)
        average_(problem, (gradient, state.mean_first), (thetas, state.log_std))
        mean_adam.update_(state.mean, gradient, state.mean_first, state.mean_second, alive)
        std_adam.update_(state.log_std, thetas, state.log_std_first, state.log_std_second, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: MeanFieldState) -> dict[str, float]:
        stds = tree_map(torch.exp, state.log_std)
        if isinstance(problem.prior, Flat):
            return {"std": typical_std(stds)}
        assert isinstance(problem.prior, Normal)
        kl = sum(float(problem.prior.kl(name, state.mean[name], std)) for name, std in stds.items()) / self.members
        return {"kl": kl, "std": typical_std(stds)}

    def point(self, state: MeanFieldState) -> Tree:
        return state.mean

    def posterior(self, state: MeanFieldState, shards: Posterior | None = None) -> Posterior:
        stds = {**tree_map(torch.exp, state.log_std), **state.idle_std}
        return diagonal_posterior(state.mean, stds, self.members)
