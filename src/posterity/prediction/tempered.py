"""log p(y | x) of a mixture of outputs at a temperature, as `Reducer`s and predictives have it, for fits by gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.prediction.closed import NormalLogits
from posterity.problem.likelihoods import ClassLikelihood, Likelihood, LocationScale
from posterity.problem.likelihoods.base import row_sum
from posterity.problem.likelihoods.labels import select

__all__ = ["tempered_log_prob"]


def tempered_log_prob(
    likelihood: Likelihood,
    outputs: Sequence[Any],
    parameters: Mapping[str, Tensor],
    targets: Any,
    temperature: Tensor,
) -> Tensor:
    """[rows] in nats, of raw targets: logits / T, or scales * sqrt(T); counts stay as they are.

    Args:
        outputs: of the network, one for each part of the mixture; or their moments, `NormalLogits`.
        temperature: T > 0, a scalar that may need a gradient.
    """
    count = len(outputs)
    if isinstance(likelihood, ClassLikelihood):
        logits = [one.at(temperature) if isinstance(one, NormalLogits) else one / temperature for one in outputs]
        each = likelihood.log_probs(_rows(logits)).unflatten(0, (count, -1))
        log_probs = each.logsumexp(0) - math.log(count)
        return row_sum(select(log_probs, likelihood.aligned(targets, log_probs.detach())))
    together = _rows(outputs)
    z = likelihood.canonical(targets, outputs[0])
    z = z.repeat(count, *[1] * (z.ndim - 1))
    if isinstance(likelihood, LocationScale):
        location, log_scale = likelihood.location_and_log_scale(together, parameters)
        found = row_sum(likelihood.log_density(z, location, log_scale + 0.5 * temperature.log()))
    else:
        found = likelihood.log_prob(together, z, parameters)
    return found.unflatten(0, (count, -1)).logsumexp(0) - math.log(count)


def _rows(outputs: Sequence[Any]) -> Any:
    """The rows of all outputs, one after the other."""
    if isinstance(outputs[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*outputs))
    return torch.cat(list(outputs))
