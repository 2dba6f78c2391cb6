"""Factors whose noise a row draws for itself: the local reparameterisation of a weight of low rank.

    z = x M_R + sqrt(x^2 S_R^2) e1,    y = z M_L^T + sqrt(z^2 (S_L^2)^T) e2,    e1, e2 ~ N(0, I) for every row

has for each row the law of x R L^T with L ~ N(M_L, S_L^2), R ~ N(M_R, S_R^2), and a gradient of far smaller variance than
one draw for all rows. Exact where a row uses the weight once. Kingma, Salimans and Welling (2015), for two factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.errors import CompatibilityError
from posterity.problem.carrier import handles
from posterity.problem.factored import Factored
from posterity.problem.formed import Formed, replaced

__all__ = ["LocallyNoisy"]

_TINY = 1e-12  # keeps the root's gradient finite at zero variance


class LocallyNoisy(Formed, parts=("left_mean", "left_std", "right_mean", "right_std")):
    """A random weight of low rank: a Linear on [rows, n] draws per row, everything else shares one draw.

    The noise is of torch's global generator, which a problem's forward forks.

    Args:
        left_mean, left_std: [m, r].
        right_mean, right_std: [*rest, r].

    Raises:
        CompatibilityError: a second product with rows: they would not share the weight.
    """

    left_mean: Tensor
    left_std: Tensor
    right_mean: Tensor
    right_std: Tensor

    @staticmethod
    def __new__(cls, left_mean: Tensor, left_std: Tensor, right_mean: Tensor, right_std: Tensor) -> LocallyNoisy:
        shape = left_mean.shape[0], *right_mean.shape[:-1]
        carrier = Tensor._make_wrapper_subclass(cls, shape, dtype=left_mean.dtype, device=left_mean.device)
        carrier.left_mean, carrier.left_std = left_mean, left_std
        carrier.right_mean, carrier.right_std = right_mean, right_std
        carrier._shared, carrier._spent = None, False
        return carrier

    _shared: Factored | None
    _spent: bool

    def shared(self) -> Factored:
        """One draw for all that ask."""
        if self._shared is None:
            left = self.left_mean + self.left_std * torch.randn_like(self.left_mean)
            right = self.right_mean + self.right_std * torch.randn_like(self.right_mean)
            self._shared = Factored(left, right)
        return self._shared

    def form(self) -> Tensor:
        return self.shared().form()

    @classmethod
    def fallback(
        cls, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        shared = LocallyNoisy.shared
        return function(*replaced(args, cls, shared), **replaced(dict(kwargs), cls, shared))


@handles(LocallyNoisy, F.linear)
def _linear(input: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    if not isinstance(weight, LocallyNoisy) or weight.ndim != 2 or input.ndim != 2:
        return NotImplemented
    if weight._spent:
        raise CompatibilityError(
            "a layer is used twice in one forward, and noise='local' would draw its weight anew: use noise='shared'"
        )
    weight._spent = True
    z = _noisy(input, weight.right_mean.t(), weight.right_std.t(), None)
    return _noisy(z, weight.left_mean, weight.left_std, bias)


def _noisy(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None) -> Tensor:
    """x mean^T + sqrt(x^2 (std^2)^T) e + bias"""
    spread = F.linear(x.square(), std.square()).add(_TINY).sqrt()
    return F.linear(x, mean, bias) + spread * torch.randn_like(spread)
