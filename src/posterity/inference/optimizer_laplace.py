"""A diagonal Laplace approximation from the statistics that Adam leaves: a posterior at no cost.

    std^2 = scale^2 / (w N B nu + 1 / p^2)

nu is Adam's mean squared gradient of the mean loss on batches of B rows, so that w N B nu estimates the Fisher information
of all rows; p is the prior's std. Around a network that interpolates its data nu vanishes and the prior comes back: pick the
scale on validation data (`pick_scale`). The statistic is Schlager et al.'s (2026), arXiv 2607.25312, in the place of the
Hessian's diagonal in Laplace's method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.inference.algorithm import Algorithm, Plan, Start, gaussian_prior, optimizer_statistics, varying
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.map import MAP, MAPState
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.problem import Info, Problem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["OptimizerLaplace", "OptimizerLaplaceState"]


class OptimizerLaplaceState(NamedTuple):
    training: MAPState
    precision: Tree  # name -> () float64, the prior's, of each tensor that is trained
    idle_mean: Tree  # [members, ...] of weights that no forward reaches: their prior's
    idle_std: Tree
    size: Tensor  # () float64, w N

    @property
    def step(self) -> Tensor:
        """() int64"""
        return self.training.step


@dataclass(frozen=True)
class OptimizerLaplace(Algorithm):
    """Maximum a posteriori, with a diagonal normal around each member from Adam's second moment.

    Args:
        scale: of all stds, > 0.
        base: the MAP training.

    Raises:
        ValueError: scale out of range.
        PriorError: a prior that is not normal.
    """

    name: ClassVar[str] = "optimizer-laplace"

    scale: float = 1.0
    base: MAP = field(default_factory=MAP)

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if not 0.0 < self.scale < math.inf:
            raise ValueError(f"scale must be finite and > 0, got {self.scale}")

    @property
    def _base(self) -> MAP:
        return replace(self.base, members=self.members, member_init=self.member_init)

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> OptimizerLaplaceState:
        self.check_prior(problem)
        training = self._base.init(problem, start, random, plan)
        mean, idle_std = prior_where_idle(problem, training.theta, 1.0)
        return OptimizerLaplaceState(
            training=training,
            precision={
                name: torch.tensor(gaussian_prior(problem, name)[0], dtype=torch.float64)
                for name in varying(problem, training.theta)
            },
            idle_mean={name: mean[name].clone() for name in idle_std},
            idle_std=idle_std,
            size=torch.tensor(problem.data_weight * problem.data_size, dtype=torch.float64),
        )

    def step(
        self, problem: Problem, state: OptimizerLaplaceState, batches: Sequence[Any], random: Random
    ) -> tuple[OptimizerLaplaceState, Info]:
        training, info = self._base.step(problem, state.training, batches, random)
        return state._replace(training=training), info

    def point(self, state: OptimizerLaplaceState) -> Tree:
        return self._base.point(state.training)

    def validated(self, state: OptimizerLaplaceState, nll: Tensor) -> OptimizerLaplaceState:
        return state._replace(training=self._base.validated(state.training, nll))

    def snapshots(self, state: OptimizerLaplaceState) -> list[Tree | Snapshot]:
        return self._base.snapshots(state.training)

    def posterior(self, state: OptimizerLaplaceState, shards: Posterior | None = None) -> Posterior:
        snapshots = optimizer_statistics(self.snapshots(state), self.members, self.name)
        return mixture([self._around(state, one, k) for k, one in enumerate(snapshots)])

    def _around(self, state: OptimizerLaplaceState, snapshot: Snapshot, k: int) -> Diagonal:
        stds = {
            name: snapshot.fisher(name, float(state.size), float(precision)).rsqrt_().mul_(self.scale)
            for name, precision in state.precision.items()
        }
        idle = {name: leaf[k].clone() for name, leaf in state.idle_mean.items()}
        means = {name: leaf.clone() for name, leaf in snapshot.theta.items()} | idle
        return Diagonal(means, stds | {name: leaf[k].clone() for name, leaf in state.idle_std.items()})

    def hyperparameters(self) -> dict[str, Any]:
        return {**super().hyperparameters(), "base": self.base.hyperparameters()}
