"""Stochastic gradient Langevin dynamics: the whole protocol of an algorithm in forty lines.

    theta <- theta - h grad U(theta) + sqrt(2 h T) xi,    xi ~ N(0, I)

U is the potential of all rows, -log p(theta) - w (N/B) sum over the batch of log p(y | x, theta). The draws target
exp(-U / T) up to a bias of order h: for a normal target each eigenvalue v of the covariance becomes v / (1 - h / (2 v)).
Welling and Teh (2011), equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan, Start, keep_buffers, potentials, stacked_start
from posterity.posterior.posterior import Posterior
from posterity.problem.priors import Flat, Laplace, Normal, Prior, ScaleMixture
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, clone


class SGLDState(NamedTuple):
    theta: Tree  # [members, ...] the positions of the chains, with the changed buffers
    step: Tensor  # () int64


@dataclass(frozen=True)
class SGLD(Algorithm):
    """Langevin dynamics, one chain per member.

    Args:
        step_size: h > 0.
        temperature: T >= 0 of the whole potential.
        keep_every: steps between two draws that are kept, >= 1.
        burn_in: steps before the first, >= 0.
    """

    name: ClassVar[str] = "toy-sgld"
    priors: ClassVar[tuple[type[Prior], ...]] = (Normal, Laplace, ScaleMixture, Flat)

    step_size: float = 1e-3
    temperature: float = 1.0
    keep_every: int = 1
    burn_in: int = 0

    def init(self, problem: Problem, start: Start, random: Random, plan: Plan) -> SGLDState:
        self.check_prior(problem)
        return SGLDState(stacked_start(problem, start, self.members), torch.tensor(0))

    def step(
        self, problem: Problem, state: SGLDState, batches: Sequence[Any], random: Random
    ) -> tuple[SGLDState, Info]:
        t = int(state.step)
        _, gradient, info = potentials(problem, state.theta, batches, random, t)
        for name, leaf in gradient.items():
            for k in info.finite.nonzero().flatten().tolist():
                xi = random.fold("noise").fold(name).fold(k).fold(t).normal(tuple(leaf[k].shape), like=leaf)
                noise = math.sqrt(2 * self.step_size * self.temperature)
                state.theta[name][k].sub_(leaf[k], alpha=self.step_size).add_(xi, alpha=noise)
        keep_buffers(state.theta, info)
        return state._replace(step=state.step + 1), info

    def point(self, state: SGLDState) -> Tree:
        return state.theta

    def emit(self, state: SGLDState) -> Tree | None:
        after = int(state.step) - self.burn_in
        return clone(state.theta) if after > 0 and after % self.keep_every == 0 else None

    def posterior(self, state: SGLDState, shards: Posterior | None = None) -> Posterior:
        if shards is None or not shards.finite:
            raise CompatibilityError("SGLD kept no draw: run more than burn_in + keep_every steps")
        return shards
