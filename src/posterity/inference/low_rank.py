"""Singular Bayesian networks: the evidence lower bound over normal factors of the weights.

    W = A B^T,   A_ik ~ N(m, s^2),  B_jk ~ N(m, s^2),   A [m, r],  B [n, r]                  every draw has rank r
    L = E[mean NLL(A B^T)] + a_t (KL(q(A) || p) + KL(q(B) || p)) / (w N)                     one draw a step

2 r (m + n) numbers stand for the 2 m n of mean-field, a Linear costs r (m + n) a row, and the entries of a row or of a
column are correlated. KL(q(A) q(B) || p p) bounds that of W from above. Toure and Stephens (2026, arXiv 2602.00387); here
with a closed-form KL, a prior on the factors that gives W the wanted variance, and factors that learn faster than dense
weights, without which they seem to underfit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from posterity.errors import PriorError
from posterity.inference.adam import Adam
from posterity.inference.algorithm import (
    Algorithm,
    Plan,
    Start,
    average_,
    gaussian_prior,
    keep_buffers,
    own_stream,
    stacked_start,
    survivors,
    varying,
)
from posterity.inference.elbo import add_divergence_, add_sampled_divergence_
from posterity.inference.factor_init import Initial, first_factors, padding_rows, typical_size
from posterity.inference.gaussian import noisy, prior_where_idle, typical_std
from posterity.inference.ranks import Rank, Ranks, tensor_ranks
from posterity.inference.reparameterised import NOISES, Noise, data_gradients
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.posterior.factors import Factors, divergence
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.carrier import is_constant, part_name, stem
from posterity.problem.factored_problem import FACTORS, FactoredProblem
from posterity.problem.priors import Flat, Normal, Prior, ScaleMixture
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, count, member, stack, tree_map, weights

__all__ = ["LowRankState", "LowRankVI"]


class LowRankState(NamedTuple):
    mean: Tree  # [members, ...] factors, what they change, other weights, the changed buffers
    log_std: Tree  # [members, ...] of what varies; -inf where an entry is constant
    mean_first: Tree  # Adam's moments of dL/dm ...
    mean_second: Tree
    log_std_first: Tree  # ... and of dL/d(log s)
    log_std_second: Tree
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    center: Tree  # [members, ...] of the factors' prior, where it is centred on the start
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class LowRankVI(Algorithm):
    """A posterior on low-rank factors of every matrix and kernel; a kernel (m, *rest) is the matrix [m, prod(rest)].

    Args:
        rank: r >= 1 for every tensor with two or more axes, capped where more would not pay (`largest_paying`); where that
            leaves less than 2, independent normals. Or ranks by name or pattern, first match first: a number, "normal" or
            "point"; tensors that none names are "normal".
        learning_rate: Adam's step size for the means of dense weights, a number or a schedule.
        factor_rate: that of the factors' means, as a multiple of it.
        std_learning_rate: of the log stds.
        relative_std: std of a factor's entry at the start, as a share of their typical size; 0 for a network of low rank
            without uncertainty, which stays one.
        initial: "scale" draws factors that give W the mean square that the network's own tensor has; "svd" takes the best
            approximation of that tensor. By default "svd" where the fit is given `start=`, else "scale".
        change: infer a change W0 + A B^T of the weights that the fit starts at (Bayesian low-rank adaptation). E W starts
            at W0, and `prior` is that of an entry of the change.
        noise: "shared", one draw a step; "antithetic", that draw and its mirror image, at twice the cost; or "local", noise
            per row in a Linear on [rows, n] whose weight each row uses once, and one draw elsewhere.
        vectors: tensors of one axis (biases, norms) as a "point" at the mode, or "normal".
        kl_ramp: share of the steps over which a_t rises from 0 to 1.
        beta1, beta2: Adam's decay rates, in [0, 1).

    Raises:
        ValueError: a hyperparameter out of range.
        PriorError: a prior that is neither normal nor a scale mixture (which is of the factors' own entries).
        CompatibilityError: a rank above min(m, n), a pattern that matches nothing, a parametrised tensor to be factored.
    """

    name: ClassVar[str] = "low-rank"
    own_draws: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, ScaleMixture, Flat)

    members: int = field(default=1, kw_only=True)
    member_init: str = field(default="reset", kw_only=True)

    rank: Ranks = 8
    learning_rate: Schedule = Cosine(2e-3)
    factor_rate: float = 4.0
    std_learning_rate: Schedule = Cosine(1e-2)
    relative_std: float = 0.1
    initial: Initial | None = None
    change: bool = False
    noise: Noise = "shared"
    vectors: Literal["point", "normal"] = "point"
    kl_ramp: float = 0.3
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if isinstance(self.rank, int) and self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if not (self.factor_rate > 0 and math.isfinite(self.factor_rate)):
            raise ValueError(f"factor_rate must be finite and > 0, got {self.factor_rate}")
        if not (self.relative_std >= 0 and math.isfinite(self.relative_std)):
            raise ValueError(f"relative_std must be finite and >= 0, got {self.relative_std}")
        if not 0.0 <= self.kl_ramp <= 1.0:
            raise ValueError(f"kl_ramp must lie in [0, 1], got {self.kl_ramp}")
        known = {
            "initial": (None, "scale", "svd"),
            "noise": NOISES,
            "vectors": ("point", "normal"),
        }
        for option, values in known.items():
            if getattr(self, option) not in values:
                raise ValueError(f"{option} must be one of {values}, got {getattr(self, option)!r}")
        if self.change and self.noise == "local":
            raise ValueError("noise='local' is of whole weights, and change=True infers a change of them")

    def stages_from_start(self, plan: Plan) -> list[tuple[Algorithm, Plan]]:
        return [(replace(self, initial=self.initial or "svd"), plan)]

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> LowRankState:
        self.check_prior(problem)
        dense, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), 0.0)
        used = varying(problem, dense)
        ranks = tensor_ranks({name: tuple(leaf.shape[1:]) for name, leaf in used.items()}, self.rank)
        members = [
            self._started(problem, member(dense, k), ranks, random.fold("factors"), k) for k in range(self.members)
        ]
        mean, log_std = (stack([one[i] for one in members]) for i in (0, 1))
        moving = {n: leaf for n, leaf in weights(mean).items() if not is_constant(n) and n not in problem.idle}
        factors = {name: leaf for name, leaf in moving.items() if stem(name) != name}
        return LowRankState(
            mean=mean,
            log_std=log_std,
            mean_first=tree_map(torch.zeros_like, moving),
            mean_second=tree_map(torch.zeros_like, moving),
            log_std_first=tree_map(torch.zeros_like, log_std),
            log_std_second=tree_map(torch.zeros_like, log_std),
            idle_std=idle_std,
            center=clone(factors) if self._centered(problem) else {},
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def _centered(self, problem: Problem) -> bool:
        """Whether the factors' prior is centred on where they start."""
        center = getattr(problem.prior, "center", "zero")
        if self.change or center == "zero":
            return False
        if center != "start":
            raise PriorError(
                "a prior centred on given weights has no centre for their factors: start the fit at those weights "
                "(start=) with center='start'"
            )
        return True

    def _started(
        self, problem: Problem, dense: Tree, ranks: Mapping[str, Rank], random: Random, k: int
    ) -> tuple[Tree, Tree]:
        """Means and log stds of one member."""
        mean, log_std = dict(dense), {}
        padding = padding_rows(problem)
        how: Any = "change" if self.change else self.initial or "scale"
        for name, weight in varying(problem, dense).items():
            precision, _ = gaussian_prior(problem, name) if isinstance(problem.prior, Normal) else (1.0, 0.0)
            prior_std = precision**-0.5 if precision > 0 else math.inf
            size = typical_size(weight, prior_std)
            rank = ranks.get(name, self.vectors)
            if isinstance(rank, int):
                size = min(size, prior_std) if self.change else size
                found = first_factors(weight, rank, how, size, self.relative_std, random.fold(name).fold(k))
                mean.pop(name)
                for part, factor in zip(FACTORS, (found.left, found.right)):
                    mean[part_name(name, part)] = factor
                    log_std[part_name(name, part)] = torch.full_like(factor, _log(found.std))
                if self.change:
                    mean[part_name(name, "base")] = weight
                if name in padding:  # a row that stays zero, or does not change
                    row = part_name(name, "left")
                    mean[row][padding[name]] = 0.0
                    log_std[row][padding[name]] = -math.inf
            elif rank == "normal":
                log_std[name] = torch.full_like(weight, _log(self.relative_std * size))
        return mean, log_std if self.relative_std > 0 else {}

    def step(
        self, problem: Problem, state: LowRankState, batches: Sequence[Batch], random: Random
    ) -> tuple[LowRankState, Info]:
        t, steps, random = int(state.step), int(state.steps), own_stream(problem, random)
        view = FactoredProblem(problem, state.mean, state.center)
        thetas = noisy(state.mean, state.log_std, torch.exp, random, t) if state.log_std else state.mean
        by_mean, by_log_std, info = data_gradients(
            self.noise, view, state.mean, state.log_std, thetas, batches, random, t
        )
        alive = survivors(info)
        share = self._ramp(t, steps) / (problem.data_weight * problem.data_size)
        for name in state.mean_first:
            self._add_prior_(view, state, name, thetas[name], by_mean[name], by_log_std.get(name), share, alive)
        average_(problem, (by_mean, state.mean_first), (by_log_std, state.log_std))
        adam = Adam(at(self.learning_rate, t, steps), t + 1, self.beta1, self.beta2)
        fast = adam._replace(step_size=self.factor_rate * adam.step_size)
        for group, rate in ((False, adam), (True, fast)):
            first = {name: leaf for name, leaf in state.mean_first.items() if (stem(name) != name) == group}
            rate.update_(state.mean, by_mean, first, state.mean_second, alive)
        spread = adam._replace(step_size=at(self.std_learning_rate, t, steps))
        spread.update_(state.log_std, by_log_std, state.log_std_first, state.log_std_second, alive)
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def _ramp(self, t: int, steps: int) -> float:
        """a_t, from near 0 to 1 over the first steps."""
        return min(1.0, (t + 1) / max(1.0, self.kl_ramp * steps))

    def _add_prior_(
        self, view: FactoredProblem, state: LowRankState, name: str, theta: Tensor, by_mean: Tensor,
        by_log_std: Tensor | None, share: float, alive: Tensor | None,
    ) -> None:  # fmt: skip
        mean = state.mean[name]
        if by_log_std is None:
            by_mean.sub_(view.prior.gradient({name: mean})[name], alpha=share)
            return
        if not isinstance(view.prior, Normal | Flat):
            pull = view.prior.gradient({name: theta})[name]
            add_sampled_divergence_(by_mean, by_log_std, mean, theta, pull, share)
            return
        precision, center = gaussian_prior(view, name)
        views = [by_mean, by_log_std, mean, state.log_std[name]]
        if isinstance(center, Tensor):
            views.append(center.expand_as(mean).contiguous())
        scratch = torch.empty(min(mean.numel(), CHUNK), dtype=mean.dtype, device=mean.device)
        for one, other, m, rho, *c in chunks(*views, alive=alive):
            add_divergence_(one, other, m, rho, precision, c[0] if c else None, share, scratch)

    def watch(self, problem: Problem, state: LowRankState) -> dict[str, float]:
        found = {}
        posteriors = [self._factors(state, k) for k in range(self.members)]
        if ranks := [r for one in posteriors for r in one.effective_ranks().values()]:
            found["effective_rank"] = sum(ranks) / len(ranks)
        stds = {name: rho.exp()[rho > -math.inf] for name, rho in state.log_std.items()}
        if stds:
            found["std"] = typical_std(stds)
        prior = FactoredProblem(problem, state.mean, state.center).prior
        if isinstance(prior, Normal):
            found["kl"] = divergence(prior, state.mean, tree_map(torch.exp, state.log_std)) / self.members
        return found

    def told(self, state: LowRankState) -> str | None:
        one = self._factors(state, 0)
        ranks = [left.shape[1] for left, _ in one.factored.values()]
        if not ranks:
            return None
        numbers = count(one.stds) + sum(leaf.numel() for name, leaf in state.mean_first.items()) // self.members
        dense = sum(len(left) * len(right) for left, right in one.factored.values())
        return (
            f"{len(ranks)} weights of {dense:,} entries as factors of rank {min(ranks)} to {max(ranks)}; "
            f"{numbers:,} numbers are learnt in all"
        )

    def point(self, state: LowRankState) -> Tree:
        return stack([self._factors(state, k).mean() for k in range(self.members)])

    def posterior(self, state: LowRankState, shards: Posterior | None = None) -> Posterior:
        found = [self._factors(state, k) for k in range(self.members)]
        return mixture([Factors(clone(one.means), clone(one.stds), clone(one.centers)) for one in found])

    def _factors(self, state: LowRankState, k: int) -> Factors:
        stds = {**tree_map(torch.exp, member(state.log_std, k)), **member(state.idle_std, k)}
        return Factors(member(state.mean, k), stds, member(state.center, k))


def _log(std: float) -> float:
    return math.log(std) if std > 0 else -math.inf
