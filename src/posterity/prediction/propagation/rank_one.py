"""Variances of a weight as products r_i c_j: two products of a matrix and its input instead of three.

    s_ij ~ r_i c_j,    r_i = mean_j s_ij,  c_j = mean_i s_ij / mean s      rows and columns keep their sums
    y = W x,  x ~ (m, v):    var_i = sum_j W_ij^2 v_j + r_i sum_j c_j (m_j^2 + v_j)

The second sum is one number for all outputs. A kernel (m, *rest) is read as the matrix [m, prod(rest)]: one number per
position. Source of the factors: Adafactor (Shazeer and Stern, 2018), where they stand for a second moment of gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.posterior.moments import Normal
from posterity.posterior.posterior import Posterior
from posterity.prediction.propagation.value import Later, MeanVar, Value, mean_of, split

__all__ = ["RankOneWeight", "factors", "rank_one_errors", "saves"]

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class RankOneWeight(MeanVar):
    """A weight of rank-one variance; where that serves no rule, its variances are written out.

    Args:
        mean: [m, *rest].
        row: [m], column: [*rest], >= 0.
        square: of the mean, where it is known.
    """

    __slots__ = ("_square", "column", "row")

    def __init__(self, mean: Tensor, row: Tensor, column: Tensor, square: Tensor | None = None) -> None:
        super().__init__(mean, Later(lambda: row.reshape(-1, *[1] * column.ndim) * column))
        self.row, self.column, self._square = row, column, square

    @classmethod
    def of(cls, mean: Tensor, var: Tensor) -> RankOneWeight:
        """Of a weight with these variances."""
        return cls(mean, *factors(var))

    @property
    def square(self) -> Tensor:
        """That of the mean; kept, since every pass asks for it."""
        if self._square is None:
            self._square = self.mean.square()
        return self._square

    def rows(self, parts: int, i: int) -> RankOneWeight:
        mean, row, square = (leaf.chunk(parts)[i] for leaf in (self.mean, self.row, self.square))
        return RankOneWeight(mean, row, self.column, square)

    def turned(self) -> RankOneWeight:
        """The transpose of a matrix."""
        return RankOneWeight(self.mean.mT, self.column, self.row, self.square.mT)

    def product(
        self, x: Value, whole: Product, shared: Callable[[Tensor, Tensor], Tensor], bias: Value | None
    ) -> Value:
        """W x + b.

        Args:
            whole: (x, W, b) -> W x + b, of shape [..., m] or [rows, m, positions...]; b [m] or None.
            shared: (x, column) -> the sum that outputs share, [..., 1] or [rows, 1 or m, positions...].
        """
        m, later = mean_of(x), x.later if isinstance(x, MeanVar) else None
        shift, shift_var = (None, None) if bias is None else split(bias)

        def variance() -> Tensor:
            v = None if later is None else later()
            own = shared(m.square() if v is None else torch.addcmul(v, m, m), self.column)
            axes = [1] * (self.column.ndim - 1)
            row = self.row.reshape(-1, *axes)
            if v is not None:
                return torch.addcmul(whole(v, self.square, shift_var), own, row)
            return own * row if shift_var is None else torch.addcmul(shift_var.reshape(-1, *axes), own, row)

        return MeanVar(whole(m, self.mean, shift), Later(variance))


def saves(shape: torch.Size) -> bool:
    """Whether rank one makes a product cheaper: of matrices, and of kernels that see more than one channel."""
    return len(shape) > 1 and min(shape[0], shape[1]) > 1


def factors(var: Tensor) -> tuple[Tensor, Tensor]:
    """Row [m] and column [*rest] of variances [m, *rest], whose product has the same sums over rows and over columns."""
    row, column = var.flatten(1).mean(1), var.mean(0)
    mean = row.mean()
    return row, column / torch.where(mean > 0, mean, 1.0)


def rank_one_errors(posterior: Posterior) -> dict[str, float]:
    """|s - r c| / |s|, Frobenius norms, of each weight that `Rules(variance="rank-one")` changes."""
    found = {}
    for name, moment in posterior.moments().items():
        if isinstance(moment, Normal) and saves(moment.std.shape):
            var = moment.std.double().square()
            row, column = factors(var)
            size = torch.linalg.vector_norm(var)
            gap = torch.linalg.vector_norm(var.flatten(1) - row[:, None] * column.flatten())
            found[name] = float(gap / size) if float(size) > 0 else 0.0
    return found
