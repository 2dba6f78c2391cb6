"""From outputs of a network under draws or points to named tensors, as plain modules: what an exported file ends in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.prediction.classes import CategoricalPredictive, MultilabelPredictive
from posterity.prediction.closed import Closed, probit, second_order
from posterity.problem.likelihoods import (
    Categorical,
    ClassLikelihood,
    Likelihood,
    LocationScale,
    Multilabel,
    Poisson,
    StudentT,
)
from posterity.problem.scaling import Scaling

__all__ = ["SaidClasses", "SaidClosed", "SaidNumbers", "said"]

Moments = tuple[Tensor, Tensor | None, Tensor | None]  # of logits: mean, variance, covariance


class SaidClasses(nn.Module):
    """[draws, rows, ...] outputs to `probs`, `entropy` and `epistemic` (nats), as the likelihood's predictive has them."""

    names = ("probs", "entropy", "epistemic")

    def __init__(self, likelihood: ClassLikelihood, temperature: float) -> None:
        super().__init__()
        self.likelihood, self.temperature = likelihood, temperature
        self.predictive = MultilabelPredictive if isinstance(likelihood, Multilabel) else CategoricalPredictive

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        log_probs = self.likelihood.log_probs(outputs.flatten(0, 1) / self.temperature).unflatten(0, outputs.shape[:2])
        mean = torch.logsumexp(log_probs, 0) - math.log(outputs.shape[0])
        entropy, expected = -(mean.exp() * mean).sum(-1), -(log_probs.exp() * log_probs).sum(-1).mean(0)
        epistemic = self.predictive.total(entropy - expected).clamp_min(0.0)
        return self.predictive.shown(mean), self.predictive.total(entropy), epistemic


class SaidClosed(nn.Module):
    """As `SaidClasses`, in closed form: of moments of logits [rows, C] and points on them [draws, rows, C], part by part."""

    names = SaidClasses.names

    def __init__(self, likelihood: Categorical, temperature: float, head: Closed) -> None:
        super().__init__()
        self.temperature, self.closed, self.apart = temperature, head, SaidClasses(likelihood, temperature)

    def forward(self, moments: Sequence[Moments], drawn: Sequence[Tensor]) -> tuple[Tensor, ...]:
        each = torch.stack([torch.log_softmax(self._logits(*one), -1) for one in moments])
        epistemic = torch.stack([self.apart(points)[2] for points in drawn])
        aleatoric = (-(each.exp() * each).sum(-1) - epistemic).clamp_min(0.0).mean(0)
        mean = torch.logsumexp(each, 0) - math.log(len(moments))
        entropy = -(mean.exp() * mean).sum(-1)
        return mean.exp(), entropy, (entropy - aleatoric).clamp_min(0.0)

    def _logits(self, mean: Tensor, var: Tensor | None, cov: Tensor | None) -> Tensor:
        mean, squared = mean / self.temperature, self.temperature**2
        if var is None:
            return mean
        if self.closed == "probit":
            return probit(mean, var / squared)
        return second_order(mean, var / squared, None if cov is None else cov.unsqueeze(-1) / squared)


class SaidNumbers(nn.Module):
    """[draws, rows, ...] outputs to float64 `mean`, `std` with the noise, and `epistemic`, in the units of the targets."""

    names = ("mean", "std", "epistemic")

    def __init__(self, likelihood: Any, parameters: Sequence[Mapping[str, Tensor]], temperature: float) -> None:
        super().__init__()
        self.likelihood, self.temperature = likelihood, temperature
        self._names, self._parts = tuple(parameters[0]), len(parameters)
        for name in self._names:
            self.register_buffer(name, torch.stack([part[name].detach() for part in parameters]))
        scaling = getattr(likelihood, "scaling", None) or Scaling.identity()
        self.shift: Tensor
        self.unit: Tensor
        self.register_buffer("shift", scaling.mean)
        self.register_buffer("unit", scaling.std)

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        parts = [self._moments(part, own.flatten(0, 1)) for part, own in enumerate(outputs.chunk(self._parts))]
        location, noise = (torch.cat(one).unflatten(0, outputs.shape[:2]) for one in zip(*parts))
        mean = location.mean(0)
        epistemic = (location - mean).square().mean(0)
        var = self.temperature * noise.mean(0) + epistemic
        found = self.shift + self.unit * mean, self.unit * var.sqrt(), self.unit * epistemic.sqrt()
        return found if found[0].ndim != 2 or found[0].shape[1] > 1 else tuple(one.squeeze(1) for one in found)

    def _moments(self, part: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Location, and variance of the noise, of every draw and row of a part."""
        if isinstance(self.likelihood, Poisson):
            rate = outputs.double().exp()
            return rate, rate
        own = {name: getattr(self, name)[part] for name in self._names}
        location, log_scale = self.likelihood.location_and_log_scale(outputs, own)
        df = self.likelihood.df if isinstance(self.likelihood, StudentT) else math.inf
        tails = 1.0 if math.isinf(df) else df / (df - 2)
        return location, tails * (2 * log_scale).exp().expand(location.shape)


def said(
    likelihood: Likelihood,
    parameters: Sequence[Mapping[str, Tensor]],
    temperature: float,
    head: Literal["points"] | Closed = "points",
) -> SaidClasses | SaidClosed | SaidNumbers:
    """The module for a likelihood.

    Args:
        parameters: of the likelihood, for each of the parts that as many draws come from, one after the other.

    Raises:
        CompatibilityError: one that no file can end in so far.
    """
    if head != "points" and isinstance(likelihood, Categorical):
        return SaidClosed(likelihood, temperature, head)
    if isinstance(likelihood, ClassLikelihood):
        return SaidClasses(likelihood, temperature)
    if isinstance(likelihood, LocationScale | Poisson):
        return SaidNumbers(likelihood, parameters, temperature)
    raise CompatibilityError(f"a file has no outputs for the likelihood {likelihood.name}: predict in Python")
