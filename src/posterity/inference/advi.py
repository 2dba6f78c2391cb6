"""Automatic differentiation variational inference: the evidence lower bound, by the gradient that sticks the landing.

    L(q) = E[ log q(theta) - log p(theta | data) ],    theta = m + s z,    z ~ N(0, I)
    r    = grad log q(theta) - s(theta),    grad log q = -z / s,    s(theta) = grad log p(theta) - w N g
    dL/dm = <r>,    dL/dlog s = <r (theta - m)>

averages over the draws of a step, everything divided by w N, and Adam on both. The gradient passes through theta alone: the
part through the parameters of log q, whose mean is zero, is left out, so that r = 0 for every draw, and noise ends, where q
is the posterior. Kucukelbir et al. (2017); Roeder, Wu and Duvenaud (2017). The full covariance: `advi_full.py`.

`MeanFieldVI` has the same bound and the same fixed point, s_i^2 = 1 / P_ii for a normal with precision P, with the KL to the
prior in closed form: less noise far from the end, more at it, and no full covariance. Where the noise of mini-batches rules,
the two are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam import Adam
from posterity.inference.advi_full import ADVIFull
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    gaussian_prior,
    gradients,
    keep_buffers,
    stacked_start,
    survivors,
)
from posterity.inference.gaussian import diagonal_posterior, noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive, start_stds
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, tree_map

__all__ = ["ADVI", "ADVIDiagonal", "ADVIDiagonalState", "joined_draws"]


def ADVI(covariance: str = "diagonal", **options: Any) -> Algorithm:
    """The evidence lower bound over one normal, by reparameterised gradients and Adam.

    Args:
        covariance: "diagonal" (independent normals) or "full" (over all weights at once, for small networks).
        options: of `ADVIDiagonal` or `ADVIFull`.

    Raises:
        CompatibilityError: an unknown covariance.
        ValueError: an option out of range.

    >>> ADVI().draws, ADVI("full").draws
    (1, 8)
    """
    kinds: dict[str, type[Algorithm]] = {"diagonal": ADVIDiagonal, "full": ADVIFull}
    if covariance not in kinds:
        raise CompatibilityError(f"ADVI has no covariance {covariance!r}: choose one of 'diagonal' or 'full'")
    return kinds[covariance](**options)


class ADVIDiagonalState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    log_std: Tree  # [members, ...]
    mean_first: Tree  # Adam's moments of dL/dm ...
    mean_second: Tree
    log_std_first: Tree  # ... and of dL/dlog s
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class ADVIDiagonal(Algorithm):
    """The evidence lower bound over independent normals, by the gradient that sticks the landing.

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

    name: ClassVar[str] = "advi"
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

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

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> ADVIDiagonalState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        log_std = tree_map(Tensor.log_, start_stds(problem, start, mean, self.init_std, self.snapshot_scale))
        zeros = tree_map(torch.zeros_like, log_std)
        moments = zeros, clone(zeros), clone(zeros), clone(zeros)
        return ADVIDiagonalState(mean, log_std, *moments, idle_std, torch.tensor(0), torch.tensor(plan.steps))

    def step(
        self, problem: Problem, state: ADVIDiagonalState, batches: Sequence[Batch], random: Random
    ) -> tuple[ADVIDiagonalState, Info]:
        t, steps = int(state.step), int(state.steps)
        by_mean, by_log_std, info = self._gradients(problem, state, batches, random, t)
        alive = survivors(info)
        for x, gradient, m, v, schedule in (
            (state.mean, by_mean, state.mean_first, state.mean_second, self.learning_rate),
            (state.log_std, by_log_std, state.log_std_first, state.log_std_second, self.std_learning_rate),
        ):
            Adam(at(schedule, t, steps), t + 1, self.beta1, self.beta2).update_(x, gradient, m, v, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def _gradients(
        self, problem: Problem, state: ADVIDiagonalState, batches: Sequence[Batch], random: Random, t: int
    ) -> tuple[Tree, Tree, Info]:
        """dL/dm and dL/dlog s over w N; a member's Info is finite where all of its draws are."""
        share = 1.0 / (problem.data_weight * problem.data_size)
        sums: tuple[Tree, Tree] | None = None
        infos = []
        for i in range(self.draws):
            stream = random if i == 0 else random.fold(f"draw {i}")
            thetas = noisy(state.mean, state.log_std, torch.exp, stream, t)
            _, gradient, info = gradients(problem, thetas, batches, stream, t)
            infos.append(info)
            for name, log_std in state.log_std.items():
                precision, center = gaussian_prior(problem, name)
                views = [state.mean[name], log_std, thetas[name], gradient[name]]
                if isinstance(center, Tensor):
                    views.append(center.expand_as(log_std).contiguous())
                scratch = torch.empty(min(log_std.numel(), CHUNK), dtype=log_std.dtype, device=log_std.device)
                for m, rho, theta, r, *c in chunks(*views, alive=survivors(info)):
                    # r = w N g - grad log p + grad log q, over the gradient; then r (theta - m), over theta
                    r.add_(theta, alpha=precision * share)
                    if c:
                        r.sub_(c[0], alpha=precision * share)
                    inverse = torch.mul(rho, -2.0, out=scratch[: rho.numel()]).exp_()
                    r.addcmul_(theta.sub_(m), inverse, value=-share)
                    theta.mul_(r)
            by_log_std = {name: thetas[name] for name in state.log_std}
            if sums is None:
                sums = {name: gradient[name] for name in by_log_std}, by_log_std
            else:
                for total, new in zip(sums, (gradient, by_log_std)):
                    for name, leaf in total.items():
                        leaf.add_(new[name])
        assert sums is not None
        if self.draws == 1:
            return *sums, infos[0]
        by_mean, by_log_std = (tree_map(lambda leaf: leaf.div_(self.draws), total) for total in sums)
        return by_mean, by_log_std, joined_draws(infos)

    def watch(self, problem: Problem, state: ADVIDiagonalState) -> dict[str, float]:
        return {"std": typical_std(tree_map(torch.exp, state.log_std))}

    def point(self, state: ADVIDiagonalState) -> Tree:
        return state.mean

    def posterior(self, state: ADVIDiagonalState, shards: Posterior | None = None) -> Posterior:
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
