"""What the methods share that move independent normals by Adam: on the means and on the logarithms of the stds.

q = N(m, diag exp(2 rho)),    m and rho by Adam on `by_mean` and `by_log_std`, each method's own gradients
"""

from __future__ import annotations

from abc import abstractmethod
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
    keep_buffers,
    own_stream,
    stacked_start,
    survivors,
)
from posterity.inference.gaussian import diagonal_posterior, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive, start_stds
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, clone, tree_map

__all__ = ["AdamNormals", "AdamNormalsState", "joined_draws"]


class AdamNormalsState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    log_std: Tree  # [members, ...]
    mean_first: Tree  # Adam's moments of the gradient by m ...
    mean_second: Tree
    log_std_first: Tree  # ... and by log s
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class AdamNormals(Algorithm):
    """Base of these methods; each says its gradients.

    Args:
        draws: S, draws a step, >= 1, all on the member's one batch.
        learning_rate: Adam's step size for the means, a number or a schedule.
        std_learning_rate: the same for the log stds.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        beta1, beta2: Adam's decay rates, in [0, 1).

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
    """

    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)
    own_draws: ClassVar[bool] = True

    draws: int = 1
    learning_rate: Schedule = Cosine(1e-2)
    std_learning_rate: Schedule = Cosine(1e-2)
    init_std: float = 1e-2
    snapshot_scale: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        check_positive(draws=self.draws, init_std=self.init_std, snapshot_scale=self.snapshot_scale)

    @abstractmethod
    def gradients(
        self, problem: Problem, state: AdamNormalsState, batches: Sequence[Batch], random: Random, t: int
    ) -> tuple[Tree, Tree, Info]:
        """[members, ...] by the means and by the log stds at step t; a member is finite where all of its draws are."""

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> AdamNormalsState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        log_std = tree_map(Tensor.log_, start_stds(problem, start, mean, self.init_std, self.snapshot_scale))
        zeros = tree_map(torch.zeros_like, log_std)
        moments = zeros, clone(zeros), clone(zeros), clone(zeros)
        return AdamNormalsState(mean, log_std, *moments, idle_std, torch.tensor(0), torch.tensor(plan.steps))

    def step(
        self, problem: Problem, state: AdamNormalsState, batches: Sequence[Batch], random: Random
    ) -> tuple[AdamNormalsState, Info]:
        t, steps = int(state.step), int(state.steps)
        by_mean, by_log_std, info = self.gradients(problem, state, batches, own_stream(problem, random), t)
        average_(problem, (by_mean, state.log_std), (by_log_std, state.log_std))
        alive = survivors(info)
        for x, gradient, m, v, schedule in (
            (state.mean, by_mean, state.mean_first, state.mean_second, self.learning_rate),
            (state.log_std, by_log_std, state.log_std_first, state.log_std_second, self.std_learning_rate),
        ):
            Adam(at(schedule, t, steps), t + 1, self.beta1, self.beta2).update_(x, gradient, m, v, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: AdamNormalsState) -> dict[str, float]:
        return {"std": typical_std(tree_map(torch.exp, state.log_std))}

    def point(self, state: AdamNormalsState) -> Tree:
        return state.mean

    def posterior(self, state: AdamNormalsState, shards: Posterior | None = None) -> Posterior:
        stds = {**tree_map(torch.exp, state.log_std), **state.idle_std}
        return diagonal_posterior(state.mean, stds, self.members)


def joined_draws(infos: Sequence[Info]) -> Info:
    """Those of the draws of a step as one: finite where all are, the buffers those after the first."""
    return Info(
        torch.stack([info.nll for info in infos]).mean(0),
        torch.stack([info.gradient_norm for info in infos]).mean(0),
        torch.stack([info.finite for info in infos]).all(0),
        infos[0].buffers,
    )
