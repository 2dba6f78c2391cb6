"""First and second moments of one weight tensor: what variance propagation and reports read off a posterior."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from posterity.posterior.factor_moments import FactoredNormal
from posterity.posterior.layer_moments import Layer

__all__ = ["Correlated", "Deterministic", "FactoredNormal", "Moment", "Normal"]


class Deterministic(NamedTuple):
    """A weight that does not vary."""

    mean: Tensor

    @property
    def std(self) -> Tensor:
        return torch.zeros_like(self.mean)


class Normal(NamedTuple):
    """Independent entries; `std` has the shape of `mean`."""

    mean: Tensor
    std: Tensor


class Correlated(NamedTuple):
    """The weight or the bias of one Linear whose entries are correlated; `std` is that of each entry."""

    mean: Tensor
    std: Tensor
    layer: Layer  # the same object for both


Moment = Deterministic | Normal | FactoredNormal | Correlated
