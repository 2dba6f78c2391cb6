"""Predicted numbers: an equal mixture of one density per draw, in the original units of the target.

    mean        mean_s m_s
    epistemic   std_s(m_s)                 population std over draws: 0 for one draw
    aleatoric   sqrt(mean_s v_s)           v_s the variance of component s
    var         epistemic^2 + aleatoric^2
    cdf         mean_s F_s                 quantiles invert it between the least and the largest component quantile
    log_prob    log mean_s prod_i f_s(y_i) - sum_i log std_i       the product over the outputs of a row
    crps        mean_s E|Y_s - y| - int F (1 - F)                  Gneiting and Raftery (2007), equation 21

Components stay in network units, `[draw, row]` or `[draw, row, ...]`; sums run in float64, results are float32, but for
locations that are more than 1e4 stds from 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.prediction.base import Predictive
from posterity.problem.likelihoods import LocationScale
from posterity.problem.likelihoods.base import numbers
from posterity.problem.scaling import Scaling
from posterity.problem.targets import align

__all__ = ["MixturePredictive"]

_BLOCK = 2**19  # components (draws x rows x outputs) worked on at a time: 4 MiB per float64 temporary
_TOLERANCE = 1e-8  # of the smallest component's std: steps this small end the search for a quantile
_FAR = 1e4  # stds from 0: float32 rounds locations there by 1e4 * 6e-8 = 6e-4 of a std
_STEPS = 100  # about 8 are needed; an end to it where something is not finite


@dataclass(frozen=True, eq=False, repr=False)
class MixturePredictive(Predictive):
    """What every mixture tells; tensors are `[rows]`, or `[rows, ...]` where a row has several outputs.

    location: `[draw, row, ...]` what the network says, in network units.
    """

    location: Tensor

    row_axis: ClassVar[Mapping[str, int]] = {"location": 1}
    discrete: ClassVar[bool] = False  # counts: the cdf is a staircase

    # --- one component: what a kind of mixture has to say, float64, in network units ---------------------------------

    @abstractmethod
    def _moments(self) -> tuple[Tensor, Tensor, Tensor | float]:
        """Means and noise variances of the components, and the variance of the mean inside each."""

    @abstractmethod
    def _log_density(self, z: Tensor) -> Tensor:
        """[draw, row, ...] log density of z `[row, ...]`."""

    @abstractmethod
    def _cdf(self, z: Tensor) -> Tensor:
        """[draw, row, ...] P(Z_s <= z)."""

    @abstractmethod
    def _distance(self, z: Tensor) -> Tensor:
        """[draw, row, ...] E|Z_s - z|."""

    @abstractmethod
    def _dispersion(self) -> Tensor:
        """[row, ...] integral of F (1 - F): half the expected distance of two independent draws from the mixture."""

    @abstractmethod
    def _quantile(self, q: float) -> Tensor:
        """[row, ...] where the mixture's cdf reaches q."""

    # --- the mixture -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.location.shape[1]

    def _sizes(self) -> dict[str, Any]:
        outputs = tuple(self.location.shape[2:])
        return {"outputs": outputs[0] if len(outputs) == 1 else outputs} if outputs else {}

    @property
    def scaling(self) -> Scaling:
        """From network units to the target's."""
        return getattr(self.likelihood, "scaling", None) or Scaling.identity()

    @cached_property
    def _summary(self) -> tuple[Tensor, Tensor, Tensor]:
        means, noise, inside = self._moments()
        shift = means - means[:1]  # exactly 0 for identical draws
        centre = shift.mean(0)
        between = (shift - centre).square().mean(0)
        return means[0] + centre, between + (inside if isinstance(inside, float) else inside.mean(0)), noise.mean(0)

    @property
    def mean(self) -> Tensor:
        """[rows(, ...)] mean of the mixture."""
        return self._located(self._summary[0])

    @property
    def epistemic(self) -> Tensor:
        """[rows(, ...)] std of the component means: what the draws disagree on."""
        return self.scaling.scale(self._summary[1].sqrt()).float()

    @property
    def aleatoric(self) -> Tensor:
        """[rows(, ...)] root of the mean component variance: noise that more data would not remove."""
        return self.scaling.scale(self._summary[2].sqrt()).float()

    @property
    def std(self) -> Tensor:
        """[rows(, ...)] std of the mixture."""
        return self.scaling.scale(self._std).float()

    @property
    def var(self) -> Tensor:
        """[rows(, ...)] variance of the mixture."""
        return self.scaling.scale(self._std).square().float()

    @property
    def _std(self) -> Tensor:
        return (self._summary[1] + self._summary[2]).sqrt()

    @property
    def per_draw(self) -> Tensor:
        """[draw, row(, ...)] component means."""
        return self._located(self._moments()[0])

    def cdf(self, y: Any) -> Tensor:
        """[rows(, ...)] P(Y <= y), for one y per output, or a number for all of them."""
        z = self._thresholds(y)
        return self._blockwise(lambda part, z: part._cdf(z).mean(0), z).float()

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """[rows(, ...)] the y with P(Y <= y) = q, 0 < q < 1, to 1e-6 of the std; a list of q adds a leading axis.

        Raises:
            ValueError: q outside (0, 1).
        """
        if not isinstance(q, (int, float)):
            return torch.stack([self.quantile(float(value)) for value in q])
        if not 0 < q < 1:
            raise ValueError(f"a quantile needs 0 < q < 1, got {q}: fractions, not percent")
        return self._located(self._blockwise(lambda part: part._quantile(float(q))))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """(lower, upper), each [rows(, ...)]: the central interval of probability `level`.

        Raises:
            ValueError: a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1), got {level}: a fraction, not percent")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def log_prob(self, targets: Any) -> Tensor:
        """[rows] log of the mean over draws of a row's density, the product over its outputs; original units."""
        z = self._targets(targets)
        outputs = self.location[0, :1].numel() if len(self) else 0
        volume = self.scaling.log_volume * (outputs / self.scaling.std.numel())
        draws = math.log(self.location.shape[0])

        def mixed(part: MixturePredictive, z: Tensor) -> Tensor:
            density = part._log_density(z)
            return torch.logsumexp(density if density.ndim == 2 else density.flatten(2).sum(2), 0)

        return (self._blockwise(mixed, z, rows_only=True) - draws - volume).float()

    def crps(self, targets: Any) -> Tensor:
        """[rows(, ...)] continuous ranked probability score of each output, in units of the target; less is better."""
        z = self._targets(targets)
        crps = self._blockwise(lambda part, z: part._distance(z).mean(0) - part._dispersion(), z)
        return self.scaling.scale(crps).float()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _located(self, z: Tensor) -> Tensor:
        """z in original units, float32 unless that would round a std away: targets like 1e8 +- 2 are float64."""
        values = self.scaling.location(z)
        return values if bool((self.scaling.mean.abs() > _FAR * self.scaling.std).any()) else values.float()

    def _targets(self, targets: Any) -> Tensor:
        """float64 targets in network units, one for each output."""
        assert isinstance(self.likelihood, LocationScale)
        return self.likelihood.standardized(targets, tuple(self.location.shape[1:])).cpu()

    def _thresholds(self, y: Any) -> Tensor:
        shape = tuple(self.location.shape[1:])
        value = torch.full(shape, float(y), dtype=torch.float64) if isinstance(y, (int, float)) else numbers(y)
        return self.scaling.standardize(align(value, shape, "predictions")).cpu()

    def _parts(self) -> Iterator[slice]:
        per_row = max(1, self.location[:, :1].numel())
        size = max(1, _BLOCK // per_row)
        for start in range(0, len(self), size):
            yield slice(start, start + size)

    def _blockwise(self, function: Callable[..., Tensor], *tensors: Tensor, rows_only: bool = False) -> Tensor:
        """`function(part, ...)` over blocks of rows, joined: temporaries stay small whatever the number of rows."""
        parts = [function(self[rows], *(tensor[rows] for tensor in tensors)) for rows in self._parts()]
        empty = torch.zeros((0,) if rows_only else (0, *self.location.shape[2:]), dtype=torch.float64)
        return torch.cat(parts) if parts else empty

    def _solve(self, q: float, lower: Tensor, upper: Tensor) -> Tensor:
        """Where the mixture's cdf reaches q, between the least and the largest quantile of its components.

        Regula falsi, Illinois variant (Dowell and Jarratt, 1971): a bracket as in bisection, a third of its steps.
        """
        _, noise, spread = self._moments()
        tolerance = _TOLERANCE * (noise + spread).amin(0).sqrt()
        low, high = (self._cdf(end).mean(0) - q for end in (lower, upper))
        found, side = lower, torch.zeros_like(lower)
        for _ in range(_STEPS):
            share = low / (low - high)
            last, inside = found, (share >= 0) & (share <= 1)
            found = torch.where(inside, lower + share * (upper - lower), (lower + upper) / 2)
            if not bool(((found - last).abs() > tolerance).any()):
                break
            value = self._cdf(found).mean(0) - q
            below = value < 0
            # an end that stays twice in a row counts half, so that the next step lands on its side
            low = torch.where(below, value, torch.where(side > 0, low / 2, low))
            high = torch.where(below, torch.where(side < 0, high / 2, high), value)
            lower, upper = torch.where(below, found, lower), torch.where(below, upper, found)
            side = torch.where(below, -1.0, 1.0)
        return found
