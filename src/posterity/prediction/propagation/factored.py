"""Weights of low rank: W = W0 + A B^T with independent normal entries of A (M, S^2) and B (P, R^2), on x ~ (u, v).

    z = B^T x:   h = P^T u,   o = R^2 (u^2 + v),   c = P^2 v                    the mean, and two parts of the variance
    y = W x:     E y = (E W) u,   Var y = (E W)^2 v + M^2 o + S^2 (h^2 + o + c)              exact, element by element

The entries of W are not independent, so that their own variances alone would say too little or too much of y. `into` is the
product with B, `out` the one with A.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.posterior.moments import FactoredNormal
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.value import Later, MeanVar, Value, join, split

__all__ = ["FactoredWeight"]

Product = Callable[[Tensor, Tensor], Tensor]


class FactoredWeight(MeanVar):
    """A weight of low rank; where its factors serve no rule, its entries count as independent.

    Args:
        mean: of the weight, where it is known.
    """

    __slots__ = ("_squares", "moment")

    def __init__(self, moment: FactoredNormal, mean: Tensor | None = None) -> None:
        super().__init__(moment.mean if mean is None else mean, Later(lambda: moment.std.square()))
        self.moment = moment
        parts = moment.left_mean, moment.left_std, moment.right_mean, moment.right_std
        self._squares = tuple(part.square() for part in parts)

    def rows(self, parts: int, i: int) -> FactoredWeight:
        moment = self.moment
        left, std, base = (
            None if leaf is None else leaf.chunk(parts)[i] for leaf in (moment.left_mean, moment.left_std, moment.base)
        )
        assert left is not None
        assert std is not None
        shape = (len(left), *moment.shape[1:])
        return FactoredWeight(moment._replace(left_mean=left, left_std=std, base=base, shape=shape))

    def product(self, x: Value, whole: Product, into: Product, out: Product) -> Value:
        """W x.

        Args:
            whole: (x, W) -> W x; into: (x, right [n, r]) -> [..., r]; out: (z, left [m, r]) -> [..., m].
        """
        u, v = split(x)
        m2, s2, p2, r2 = self._squares
        hidden = into(u, self.moment.right_mean)
        own = into(u.square() if v is None else u.square() + v, r2)
        second = hidden.square() + own
        if v is not None:
            second = second + into(v, p2)
        mean, var = whole(u, self.mean), out(own, m2) + out(second, s2)
        if v is not None:
            var = var + whole(v, self.mean.square())
        noise = current().noise
        if noise is not None:
            alone = id(self) in noise.alone
            if alone or v is not None:
                shift = noise.added(torch.zeros_like(hidden), own if alone else into(v, r2))  # type: ignore[arg-type]
                mean = mean + out(shift, self.moment.left_mean)
            mean = noise.added(mean, out(second if alone else second - hidden.square(), s2))
        return join(mean, var)
