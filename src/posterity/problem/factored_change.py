"""A pretrained weight with a change of low rank, which alone is inferred.

    W = base + left right^T,    base [m, n] constant,  left [m, r],  right [n, r]

A Linear costs its dense product and r (m + n) more per row; the base gets no gradient. Hu et al. (2022), LoRA
(arXiv 2106.09685).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.errors import ShapeError
from posterity.problem.carrier import handles
from posterity.problem.factored import Factored
from posterity.problem.formed import Formed

__all__ = ["FactoredChange"]


class FactoredChange(Formed, parts=("base", "left", "right"), constant=("base",)):
    """The weight W = base + left right^T as a carrier.

    Args:
        base: [m, *rest], constant.
        left, right: the factors of the change, as of `Factored`.

    Raises:
        ShapeError, CompatibilityError: as `Factored`; the change has another shape than the base.
    """

    base: Tensor
    change: Factored

    @staticmethod
    def __new__(cls, base: Tensor, left: Tensor, right: Tensor) -> FactoredChange:
        change = Factored(left, right)
        if change.shape != base.shape:
            raise ShapeError(f"a change of shape {tuple(change.shape)} does not fit a base of {tuple(base.shape)}")
        carrier = Tensor._make_wrapper_subclass(cls, tuple(base.shape), dtype=left.dtype, device=left.device)
        carrier.base, carrier.change = base, change
        return carrier

    @property
    def left(self) -> Tensor:
        """[m, r]"""
        return self.change.left

    @property
    def right(self) -> Tensor:
        """[*rest, r]"""
        return self.change.right

    def form(self) -> Tensor:
        return torch.add(self.base, self.change.form())


@handles(FactoredChange, F.linear)
def _linear(input: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    if not isinstance(weight, FactoredChange):
        return NotImplemented
    return F.linear(input, weight.base, bias) + F.linear(input, weight.change)


@handles(FactoredChange, F.embedding)
def _embedding(input: Tensor, weight: Any, *args: Any, **options: Any) -> Tensor:
    if not isinstance(weight, FactoredChange):
        return NotImplemented
    change = F.embedding(input, weight.change, *args, **options)  # refuses what would rewrite the base
    return F.embedding(input, weight.base, *args, **options) + change


def _convolution(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(input: Tensor, weight: Any, bias: Tensor | None = None, *args: Any, **options: Any) -> Tensor:
        if not isinstance(weight, FactoredChange):
            return NotImplemented
        whole = convolve(input, weight.base, bias, *args, **options)
        return whole + convolve(input, weight.change, None, *args, **options)

    return rule


for _convolve in (F.conv1d, F.conv2d, F.conv3d):
    handles(FactoredChange, _convolve)(_convolution(_convolve))


@handles(FactoredChange, Tensor.detach, torch.detach)
def _detach(input: FactoredChange) -> FactoredChange:
    return FactoredChange(input.base.detach(), input.left.detach(), input.right.detach())
