"""Score matching as it is usually meant: the Fisher divergence, with the gradient through the draws.

    F(m, log s) = 1/2 E |grad log q(theta) - s(theta)|^2,    theta = m + s z,    z ~ N(0, I),    q = N(m, diag s^2)

    r = -z / s + grad U(theta),       H = Hessian of U = w N Hessian of the mean NLL + prior precision
    dF/dm     = < H r >
    dF/dlog s = < r z / s + s z H r >

over (w N)^2, averages over the draws of a step; Adam on both. H r is one product of the Hessian with a vector.

The fixed point is not that of the evidence lower bound nor of `ScoreVI`, which does not differentiate through the draws: for
a normal with precision P it is s_i^2 = 1 / sqrt((P^2)_ii) <= 1 / P_ii <= the true variance. Under mini-batches the variance
of the scores, where it depends on theta, is part of F. Hyvarinen (2005) for the divergence.

A step needs second derivatives by the weights: it keeps the graph of a backward pass, about three times the memory of a
gradient, and a forward whose operations can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.adam import Adam
from posterity.inference.advi import joined_draws
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    gaussian_prior,
    keep_buffers,
    stacked_start,
    survivors,
)
from posterity.inference.gaussian import diagonal_posterior, noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.inference.score_matching import check_positive, joined_info, start_stds
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree, clone, member, stack, tree_map

__all__ = ["FisherVI", "FisherVIState"]


class FisherVIState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    log_std: Tree  # [members, ...]
    mean_first: Tree  # Adam's moments of dF/dm ...
    mean_second: Tree
    log_std_first: Tree  # ... and of dF/dlog s
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class FisherVI(Algorithm):
    """The Fisher divergence to independent normals, by Hessian-vector products; a baseline.

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
        CompatibilityError: a forward that cannot be differentiated twice.
    """

    name: ClassVar[str] = "fisher-vi"
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

    def check(self, problem: Problem, batch: Any) -> None:
        super().check(problem, batch)
        theta = problem.start()
        try:
            problem.hvp(theta, batch, Random(0).fold("check"), tree_map(torch.ones_like, theta))
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise CompatibilityError(
                f"FisherVI needs second derivatives, and the forward has none ({error}): use ScoreVI or ADVI"
            ) from error

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> FisherVIState:
        self.check_prior(problem)
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), self.init_std)
        log_std = tree_map(Tensor.log_, start_stds(problem, start, mean, self.init_std, self.snapshot_scale))
        zeros = tree_map(torch.zeros_like, log_std)
        moments = zeros, clone(zeros), clone(zeros), clone(zeros)
        return FisherVIState(mean, log_std, *moments, idle_std, torch.tensor(0), torch.tensor(plan.steps))

    def step(
        self, problem: Problem, state: FisherVIState, batches: Sequence[Batch], random: Random
    ) -> tuple[FisherVIState, Info]:
        t, steps = int(state.step), int(state.steps)
        share = 1.0 / (problem.data_weight * problem.data_size)
        by_mean = [tree_map(lambda leaf: torch.zeros_like(leaf[0]), state.log_std) for _ in batches]
        by_log_std = [clone(zeros) for zeros in by_mean]
        infos: list[list[Info]] = [[] for _ in batches]
        for i in range(self.draws):
            stream = random if i == 0 else random.fold(f"draw {i}")
            thetas = noisy(state.mean, state.log_std, torch.exp, stream, t)
            for k, batch in enumerate(batches):
                theta = member(thetas, k)
                r, hr, info = _residual(problem, state, theta, k, batch, stream.fold("step").fold(k).fold(t))
                infos[k].append(info)
                for name in r:
                    shift = theta[name] - state.mean[name][k]  # s z
                    inverse = torch.exp(-2.0 * state.log_std[name][k])
                    by_mean[k][name].add_(hr[name], alpha=1.0 / self.draws)
                    by_log_std[k][name].add_(shift * (r[name] * inverse * share + hr[name]), alpha=1.0 / self.draws)
        info = joined_info([joined_draws(of_draws) for of_draws in infos])
        alive = survivors(info)
        for x, gradient, m, v, schedule in (
            (state.mean, by_mean, state.mean_first, state.mean_second, self.learning_rate),
            (state.log_std, by_log_std, state.log_std_first, state.log_std_second, self.std_learning_rate),
        ):
            Adam(at(schedule, t, steps), t + 1, self.beta1, self.beta2).update_(x, stack(gradient), m, v, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: FisherVIState) -> dict[str, float]:
        return {"std": typical_std(tree_map(torch.exp, state.log_std))}

    def point(self, state: FisherVIState) -> Tree:
        return state.mean

    def posterior(self, state: FisherVIState, shards: Posterior | None = None) -> Posterior:
        stds = {**tree_map(torch.exp, state.log_std), **state.idle_std}
        return diagonal_posterior(state.mean, stds, self.members)


def _residual(
    problem: Problem, state: FisherVIState, theta: Tree, k: int, batch: Any, random: Random
) -> tuple[Tree, Tree, Info]:
    """r and H r of member k over w N and (w N)^2, at one draw of its weights; Info of the one member.

    The parts of an accumulated batch one by one, each with one address for both derivatives.
    """
    share = 1.0 / (problem.data_weight * problem.data_size)
    parts = batch if isinstance(batch, list) else [batch]
    streams = [random if i == 0 else random.fold(f"part {i}") for i in range(len(parts))]
    shares = [batch_rows(part) / batch_rows(batch) for part in parts]
    r = {name: torch.zeros_like(leaf[k]) for name, leaf in state.log_std.items()}
    infos, moved = [], theta
    for part, stream, rows in zip(parts, streams, shares):
        _, gradient, info = problem.nll(moved, part, stream)
        moved = {**moved, **{name: leaf[0] for name, leaf in info.buffers.items()}}
        infos.append(info)
        for name, leaf in r.items():
            leaf.add_(gradient[name], alpha=rows)
    norm = torch.stack([torch.linalg.vector_norm(leaf) for leaf in r.values()]).norm()[None]
    hr = {}
    for name, leaf in r.items():
        precision, center = gaussian_prior(problem, name)
        inverse = torch.exp(-2.0 * state.log_std[name][k])
        leaf.add_(theta[name] - center, alpha=precision * share)
        leaf.addcmul_(theta[name] - state.mean[name][k], inverse, value=-share)
        hr[name] = leaf * (precision * share)
    vector = {name: r.get(name, torch.zeros_like(leaf)) for name, leaf in theta.items()}
    for part, stream, rows in zip(parts, streams, shares):
        product = problem.hvp(theta, part, stream, vector)
        for name, leaf in hr.items():
            leaf.add_(product[name], alpha=rows)
    finite = torch.stack([info.finite for info in infos]).all(0)
    for leaf in hr.values():
        finite = finite & torch.isfinite(leaf).all().to(finite.device)
    nll = torch.stack([info.nll * rows for info, rows in zip(infos, shares)]).sum(0)
    return r, hr, Info(nll, norm, finite, infos[-1].buffers)
