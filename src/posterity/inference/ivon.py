"""The improved variational online Newton method.

    q = N(m, diag s^2),    s^2 = 1 / (w N (h + d)),    d = prior precision / (w N),    theta ~ q,    g = grad of the mean NLL

    e <- b1 e + (1 - b1) g                                            momentum
    f  = w N (h + d) (theta - m) g                                    Hessian estimate by reparameterisation
    h <- b2 h + (1 - b2) f + (1 - b2)^2 (h - f)^2 / (2 (h + d))       keeps h + d > 0
    m <- m - a (h0 + d) (e / (1 - b1^t) + d (m - c)) / (h + d)

A natural-gradient step on the evidence lower bound of `MeanFieldVI`, with three trees of state. Shen et al. (2024),
algorithm 1, with step sizes rescaled by h0 + d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

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
from posterity.inference.gaussian import diagonal_posterior, noisy, prior_where_idle, typical_std
from posterity.inference.schedule import Cosine, Schedule, at
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Normal, Prior
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, tree_map

__all__ = ["IVON", "IVONState"]


class IVONState(NamedTuple):
    mean: Tree  # [members, ...], with the changed buffers
    precision: Tree  # [members, ...] w N (h + d): what a draw needs
    momentum: Tree  # [members, ...]
    idle_std: Tree  # [members, ...] of weights that no forward reaches: their prior's
    step: Tensor  # () int64
    steps: Tensor  # () int64


@dataclass(frozen=True)
class IVON(Algorithm):
    """Improved variational online Newton.

    Args:
        learning_rate: a, a number or a schedule; large values (0.01 to 1) are normal.
        init_hessian: h0 > 0, the mean loss's curvature assumed at the start.
        beta1: momentum, in [0, 1).
        beta2: how slowly h follows, in [0, 1); None for 1 - 10 / steps, at least 0.99: h forgets its start within a run.
        clip: largest |step| of a mean before the learning rate is applied, or None.

    Raises:
        ValueError: a rate out of range.
        PriorError: a prior that is not normal.
    """

    name: ClassVar[str] = "ivon"
    own_draws: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Flat)

    learning_rate: Schedule = Cosine(0.1)
    init_hessian: float = 0.3
    beta1: float = 0.9
    beta2: float | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        Algorithm.__post_init__(self)
        if not (self.init_hessian > 0 and math.isfinite(self.init_hessian)):
            raise ValueError(f"init_hessian must be finite and > 0, got {self.init_hessian}")
        if not (0.0 <= self.beta1 < 1.0 and (self.beta2 is None or 0.0 <= self.beta2 < 1.0)):
            raise ValueError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> IVONState:
        self.check_prior(problem)
        size = problem.data_weight * problem.data_size
        std = (size * self.init_hessian) ** -0.5
        mean, idle_std = prior_where_idle(problem, stacked_start(problem, start, self.members), std)
        used = varying(problem, mean)
        return IVONState(
            mean=mean,
            precision={
                n: torch.full_like(x, size * self.init_hessian + gaussian_prior(problem, n)[0]) for n, x in used.items()
            },
            momentum=tree_map(torch.zeros_like, used),
            idle_std=idle_std,
            step=torch.tensor(0),
            steps=torch.tensor(plan.steps),
        )

    def step(
        self, problem: Problem, state: IVONState, batches: Sequence[Batch], random: Random
    ) -> tuple[IVONState, Info]:
        t, steps, random = int(state.step), int(state.steps), own_stream(problem, random)
        thetas = noisy(state.mean, state.precision, torch.rsqrt, random, t)
        _, gradient, info = gradients(problem, thetas, batches, random, t)
        apart = problem.drawing.size > 1
        if apart:
            for name in state.precision:
                thetas[name].sub_(state.mean[name]).mul_(gradient[name])
            average_(problem, (gradient, state.precision), (thetas, state.precision))
        rate = at(self.learning_rate, t, steps)
        keep = 1.0 - (max(1.0 - 10.0 / steps, 0.99) if self.beta2 is None else self.beta2)
        debias = 1.0 - self.beta1 ** (t + 1)
        size = problem.data_weight * problem.data_size
        alive = survivors(info)
        for name, precision in state.precision.items():
            prior_precision, center = gaussian_prior(problem, name)
            stride = rate * (size * self.init_hessian + prior_precision)  # a w N (h0 + d)
            views = [state.mean[name], precision, state.momentum[name], thetas[name], gradient.pop(name)]
            if isinstance(center, Tensor):
                views.append(center.expand_as(precision).contiguous())
            scratch = torch.empty(min(precision.numel(), CHUNK), dtype=precision.dtype, device=precision.device)
            for m, p, e, theta, g, *c in chunks(*views, alive=alive):
                s = scratch[: m.numel()]
                e.lerp_(g, 1.0 - self.beta1)
                # keep u = keep (f / (h + d) - 1 + d / (h + d)), over theta; h + d <- (h + d) (1 + keep u + (keep u)^2 / 2)
                u = (theta if apart else theta.sub_(m).mul_(g)).mul_(keep * size).sub_(keep)
                u.add_(torch.reciprocal(p, out=s), alpha=keep * prior_precision)
                # the growth is >= 1/2: p stays positive
                p.addcmul_(p, torch.addcmul(u, u, u, value=0.5, out=u))
                # e / (1 - b1^t) + d (m - c)
                torch.mul(m, prior_precision / size, out=s).add_(e, alpha=1.0 / debias)
                if c:
                    s.sub_(c[0], alpha=prior_precision / size)
                if self.clip is None:
                    m.addcdiv_(s, p, value=-stride)
                else:
                    bound = rate * self.clip
                    m.sub_(s.div_(p).mul_(stride).clamp_(-bound, bound))
        keep_buffers(state.mean, info)
        return state._replace(step=state.step + 1), info

    def watch(self, problem: Problem, state: IVONState) -> dict[str, float]:
        return {"std": typical_std(tree_map(torch.rsqrt, state.precision))}

    def point(self, state: IVONState) -> Tree:
        return state.mean

    def posterior(self, state: IVONState, shards: Posterior | None = None) -> Posterior:
        return diagonal_posterior(
            state.mean, {**tree_map(torch.rsqrt, state.precision), **state.idle_std}, self.members
        )
