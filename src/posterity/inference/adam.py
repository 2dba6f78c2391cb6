"""Adam's update on chunk views, shared by the algorithms that use it.

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,    x <- x - h m^ / (sqrt(v^) + eps)

with the bias-corrected m^ = m / (1 - b1^t), v^ = v / (1 - b2^t). Kingma and Ba (2015), algorithm 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Adam"]


class Adam(NamedTuple):
    """The scalars of one step; `t` counts from 1."""

    step_size: float
    t: int
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def first_correction(self) -> float:
        return 1.0 - self.beta1**self.t

    @property
    def second_correction(self) -> float:
        return 1.0 - self.beta2**self.t

    def moments_(self, gradient: Tensor, first: Tensor, second: Tensor) -> None:
        """Update both moments in place."""
        first.lerp_(gradient, 1.0 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)

    def update_(self, value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, scratch: Tensor) -> None:
        """Update value and moments in place; `scratch` holds a temporary of the same length."""
        self.moments_(gradient, first, second)
        root = math.sqrt(self.second_correction)
        torch.sqrt(second, out=scratch).add_(self.eps * root)
        value.addcdiv_(first, scratch, value=-self.step_size * root / self.first_correction)
