"""Stochastic weight averaging, Gaussian: a normal from the path of gradient descent at a constant rate.

    v <- b v + g - grad log p(theta) / (w N),    theta <- theta - h v        g = grad of the mean NLL

    q = N(mean, (V + D D^T / (K - 1)) / 2)

over the collected theta: their mean, their variances V, and the last K deviations D from the mean at their time. The noise
of the batches is what spreads them, so that q follows from h, b and B rather than from N: `scale` corrects it. The first
stage trains; it is what the `epochs` or `steps` of a fit count. Maddox et al. (2019), arXiv 1902.02476.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    gradients,
    keep_buffers,
    stacked_start,
    survivors,
    varying,
)
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.map import MAP
from posterity.posterior.low_rank import LowRankPlusDiagonal
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, chunks, clone, member, tree_map

__all__ = ["SWAG", "SWAGState"]


class SWAGState(NamedTuple):
    theta: Tree  # [members, ...], with the changed buffers
    momentum: Tree  # [members, ...]
    mean: Tree  # [members, ...] of what was collected; the start before
    squares: Tree  # [members, ...] summed squared deviations from it
    deviations: Tree  # [members, rank, ...] from the mean at their time, the latest over the oldest
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    every: Tensor  # () int64, steps from one collection to the next
    collected: Tensor  # [members] int64, collections so far
    step: Tensor  # () int64


@dataclass(frozen=True)
class SWAG(Algorithm):
    """A low-rank plus diagonal normal from the weights that stochastic gradient descent passes through.

    Args:
        base: the MAP training that runs first, and that the `epochs` or `steps` of a fit count; left out where a fit is
            given `start=`.
        learning_rate: h > 0, constant; where it is too large the `nll` in the history rises above that of the first stage.
        momentum: b, in [0, 1).
        collections: sets of weights that are collected, >= 2; the second stage is `collections * every` steps long.
        every: steps from one to the next, >= 1, or None for an epoch.
        rank: K, the deviations that are kept, >= 2; as many as there are collections at most.
        scale: of all stds, > 0.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: a posterior asked for before the second collection.
    """

    name: ClassVar[str] = "swag"
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    base: MAP = field(default_factory=MAP)
    learning_rate: float = 3e-3
    momentum: float = 0.9
    collections: int = 40
    every: int | None = None
    rank: int = 20
    scale: float = 1.0

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        for name in ("learning_rate", "scale"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and > 0, got {getattr(self, name)}")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.collections < 2 or self.rank < 2:
            raise ValueError(f"collections and rank must be at least 2, got {self.collections} and {self.rank}")
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1 step, or None for an epoch; got {self.every}")

    def stages(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        base = replace(self.base, members=self.members, member_init=self.member_init)
        return [(base, plan), *self.stages_from_start(plan)]

    def stages_from_start(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        return [(self, plan._replace(steps=self.collections * self._every(plan)))]

    def _every(self, plan: Plan) -> int:
        return self.every or plan.steps_per_epoch

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> SWAGState:
        self.check_prior(problem)
        theta, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), 1.0)
        zeros = tree_map(torch.zeros_like, varying(problem, theta))
        kept = min(self.rank, self.collections)
        return SWAGState(
            theta=theta,
            momentum=zeros,
            mean=clone({name: theta[name] for name in zeros}),
            squares=clone(zeros),
            deviations={k: leaf.new_zeros((leaf.shape[0], kept, *leaf.shape[1:])) for k, leaf in zeros.items()},
            idle_std=idle_std,
            every=torch.tensor(self._every(plan)),
            collected=torch.zeros(self.members, dtype=torch.int64),
            step=torch.tensor(0),
        )

    def step(
        self, problem: Problem, state: SWAGState, batches: Sequence[Batch], random: Random
    ) -> tuple[SWAGState, Info]:
        t = int(state.step)
        _, gradient, info = gradients(problem, state.theta, batches, random, t)
        share = 1.0 / (problem.data_weight * problem.data_size)
        alive = survivors(info)
        for name, momentum in state.momentum.items():
            pull = problem.prior.gradient({name: state.theta[name]})[name]
            for theta, v, g, r in chunks(state.theta[name], momentum, gradient[name], pull, alive=alive):
                v.mul_(self.momentum).add_(g).sub_(r, alpha=share)
                theta.sub_(v, alpha=self.learning_rate)
        keep_buffers(state.theta, info)
        if (t + 1) % int(state.every) == 0:
            for k in info.finite.nonzero().flatten().tolist():
                _collect_(state, k)
        return state._replace(step=state.step + 1), info

    def point(self, state: SWAGState) -> Tree:
        return {**state.theta, **state.mean}

    def posterior(self, state: SWAGState, shards: Posterior | None = None) -> Posterior:
        if (least := int(state.collected.min())) < 2:
            raise CompatibilityError(
                f"SWAG collected {least} sets of weights in {int(state.step)} steps and needs two: lower every, which is "
                f"{int(state.every)}, or run more steps"
            )
        return mixture([self._normal(state, k) for k in range(self.members)])

    def _normal(self, state: SWAGState, k: int) -> LowRankPlusDiagonal:
        count = int(state.collected[k])
        stds = {name: leaf[k].div(2.0 * count).sqrt_().mul_(self.scale) for name, leaf in state.squares.items()}
        columns = min(count, *(leaf.shape[1] for leaf in state.deviations.values()))
        factor = self.scale / math.sqrt(2.0 * (columns - 1))
        factors = {n: leaf[k, :columns].movedim(0, -1) * factor for n, leaf in state.deviations.items()}
        idle = {name: leaf[k].clone() for name, leaf in state.idle_std.items()}
        return LowRankPlusDiagonal(clone(member(self.point(state), k)), stds | idle, factors)

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "base": self.base.hyperparameters()}


def _collect_(state: SWAGState, k: int) -> None:
    """Take the weights of member k into mean, squares and deviations."""
    count = int(state.collected[k])
    for name, mean in member(state.mean, k).items():  # squares by Welford: E[theta^2] - mean^2 would cancel
        before = state.theta[name][k] - mean
        mean.add_(before, alpha=1.0 / (count + 1))
        after = state.theta[name][k] - mean
        state.squares[name][k].add_(torch.mul(before, after).clamp_(min=0.0))  # never below, but for rounding
        deviations = state.deviations[name][k]
        deviations[count % len(deviations)] = after
    state.collected[k] = count + 1
