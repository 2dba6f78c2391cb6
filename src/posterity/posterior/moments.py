"""First and second moments of one weight tensor: what variance propagation and reports read off a posterior."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from posterity.posterior.factor_moments import FactoredNormal

__all__ = ["Deterministic", "FactoredNormal", "Moment", "Normal"]


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


Moment = Deterministic | Normal | FactoredNormal
