"""log p(y | x) of a mixture of outputs at a temperature, as `Reducer`s and predictives have it, for fits by gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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
        outputs: of the network, one for each part of the mixture.
        temperature: T > 0, a scalar that may need a gradient.
    """
    parts = math.log(len(outputs))
    if isinstance(likelihood, ClassLikelihood):
        log_probs = torch.stack([likelihood.log_probs(one / temperature) for one in outputs]).logsumexp(0) - parts
        return row_sum(select(log_probs, likelihood.aligned(targets, log_probs.detach())))
    z = likelihood.canonical(targets, outputs[0])
    if isinstance(likelihood, LocationScale):
        wider = 0.5 * temperature.log()
        found = []
        for one in outputs:
            location, log_scale = likelihood.location_and_log_scale(one, parameters)
            found.append(row_sum(likelihood.log_density(z, location, log_scale + wider)))
    else:
        found = [likelihood.log_prob(one, z, parameters) for one in outputs]
    return torch.stack(found).logsumexp(0) - parts
