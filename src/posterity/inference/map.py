"""Maximum a posteriori by AdamW's moments.

    g = grad of the mean NLL,   m, v = Adam's moments of g alone,   r = -grad log p(theta) / (w N)
    theta <- theta - h (m^ + r) / sqrt(v^ + r^2)

The prior's pull r stays outside the moments, as AdamW's decay does (Loshchilov and Hutter, 2019), but inside the
preconditioner: the fixed point m^ + r = 0 is the exact mode of U, and a weight without data gradient moves at most h a
step. With `weight_decay` the decay is AdamW's own, theta <- theta - h (m^ / sqrt(v^) + weight_decay theta), and the prior
is left out.

The snapshot of the best validation step (weights with m^, v^ of the mean loss) is what later methods start from.
"""

from __future__ import annotations

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
    gradients,
    keep_buffers,
    stacked_start,
    survivors,
    varying,
)
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.posterior.draws import Draws
from posterity.posterior.point import Point
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Laplace, Normal, Prior, ScaleMixture
from posterity.problem.problem import Info, Problem, batch_rows
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, member, tree_map

__all__ = ["MAP", "MAPState"]


class MAPState(NamedTuple):
    theta: Tree  # [members, ...]
    first: Tree  # [members, ...] Adam's m of the mean loss
    second: Tree  # [members, ...] Adam's v
    gradient: Tree  # [members, ...] the last step's; empty before the first
    best: Tree  # [members, ...] flat snapshots at the best validation step; empty before the first
    best_nll: Tensor  # [members]
    batch_size: Tensor  # () int64
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class MAP(Algorithm):
    """Maximum a posteriori (with `members`, a deep ensemble of independent ones).

    Args:
        learning_rate: h, a number or a schedule.
        beta1, beta2: Adam's decay rates, in [0, 1).
        weight_decay: AdamW's decoupled decay instead of the prior, or None for the prior.
        keep_best: return the weights of the best validation step rather than the last, where there is validation data.

    Raises:
        ValueError: a rate out of range.
    """

    name: ClassVar[str] = "map"
    ensemble_name: ClassVar[str] = "deep-ensemble"
    elementwise: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Laplace, ScaleMixture, Flat)

    learning_rate: Schedule = Cosine(1e-3)
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float | None = None
    keep_best: bool = True

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if not (0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")
        if self.weight_decay is not None and self.weight_decay < 0:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> MAPState:
        self.check_prior(problem)
        theta = stacked_start(problem, start, self.members)
        zeros = tree_map(torch.zeros_like, varying(problem, theta))
        return MAPState(
            theta=theta,
            first=zeros,
            second=clone(zeros),
            gradient={},
            best={},
            best_nll=torch.full((self.members,), torch.inf),
            batch_size=torch.tensor(plan.batch_size),
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: MAPState, batches: Sequence[Batch], random: Random
    ) -> tuple[MAPState, Info]:
        t = int(state.step)
        _, gradient, info = gradients(problem, state.theta, batches, random, t)
        adam = Adam(at(self.learning_rate, t, int(state.steps)), t + 1, self.beta1, self.beta2)
        scale = problem.data_weight * problem.data_size
        alive = survivors(info)
        for name, first in state.first.items():
            pull = self._pull(problem, name, state.theta[name])
            views = (state.theta[name], gradient[name], first, state.second[name], pull)
            scratch = torch.empty(min(first.numel(), CHUNK), dtype=first.dtype, device=first.device)
            for theta, g, m, v, r in chunks(*views, alive=alive):
                adam.moments_(g, m, v)
                if self.weight_decay is not None:
                    theta.mul_(1.0 - adam.step_size * self.weight_decay)
                r.mul_(-1.0 / scale)
                root = torch.mul(v, 1.0 / adam.second_correction, out=scratch[: v.numel()]).addcmul_(r, r).sqrt_()
                theta.addcdiv_(r.add_(m, alpha=1.0 / adam.first_correction), root.add_(adam.eps), value=-adam.step_size)
        keep_buffers(state.theta, info)
        for k in (~info.finite).nonzero().flatten().tolist():  # a skipped step leaves the last finite gradient
            for name, leaf in gradient.items():
                leaf[k].copy_(state.gradient[name][k]) if state.gradient else leaf[k].zero_()
        rows = torch.tensor(batch_rows(batches[0]))
        return state._replace(gradient=gradient, batch_size=rows, step=state.step + 1), info

    def _pull(self, problem: Problem, name: str, theta: Tensor) -> Tensor:
        """The gradient of the log prior of one tensor (zero under `weight_decay`): never a whole tree of it at a time."""
        if self.weight_decay is not None:
            return torch.zeros_like(theta)
        return problem.prior.gradient({name: theta})[name]

    def point(self, state: MAPState) -> Tree:
        return state.theta

    def validated(self, state: MAPState, nll: Tensor) -> MAPState:
        better = nll.cpu() < state.best_nll
        if not bool(better.any()):
            return state
        now = self._statistics(state).flat()
        best = {name: leaf.clone() for name, leaf in now.items()} if not state.best else state.best
        for k in better.nonzero().flatten().tolist():
            for name, leaf in now.items():
                best[name][k].copy_(leaf[k])
        return state._replace(best=best, best_nll=torch.where(better, nll.cpu(), state.best_nll))

    def _statistics(self, state: MAPState) -> Snapshot:
        """Stacked snapshots of now, with bias-corrected moments."""
        adam = Adam(0.0, max(int(state.step), 1), self.beta1, self.beta2)
        each = torch.ones(self.members, dtype=torch.int64)
        return Snapshot(
            theta=state.theta,
            first=tree_map(lambda m: m / adam.first_correction, state.first),
            second=tree_map(lambda v: v / adam.second_correction, state.second),
            gradient=state.gradient or tree_map(torch.zeros_like, state.first),
            batch_size=state.batch_size * each,
            step=state.step * each,
        )

    def snapshots(self, state: MAPState) -> list[Tree | Snapshot]:
        chosen = Snapshot.of(state.best) if self.keep_best and state.best else self._statistics(state)
        return [chosen.member(k) for k in range(self.members)]

    def posterior(self, state: MAPState, shards: Posterior | None = None) -> Posterior:
        theta = Snapshot.of(state.best).theta if self.keep_best and state.best else state.theta
        return Point(clone(member(theta, 0))) if self.members == 1 else Draws(clone(theta))
