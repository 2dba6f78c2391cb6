"""What is said of y where a network was fitted to z = t(y), t increasing, g its inverse.

    quantile    g(q_z)                     exact, and so are intervals
    cdf         F_z(t(y))
    log_prob    log f_z(t(y)) + log t'(y)
    mean        mean_s E g(Z_s)            Z_s the normal of draw s
    epistemic   std over draws of E g(Z_s);  aleatoric   root of the mean over draws of var g(Z_s)
    crps        integral of F^2 below y and of (1 - F)^2 above it

Expectations are Gauss-Hermite sums, the CRPS Gauss-Legendre ones: see the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from posterity.interfaces.transforms import Transform
from posterity.prediction.predictive import GaussianMixture
from posterity.problem.likelihoods.base import numbers
from posterity.problem.targets import align

__all__ = ["TransformedMixture"]

_NODES = 64  # of a normal variable: means and stds of y to 1e-4 of the std, in the tests and far beyond to 2e-5
_OUTER = 24  # of the spread of a component's mean, where there is one
_LEGENDRE = 192  # on each side of y, over the range of all components
_REACH = 9.0  # stds: a normal variable is beyond with probability 2e-19


@dataclass(frozen=True, eq=False, repr=False)
class TransformedMixture(GaussianMixture):
    """A mixture of normals of z, read as a distribution of y; one target per row."""

    transform: Transform | None = None

    @classmethod
    def of(cls, pred: GaussianMixture, transform: Transform) -> TransformedMixture:
        """From what the fitted model says of z."""
        return cls(pred.likelihood, pred.draws, pred.via, pred.location, pred.scale, pred.spread, transform)

    @property
    def _map(self) -> Transform:
        return cast(Transform, self.transform)

    @cached_property
    def _told(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of the components of y [draw, row], the variance between them, the epistemic and the aleatoric one [row]."""
        parts = [self[rows]._component_moments() for rows in self._parts()]
        mean, within, between = (torch.cat(part, 1) for part in zip(*parts))
        shift = mean - mean[:1]  # exactly 0 for identical draws
        centre = shift.mean(0)
        epistemic = (shift - centre).square().mean(0) + between.mean(0)
        return mean, mean[0] + centre, epistemic, within.mean(0)

    def _component_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """[draw, row] E g(Z_s), its aleatoric variance, and the variance of its mean inside a component."""
        location, noise, inside = self._moments()
        z = self.scaling.location(location)
        noise_std = self.scaling.scale(noise.sqrt())
        start = self._map.inverse(z)
        if isinstance(inside, float):
            mean, var = _moments(self._around(z, noise_std, start), _NODES)
            return start + mean, var, torch.zeros_like(var)
        inside_std = self.scaling.scale(inside.sqrt())
        total, square, within = torch.zeros_like(z), torch.zeros_like(z), torch.zeros_like(z)
        for x, weight in zip(*_normal(_OUTER)):
            moved = z + inside_std * x
            mean, var = _moments(self._around(moved, noise_std, start), _NODES)
            total, square, within = total + weight * mean, square + weight * mean.square(), within + weight * var
        return start + total, within, (square - total.square()).clamp_min(0)

    def _around(self, z: Tensor, std: Tensor, start: Tensor) -> Callable[[float], Tensor]:
        """g(z + std x) - start, as a function of x."""
        return lambda x: self._map.inverse(z + std * x) - start

    @property
    def mean(self) -> Tensor:
        """[rows] mean of the mixture."""
        return self._told[1].float()

    @property
    def epistemic(self) -> Tensor:
        """[rows] std of the means of y: what the draws disagree on."""
        return self._told[2].sqrt().float()

    @property
    def aleatoric(self) -> Tensor:
        """[rows] root of the mean variance of y given the weights."""
        return self._told[3].sqrt().float()

    @property
    def var(self) -> Tensor:
        """[rows] variance of the mixture."""
        return (self._told[2] + self._told[3]).float()

    @property
    def std(self) -> Tensor:
        """[rows] std of the mixture."""
        return (self._told[2] + self._told[3]).sqrt().float()

    @property
    def per_draw(self) -> Tensor:
        """[draw, row] component means of y."""
        return self._told[0].float()

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """[rows] g of the quantile of z; a list of q adds a leading axis. Raises ValueError: q outside (0, 1)."""
        return self._map.inverse(super().quantile(q).double()).float()

    def cdf(self, y: Any) -> Tensor:
        """[rows] P(Y <= y), for one y per row, or a number for all of them."""
        values, inside = self._values(y)
        return torch.where(inside, super().cdf(self._map.forward(values)), 0.0)

    def log_prob(self, targets: Any) -> Tensor:
        """[rows] log density at the targets, in units of the target; -inf where a target cannot be."""
        values, inside = self._values(targets)
        found = super().log_prob(self._map.forward(values)).double() + self._map.log_slope(values)
        return torch.where(inside, found, -torch.inf).float()

    def crps(self, targets: Any) -> Tensor:
        """[rows] continuous ranked probability score, in units of the target; less is better.

        To 1e-4 of the std of y, while the draws lie within some tens of the smallest noise std of each other.
        """
        values, _ = self._values(targets, check=True)
        return self._blockwise(lambda part, y: part._crps(y), values).float()

    def _crps(self, y: Tensor) -> Tensor:
        location, scale = self._parameters()
        location, scale = self.scaling.location(location), self.scaling.scale(scale)
        reach = (_REACH + scale) * scale  # g of a log target grows as e^z, which moves its mass by scale^2
        low, high = (location - reach).amin(0), (location + reach).amax(0)
        at = self._map.forward(y).clamp(low, high)
        total = (y - self._map.inverse(at)).abs()  # beyond all components F is 0 or 1
        nodes, weights = np.polynomial.legendre.leggauss(_LEGENDRE)
        for end, sign in ((low, 1.0), (high, -1.0)):
            half = (at - end) / 2
            for node, weight in zip(nodes.tolist(), weights.tolist()):
                z = end + half * (1 + node)
                tail = torch.special.ndtr(sign * (z - location) / scale).mean(0)
                slope = torch.exp(-self._map.log_slope(self._map.inverse(z)))
                total = total + weight * half.abs() * tail.square() * slope
        return total

    def _values(self, y: Any, check: bool = False) -> tuple[Tensor, Tensor]:
        """[rows] float64 values of y and where they can be; those that cannot are replaced."""
        shape = tuple(self.location.shape[1:])
        if isinstance(y, int | float):
            values = torch.full(shape, float(y), dtype=torch.float64)
        else:
            values = align(numbers(y).double().cpu(), shape, "predictions")
        if check:
            self._map.check(values.numpy())
        inside = self._map.inside(values)
        return torch.where(inside, values, 1.0), inside


def _normal(count: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of E f(X), X ~ N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def _moments(function: Callable[[float], Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of function(X), X ~ N(0, 1); the function should be small, as its square is summed."""
    total = square = torch.zeros(())
    for x, weight in zip(*_normal(count)):
        value = function(x)
        total, square = total + weight * value, square + weight * value.square()
    return total, (square - total.square()).clamp_min(0)
