"""ELU, SELU and CELU: scale x for x >= 0, scale alpha (exp(rate x) - 1) else.

With c = f(m) and a = m / std, the part over X >= 0 of E (f - c) and E (f - c)^2 is closed, in d = m - c:

    d Phi(a) + std phi(a)        d^2 Phi(a) + 2 d std phi(a) + v (Phi(a) - a phi(a))

and the part over X < 0 is a sum over Gauss and Legendre's points between the lowest X that matters and 0: all terms are
positive.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.prediction.propagation.activations.blocks import in_blocks
from posterity.prediction.propagation.activations.moments import Moments, cdf, legendre, pdf, widened

__all__ = ["elu"]

_REACH, _FAR = 6.0, 12.0
_NODES = legendre(20)


@in_blocks
def elu(mean: Tensor, var: Tensor, alpha: float = 1.0, scale: float = 1.0, rate: float = 1.0) -> Moments:
    """Moments of scale X for X >= 0 and scale alpha (exp(rate X) - 1) else.

    SELU: alpha = 1.6733, scale = 1.0507; CELU(alpha): rate = 1 / alpha.

    Args:
        mean: of any shape.
        var: >= 0, of the same shape.
        rate: > 0.
    """
    std, share = widened(mean, var)
    # beyond _FAR the part over X >= 0 is nothing, though d / std be large
    a = (mean / std).clamp(-_FAR, _FAR)
    below = alpha * (torch.exp(rate * mean.clamp(max=0)) - 1)
    here = torch.where(mean >= 0, mean, below)
    above, density, d = cdf(a), pdf(a), mean - here
    shift = d * above + std * density
    squares = d * d * above + 2 * d * std * density + std * std * (above - a * density)
    length = _REACH - a.clamp(-_REACH, _REACH)
    for node, weight in _NODES:
        z = length * node - _REACH
        x = (mean + std * z).clamp(max=0)
        change = alpha * (torch.exp(rate * x) - 1) - here
        mass = length * torch.exp(z * z * -0.5) * (weight / math.sqrt(2 * math.pi))
        shift = shift + change * mass
        squares = squares + change * change * mass
    # rounding over std^2 would be the slope of the mean by var
    change_var = scale * scale * ((squares - shift * shift) * share).clamp(min=0)
    return Moments(scale * (here + shift * share.detach()), change_var)
