"""Stochastic gradient Hamiltonian Monte Carlo with a diagonal mass.

    "aboba"    theta <- theta + (h/2) p / M                          g = grad U of a batch, taken here
               p     <- c (p - (h/2) g) + xi,    p <- p - (h/2) g    xi ~ N(0, (1 - c^2) M T - (h^2/4) (1 + c)^2 V)
               theta <- theta + (h/2) p / M                          c = 1 - friction
    "euler"    p     <- c p - h g + xi                               xi ~ N(0, 2 friction M T - h^2 V)
               theta <- theta + h p / M

The draws target exp(-U / T). V is the variance of g, known from Adam's moments (`step_size.py`) or taken for zero; where it
exceeds what is to be injected nothing is, and the weight is hotter than T. Where U is quadratic with eigenvalues lambda of
M^-1 grad^2 U the splitting is exact for every h sqrt(lambda) < 2; Euler's variances are 1 / (1 - h^2 lambda / (2 (1 + c)))
times too large, below h^2 lambda = 2 (1 + c). Momenta start from N(0, T M) and are never refreshed: friction is enough.

Chen et al. (2014), equation 15; Leimkuhler and Matthews (2013) for the splitting; masses from the optimizer by Schlager et
al. (2026), arXiv 2607.25312.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posterity.inference.sampler import Move, Sampler
from posterity.random import Random

__all__ = ["SGHMC"]


@dataclass(frozen=True)
class SGHMC(Sampler):
    """Chains with momentum; arguments and errors as in `Sampler`, and

    Args:
        friction: share of the momentum that a step takes away, in (0, 1].
        integrator: "aboba" or "euler".
    """

    name: ClassVar[str] = "sghmc"
    ensemble_name: ClassVar[str] = "sghmc"

    friction: float = 0.05
    integrator: str = "aboba"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.friction <= 1.0:
            raise ValueError(f"friction must lie in (0, 1], got {self.friction}")
        if self.integrator not in ("aboba", "euler"):
            raise ValueError(f"integrator must be 'aboba' or 'euler', got {self.integrator!r}")

    @property
    def _split(self) -> bool:
        return self.integrator == "aboba"

    def momentum(self, mass: Tensor, random: Random) -> Tensor:
        z = torch.stack([random.fold(k).normal(tuple(row.shape), like=row) for k, row in enumerate(mass)])
        return z.mul_((mass * self.temperature).sqrt_())

    def before(self, theta: Tensor, momentum: Tensor, mass: Tensor, h: Tensor) -> Tensor:
        return theta.add_((momentum / mass).mul_(0.5 * h)) if self._split else theta

    def move_(self, move: Move) -> Tensor:
        p, mass, g = move.momentum, move.mass, move.gradient
        c, kick = 1.0 - self.friction, -0.5 * move.h if self._split else -move.h
        variance = mass * self._injected()
        if move.noise is not None:
            variance.addcmul_(move.noise, self._let_in(move.h), value=-1.0).clamp_(min=0.0)
        if self._split:
            p.addcmul_(g, kick).mul_(c)
        else:
            p.mul_(c).addcmul_(g, kick)
        p.addcmul_(move.normal, variance.sqrt_())
        kinetic = (p.square() / mass).mean(1)  # right after the noise
        if self._split:
            p.addcmul_(g, kick)
        move.theta.addcmul_(p / mass, 0.5 * move.h if self._split else move.h)
        return kinetic

    def _injected(self) -> float:
        """The variance of xi / sqrt(M) where gradients are exact."""
        c = 1.0 - self.friction
        return self.temperature * (1.0 - c * c if self._split else 2.0 * self.friction)

    def _let_in(self, h: Tensor) -> Tensor:
        """The factor of V in what gradient noise adds to a momentum."""
        return (0.5 * h * (2.0 - self.friction) if self._split else h).square()

    def stable_limit(self, curvature: float) -> float:
        return math.sqrt((4.0 if self._split else 4.0 - 2.0 * self.friction) / curvature)

    def noise_ratio(self, h: float, noise: Tensor, mass: Tensor) -> Tensor:
        return noise / mass * (float(self._let_in(torch.tensor(h, dtype=torch.float64))) / self._injected())

    def noise_limit(self, ratio: float, noise: Tensor, mass: Tensor) -> float:
        typical = float(self.noise_ratio(1.0, noise, mass).median())  # r goes as h^2
        return math.sqrt(ratio / typical) if typical > 0.0 else math.inf
