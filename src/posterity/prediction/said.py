"""From outputs of a network under draws or points to named tensors, as plain modules: what an exported file ends in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.prediction.closed import Closed, probit, second_order
from posterity.problem.likelihoods import Categorical, Gaussian, Heteroscedastic, Likelihood
from posterity.problem.scaling import Scaling

__all__ = ["SaidClasses", "SaidClosed", "SaidNumbers", "said"]

Moments = tuple[Tensor, Tensor | None, Tensor | None]  # of logits: mean, variance, covariance


class SaidClasses(nn.Module):
    """[draws, rows, C] logits to `probs` [rows, C], `entropy` and `epistemic` [rows] in nats, as `CategoricalPredictive`."""

    names = ("probs", "entropy", "epistemic")

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        log_probs = torch.log_softmax(outputs / self.temperature, -1)
        mean = torch.logsumexp(log_probs, 0) - math.log(outputs.shape[0])
        entropy = -(mean.exp() * mean).sum(-1)
        expected = -(log_probs.exp() * log_probs).sum(-1).mean(0)
        return mean.exp(), entropy, (entropy - expected).clamp_min(0.0)


class SaidClosed(nn.Module):
    """As `SaidClasses`, in closed form: of moments of logits [rows, C] and points on them [draws, rows, C], part by part."""

    names = SaidClasses.names

    def __init__(self, temperature: float, head: Closed) -> None:
        super().__init__()
        self.temperature, self.closed, self.apart = temperature, head, SaidClasses(temperature)

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

    def __init__(self, likelihood: Any, parameters: Mapping[str, Tensor], temperature: float) -> None:
        super().__init__()
        self.likelihood, self.temperature = likelihood, temperature
        for name, leaf in parameters.items():
            self.register_buffer(name, leaf.detach())
        self._names = tuple(parameters)
        scaling = likelihood.scaling or Scaling.identity()
        self.shift: Tensor
        self.unit: Tensor
        self.register_buffer("shift", scaling.mean)
        self.register_buffer("unit", scaling.std)

    def forward(self, outputs: Tensor) -> tuple[Tensor, ...]:
        rows = outputs.flatten(0, 1)
        own = {name: getattr(self, name) for name in self._names}
        location, log_scale = self.likelihood.location_and_log_scale(rows, own)
        location = location.unflatten(0, outputs.shape[:2])
        noise = self.temperature * (2 * log_scale).exp().expand(rows.shape[0], *location.shape[2:])
        mean = location.mean(0)
        epistemic = (location - mean).square().mean(0)
        var = noise.unflatten(0, outputs.shape[:2]).mean(0) + epistemic
        found = self.shift + self.unit * mean, self.unit * var.sqrt(), self.unit * epistemic.sqrt()
        return found if found[0].ndim != 2 or found[0].shape[1] > 1 else tuple(one.squeeze(1) for one in found)


def said(
    likelihood: Likelihood,
    parameters: Mapping[str, Tensor],
    temperature: float,
    head: Literal["points"] | Closed = "points",
) -> SaidClasses | SaidClosed | SaidNumbers:
    """The module for a likelihood.

    Raises:
        CompatibilityError: one that no file can end in so far.
    """
    if isinstance(likelihood, Categorical):
        return SaidClasses(temperature) if head == "points" else SaidClosed(temperature, head)
    if isinstance(likelihood, Gaussian | Heteroscedastic):
        return SaidNumbers(likelihood, parameters, temperature)
    raise CompatibilityError(
        f"a file can say classes (categorical) and numbers (gaussian, heteroscedastic), not {likelihood.name}: predict in "
        "Python"
    )
