"""Stochastic gradient Langevin dynamics with a diagonal mass.

    theta <- theta - h M^-1 g + xi,    xi ~ N(0, 2 h T M^-1 - h^2 M^-2 V)

g is the gradient of U of a batch and V its variance, known from Adam's moments or taken for zero. The draws target
exp(-U / T); where U is quadratic with eigenvalues lambda of M^-1 grad^2 U the variances are 1 / (1 - h lambda / 2) times too
large, below h lambda = 2. Welling and Teh (2011), equation 4; Li et al. (2016) for the mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posterity.inference.sampler import Move, Sampler

__all__ = ["SGLD"]


@dataclass(frozen=True)
class SGLD(Sampler):
    """Chains without momentum; arguments and errors as in `Sampler`."""

    name: ClassVar[str] = "sgld"
    ensemble_name: ClassVar[str] = "sgld"

    def before(self, theta: Tensor, momentum: Tensor, mass: Tensor, h: Tensor) -> Tensor:
        return theta

    def move_(self, move: Move) -> None:
        rate = move.h / move.mass
        variance = rate * (2.0 * self.temperature)
        if move.noise is not None:
            variance.addcmul_(move.noise, rate.square(), value=-1.0).clamp_(min=0.0)
        move.theta.addcmul_(move.gradient, rate, value=-1.0).addcmul_(move.normal, variance.sqrt_())

    def stable_limit(self, curvature: float) -> float:
        return 2.0 / curvature

    def noise_ratio(self, h: float, noise: Tensor, mass: Tensor) -> Tensor:
        return noise / mass * (h / (2.0 * self.temperature))

    def noise_limit(self, ratio: float, noise: Tensor, mass: Tensor) -> float:
        typical = float(self.noise_ratio(1.0, noise, mass).median())  # r goes as h
        return ratio / typical if typical > 0.0 else math.inf
