"""Rank-1 Bayesian networks: each matrix is a point, times a random scale for each row and each column.

    W = Wbar * (s r^T),    s ~ N(m_s, e^(2 rho_s)),    r likewise,    a priori s, r ~ N(1, p_1^2)

    L = E[mean NLL] - log p(Wbar) / (w N) + KL(s, r) / (w N)        one draw of s and r a step, shared by the rows

    dWbar = G * (s r^T)        ds = (G * Wbar) r        dr = (G * Wbar)^T s        G = dL/dW at the draw

    dm = ds + (m_s - 1) / (p_1^2 w N)        drho = ds (s - m_s) + (e^(2 rho_s) / p_1^2 - 1) / (w N)

Adam on all of them. Tensors of more than two dimensions are matrices [m, n], n the product of the rest. Wbar and tensors of
one dimension (biases, norms) are points with the problem's prior as their penalty: what a posterior holds more than the
network is twice the numbers of s and r. Dusenberry et al. (2020), arXiv 2005.07186; a member here has a Wbar of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam import Adam
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    average_,
    gradients,
    keep_buffers,
    own_stream,
    stacked_start,
    survivors,
    varying,
)
from posterity.inference.gaussian import noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.posterior.rank_one import RankOne, scaled
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, clone, member, pick, tree_map

__all__ = ["RankOneState", "RankOneVI"]


class RankOneState(NamedTuple):
    theta: Tree  # [members, ...] Wbar, the other weights, the changed buffers
    first: Tree  # Adam's moments of those that are trained ...
    second: Tree
    scale: Tree  # "row/<name>" [members, m] and "column/<name>" [members, n]: the means of s and r
    log_std: Tree  # shaped like `scale`
    scale_first: Tree  # ... and of these
    scale_second: Tree
    log_std_first: Tree
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class RankOneVI(Algorithm):
    """The evidence lower bound over random scales of rows and columns.

    Args:
        learning_rate: Adam's step size for the weights, a number or a schedule.
        scale_learning_rate: the same for means and log stds of the scales.
        init_std: of every scale at the start, > 0; their means start at 1.
        prior_std: p_1 > 0, of every scale around 1.
        beta1, beta2: Adam's decay rates, in [0, 1).

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: a network without a matrix.
    """

    name: ClassVar[str] = "rank-one"
    own_draws: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    learning_rate: Schedule = Cosine(1e-2)
    scale_learning_rate: Schedule = Cosine(1e-2)
    init_std: float = 0.1
    prior_std: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        check_positive(init_std=self.init_std, prior_std=self.prior_std)
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        if not _matrices({name: leaf.unsqueeze(0) for name, leaf in varying(problem, problem.start()).items()}):
            raise CompatibilityError(
                "RankOneVI scales the rows and columns of matrices, and no trained tensor here has two dimensions: use "
                "MeanFieldVI"
            )

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> RankOneState:
        self.check_prior(problem)
        theta, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), 1.0)
        zeros = tree_map(torch.zeros_like, varying(problem, theta))
        scale: Tree = {}
        for name in _matrices(zeros):
            flat = zeros[name].flatten(2)
            scale[f"row/{name}"] = torch.ones_like(flat[:, :, 0])
            scale[f"column/{name}"] = torch.ones_like(flat[:, 0])
        none = tree_map(torch.zeros_like, scale)
        return RankOneState(
            theta=theta,
            first=zeros,
            second=clone(zeros),
            scale=scale,
            log_std=tree_map(lambda leaf: torch.full_like(leaf, math.log(self.init_std)), scale),
            scale_first=none,
            scale_second=clone(none),
            log_std_first=clone(none),
            log_std_second=clone(none),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: RankOneState, batches: Sequence[Batch], random: Random
    ) -> tuple[RankOneState, Info]:
        t, steps, random = int(state.step), int(state.steps), own_stream(problem, random)
        drawn = noisy(state.scale, state.log_std, torch.exp, random, t)
        _, gradient, info = gradients(problem, _dense(state.theta, drawn), batches, random, t)
        by_scale = _chain_(gradient, state.theta, drawn)
        share = 1.0 / (problem.data_weight * problem.data_size)
        precision = share / self.prior_std**2
        for name in state.first:
            pull = problem.prior.gradient({name: state.theta[name]})[name]
            gradient[name].sub_(pull, alpha=share)
        for key, rho in state.log_std.items():
            mean = state.scale[key]
            # over the draw, which has served
            drawn[key].sub_(mean).mul_(by_scale[key]).add_((2.0 * rho).exp_(), alpha=precision).sub_(share)
            by_scale[key].add_(mean, alpha=precision).sub_(precision)
        average_(problem, (gradient, state.first), (by_scale, by_scale), (drawn, state.log_std))
        alive = survivors(info)
        adam = Adam(at(self.learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        scale_adam = Adam(at(self.scale_learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        adam.update_(state.theta, gradient, state.first, state.second, alive)
        scale_adam.update_(state.scale, by_scale, state.scale_first, state.scale_second, alive)
        scale_adam.update_(state.log_std, drawn, state.log_std_first, state.log_std_second, alive)
        keep_buffers(state.theta, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: RankOneState) -> dict[str, float]:
        if not state.scale:
            return {}
        stds = tree_map(torch.exp, state.log_std)
        return {"scale_kl": self._divergence(state) / self.members, "scale_std": typical_std(stds)}

    def _divergence(self, state: RankOneState) -> float:
        """KL of all scales to their prior, nats."""
        total = 0.0
        for key, rho in state.log_std.items():
            log_ratio = rho.double() - math.log(self.prior_std)
            shift = (state.scale[key].double() - 1.0) / self.prior_std
            total += float((0.5 * ((2.0 * log_ratio).exp() + shift.square() - 1.0) - log_ratio).sum())
        return total

    def point(self, state: RankOneState) -> Tree:
        return _dense(state.theta, state.scale)

    def posterior(self, state: RankOneState, shards: Posterior | None = None) -> Posterior:
        trees = (state.theta, state.scale, tree_map(torch.exp, state.log_std), state.idle_std)
        return mixture([RankOne(*(clone(member(tree, k)) for tree in trees)) for k in range(self.members)])


def _matrices(tree: Tree) -> list[str]:
    """Names of the leaves [members, m, ...] that are scaled."""
    return [name for name, leaf in tree.items() if leaf.dim() > 2 and not name.startswith(LIKELIHOOD)]


def _dense(theta: Tree, scales: Tree) -> Tree:
    """[members, ...] with W = Wbar * (s r^T) in the place of every Wbar."""
    rows, columns = pick(scales, "row/"), pick(scales, "column/")
    return {**theta, **{name: scaled(theta[name], row, columns[name]) for name, row in rows.items()}}


def _chain_(gradient: Tree, theta: Tree, scales: Tree) -> Tree:
    """Gradients by s and r from those by W; those by Wbar are written over those by W."""
    found: Tree = {}
    for name, row in pick(scales, "row/").items():
        column, g = scales[f"column/{name}"], gradient[name].flatten(2)
        h = g * theta[name].flatten(2)
        found[f"row/{name}"] = torch.einsum("kmn,kn->km", h, column).contiguous()
        found[f"column/{name}"] = torch.einsum("kmn,km->kn", h, row).contiguous()
        g.mul_(row.unsqueeze(-1)).mul_(column.unsqueeze(-2))
    return found
