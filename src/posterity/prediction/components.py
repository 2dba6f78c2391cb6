"""The densities that predicted numbers are mixed from: normal, Student-t, Poisson.

Each says its moments, cdf, log density, quantile, E|Z - z| and the integral of F (1 - F); `mixture` does the rest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.prediction import student
from posterity.prediction.mixture import MixturePredictive
from posterity.problem.likelihoods import LocationScale, Poisson, StudentT

__all__ = ["GaussianMixture", "PoissonMixture", "StudentMixture"]

_POINTS = (129, 2049)  # of the trapezoid rule in the CRPS of Student-t: least, most
_HALVINGS = 64  # counts below 2^63; an end to it where a rate is infinite
_CELLS = 4096  # integers that the CRPS of counts sums over one by one


@dataclass(frozen=True, eq=False, repr=False)
class _Scaled(MixturePredictive):
    """A mixture of one standard density, moved and stretched."""

    likelihood: LocationScale
    scale: Tensor

    row_axis: ClassVar[Mapping[str, int]] = {"location": 1, "scale": 1}

    def _parameters(self) -> tuple[Tensor, Tensor]:
        return self.location.double(), self.scale.double()

    def _log_density(self, z: Tensor) -> Tensor:
        location, scale = self._parameters()
        return self.likelihood.log_density(z, location, scale.log())

    def _quantile(self, q: float) -> Tensor:
        location, scale = self._parameters()
        components = location + scale * self._standard_quantile(q)
        return self._solve(q, components.amin(0), components.amax(0))

    @abstractmethod
    def _standard_quantile(self, q: float) -> float: ...


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(_Scaled):
    """Normal components N(location, scale^2 + spread), one per draw; all of it in closed form but quantiles of several.

    spread: variance of the mean inside a component (epistemic), where moments were propagated rather than drawn.
    """

    spread: Tensor | None = None

    row_axis: ClassVar[Mapping[str, int]] = {"location": 1, "scale": 1, "spread": 1}

    def _moments(self) -> tuple[Tensor, Tensor, Tensor | float]:
        return (
            self.location.double(),
            self.scale.double().square(),
            0.0 if self.spread is None else self.spread.double(),
        )

    def _parameters(self) -> tuple[Tensor, Tensor]:
        location, noise, inside = self._moments()
        return location, (noise + inside).sqrt()

    def _cdf(self, z: Tensor) -> Tensor:
        location, scale = self._parameters()
        return torch.special.ndtr((z - location) / scale)

    def _standard_quantile(self, q: float) -> float:
        return float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64)))

    def _distance(self, z: Tensor) -> Tensor:
        location, scale = self._parameters()
        return _folded(z - location, scale)

    def _dispersion(self) -> Tensor:
        """Half the mean over pairs of draws of E|Z_s - Z_t|, Z_s - Z_t ~ N(m_s - m_t, v_s + v_t)."""
        location, scale = self._parameters()
        total = torch.zeros_like(location[0])
        draws = location.shape[0]
        for first in range(draws):
            distance = _folded(location[first:] - location[first], torch.hypot(scale[first:], scale[first]))
            total += distance.sum(0) - 0.5 * distance[0]  # both orders of every pair, and the pair of itself once
        return total / draws**2


def _folded(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, std^2): m (2 Phi(m/s) - 1) + 2 s phi(m/s)."""
    z = mean / std
    return mean * torch.erf(z / math.sqrt(2)) + std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z.square())


@dataclass(frozen=True, eq=False, repr=False)
class StudentMixture(_Scaled):
    """Student-t components location + scale t_df, one per draw.

    The CRPS integrates F (1 - F) numerically, by the trapezoid rule in u, z = centre + c sinh(u), on up to 2049 points:
    error below 1e-6 of the std while locations lie within 50 smallest scales of their mean, below 0.5 % beyond.
    """

    likelihood: StudentT

    def _moments(self) -> tuple[Tensor, Tensor, Tensor | float]:
        df = self.likelihood.df
        return self.location.double(), self.scale.double().square() * (df / (df - 2)), 0.0

    def _cdf(self, z: Tensor) -> Tensor:
        location, scale = self._parameters()
        return student.cdf((z - location) / scale, self.likelihood.df)

    def _standard_quantile(self, q: float) -> float:
        return student.quantile(q, self.likelihood.df)

    def _distance(self, z: Tensor) -> Tensor:
        location, scale = self._parameters()
        return scale * student.distance((z - location) / scale, self.likelihood.df)

    def _dispersion(self) -> Tensor:
        location, scale = self._parameters()
        centre, narrow = location.mean(0), scale.amin(0)
        apart = (location - centre).abs().amax(0)
        # F (1 - F) falls as z^-df, or faster: what is left beyond `reach` is 1e-8 of a width
        reach = torch.asinh(max(12.0, 1e10 ** (1 / (self.likelihood.df - 1))) * (apart + scale.amax(0)) / narrow)
        # a step in z is cosh(u) narrow steps in u: half a scale where the farthest component lies
        wanted = (4 * reach * apart / narrow).amax().nan_to_num(0)
        points = int(wanted.clamp(_POINTS[0], _POINTS[1]))
        total = torch.zeros_like(centre)
        for point in torch.linspace(-1, 1, points, dtype=torch.float64):
            cdf = self._cdf(centre + narrow * torch.sinh(point * reach)).mean(0)
            total += cdf * (1 - cdf) * torch.cosh(point * reach)
        return total * narrow * reach * (2 / (points - 1))


@dataclass(frozen=True, eq=False, repr=False)
class PoissonMixture(MixturePredictive):
    """Poisson components; `location` holds their log rates. Quantiles are whole numbers.

    The CRPS is an exact sum over integers while components reach over fewer than 4096 of them, and a sum over every
    n-th beyond, which is exact to 1e-6 unless some draws say few and others very many.
    """

    likelihood: Poisson
    discrete: ClassVar[bool] = True

    @cached_property
    def _rate(self) -> Tensor:
        return self.location.double().exp()

    def _moments(self) -> tuple[Tensor, Tensor, Tensor | float]:
        return self._rate, self._rate, 0.0

    def _targets(self, targets: Any) -> Tensor:
        return self.likelihood.canonical(targets, self.location[0].double())

    def _log_density(self, z: Tensor) -> Tensor:
        return self.likelihood.log_mass(z.expand(self.location.shape), self.location.double())

    def _cdf(self, z: Tensor) -> Tensor:
        count = z.floor()
        cdf = torch.special.gammaincc(count.clamp_min(0) + 1, self._rate)
        return torch.where(count < 0, 0, cdf)

    def _range(self) -> tuple[Tensor, Tensor]:
        """Integers that hold all but 1e-15 of every component: 8 std, and 30 more for small rates."""
        least, most = self._rate.amin(0), self._rate.amax(0)
        return (least - 8 * least.sqrt() - 30).floor().clamp_min(0), (most + 8 * most.sqrt() + 30).ceil()

    def _quantile(self, q: float) -> Tensor:
        upper = self._range()[1]
        lower = torch.full_like(upper, -1)  # the cdf is below q at lower, and reaches it at upper
        for _ in range(_HALVINGS):
            if not bool((upper - lower > 1).any()):
                break
            middle = ((lower + upper) / 2).floor()
            below = self._cdf(middle).mean(0) < q
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return upper

    def _distance(self, z: Tensor) -> Tensor:
        """E|Y - y| = (y - rate) (2 F(y) - 1) + 2 rate f(y)."""
        return (z - self._rate) * (2 * self._cdf(z) - 1) + 2 * self._rate * self._log_density(z).exp()

    def _dispersion(self) -> Tensor:
        lower, upper = self._range()
        stride = ((upper - lower + 1) / _CELLS).ceil()
        steps = ((upper - lower) / stride).nan_to_num(0)  # nan where a rate is infinite
        total, single = torch.zeros_like(lower), bool((stride == 1).all())
        log_rate, log_mass = self.location.double(), self._log_density(lower)
        cdf = self._cdf(lower).mean(0)
        for step in range(int(steps.amax()) + 1):
            total += cdf * (1 - cdf)  # 0 beyond `upper`
            count = lower + (step + 1) * stride
            if single:  # p(k) = p(k - 1) rate / k is an order of magnitude cheaper than the incomplete gamma function
                log_mass += log_rate - count.log()
                cdf = (cdf + log_mass.exp().mean(0)).clamp_max(1)
            else:
                cdf = self._cdf(count).mean(0)
        return total * stride
