"""What the methods share whose family is one normal with a full covariance over all weights.

    q = N(m, L L^T)    m a Tree [members, ...],    L [members, d, d]    over the weights that a forward reaches

Memory and time grow with d^2 and more: too many weights are refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Start, keep_buffers, stacked_start
from posterity.inference.gaussian import prior_where_idle
from posterity.inference.score_matching import (
    check_positive,
    drawn,
    joined,
    joined_info,
    normal_rows,
    put_back_,
    score_rows,
    start_stds,
    varied,
)
from posterity.posterior.dense import Dense
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, clone, count, first, member, weights

__all__ = ["FullCovariance", "JointNormal", "MatchedState", "Matching"]


class JointNormal(NamedTuple):
    """q as it starts."""

    mean: Tree  # [members, ...], with the buffers
    factor: Tensor  # [members, d, d] L, diagonal
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's


@dataclass(frozen=True)
class FullCovariance(Algorithm):
    """Base of these methods; their State has `mean`, `idle_std`, and a `factor` or what `factors` reads it off.

    Args:
        draws: S, draws a step, >= 1, all on the member's one batch.
        init_std: the std of every weight at the start, > 0; at most the prior's.
        snapshot_scale: factor on stds that are read off a `Snapshot`.
        max_memory: bytes that matrices of [d, d] may take.

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is not normal.
        CompatibilityError: more weights than `max_memory` holds.
    """

    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)
    own_draws: ClassVar[bool] = True
    copies: ClassVar[int] = 2  # of [d, d] per member: the state's and the posterior's
    scratch: ClassVar[int] = 0  # [d, d] of float64 that a step needs, of one member at a time

    draws: int = 8
    init_std: float = 0.1
    snapshot_scale: float = 1.0
    max_memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        check_positive(
            init_std=self.init_std,
            snapshot_scale=self.snapshot_scale,
            draws=self.draws,
            max_memory=self.max_memory,
        )

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        self._check_size(weights(problem.start()))

    def _check_size(self, theta: Tree) -> None:
        d = count(theta)
        needed = d**2 * (self.copies * self.members * first(theta).element_size() + self.scratch * 8)
        if needed > self.max_memory:
            raise CompatibilityError(
                f"a covariance of all {d:,} weights would take {needed / 2**30:.1f} GiB, more than max_memory "
                f"({self.max_memory / 2**30:.1f} GiB): use ScoreVI('low-rank-plus-diagonal') or ScoreVI('diagonal')"
            )

    def start_normal(self, problem: Problem, start: Start) -> JointNormal:
        """Independent at the start: from a snapshot's second moment where there is one, else `init_std`."""
        self.check_prior(problem)
        stacked = stacked_start(problem, start, self.members)
        self._check_size(member(weights(stacked), 0))
        mean, idle_std = prior_where_idle(problem, stacked, self.init_std)
        stds = start_stds(problem, start, mean, self.init_std, self.snapshot_scale)
        factor = torch.stack([joined(stds, list(stds), k).diag() for k in range(self.members)])
        return JointNormal(mean, factor, idle_std)

    def factors(self, state: Any) -> Tensor:
        """[members, d, d] L."""
        return state.factor

    def watch(self, problem: Problem, state: Any) -> dict[str, float]:
        stds = torch.linalg.vector_norm(self.factors(state), dim=2)
        return {"std": float(stds.double().log().mean().exp())}

    def point(self, state: Any) -> Tree:
        return state.mean

    def posterior(self, state: Any, shards: Posterior | None = None) -> Posterior:
        names, idle = varied(state.mean, state.idle_std), list(state.idle_std)
        factors, parts = self.factors(state), []
        for k in range(self.members):
            factor = factors[k].clone()
            if idle:
                factor = torch.block_diag(factor, joined(state.idle_std, idle, k).diag())
            parts.append(Dense(clone(member(state.mean, k)), (*names, *idle), factor))
        return mixture(parts)


# --- methods that solve for q: a solution that is no normal is refused -------------------------------------------------


class MatchedState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    factor: Tensor  # [members, d, d] L, lower triangular
    rejected: Tensor  # [members] int64, steps whose solution was refused
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class Matching(FullCovariance):
    """Base of the methods that solve for the q whose score is the target's at the draws; see `solve`.

    In float64. A solution that is not finite, or whose covariance has no Cholesky factor, leaves the member as it was and
    is counted: `rejected` in the State, and 1 in `Info.extra`, whose mean over an epoch is the share of such steps.
    """

    def solve(
        self, mean: Tensor, factor: Tensor, draws: Tensor, scores: Tensor, t: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        """The new mean [d] and covariance [d, d], from the old mean and L and [S, d] draws and scores; all float64."""
        raise NotImplementedError

    def matched_start(self, problem: Problem, start: Start, steps: int) -> MatchedState:
        mean, factor, idle_std = self.start_normal(problem, start)
        rejected = torch.zeros(self.members, dtype=torch.int64)
        return MatchedState(mean, factor, rejected, idle_std, torch.tensor(0), torch.tensor(steps))

    def step(
        self, problem: Problem, state: MatchedState, batches: Sequence[Batch], random: Random
    ) -> tuple[MatchedState, Info]:
        t, steps = int(state.step), int(state.steps)
        names = varied(state.mean, state.idle_std)
        size = problem.data_weight * problem.data_size
        refused = torch.zeros_like(state.rejected)
        infos = []
        for k, batch in enumerate(batches):
            factor, center = state.factor[k].double(), joined(state.mean, names, k)
            z = normal_rows(state.mean, names, drawn(problem, self.draws), random, k, t)
            rows = center + z @ state.factor[k].T
            h, info = score_rows(problem, state.mean, names, rows, batch, random, k, t)
            infos.append(info)
            if bool(info.finite):
                mean, covariance = self.solve(center.double(), factor, rows.double(), h.double().mul_(-size), t, steps)
                refused[k] = not _accepted(state, k, names, mean, covariance)
        info = joined_info(infos)
        keep_buffers(state.mean, info)
        rejected = state.rejected + refused
        return state._replace(rejected=rejected, step=state.step + 1), info._replace(extra={"rejected": refused})


def _accepted(state: MatchedState, k: int, names: Sequence[str], mean: Tensor, covariance: Tensor) -> bool:
    """Write mean and Cholesky factor into member k, where they are those of a normal in the state's own precision."""
    root, failed = torch.linalg.cholesky_ex(covariance)
    root, mean = root.to(state.factor), mean.to(state.factor)
    fine = torch.isfinite(root).all() & torch.isfinite(mean).all() & (root.diagonal() > 0).all() & (failed == 0)
    if bool(fine):
        state.factor[k].copy_(root)
        put_back_(state.mean, names, k, mean)
    return bool(fine)
