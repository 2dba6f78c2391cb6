"""Calibration of every class, not only of the top one: does p_c = 0.2 mean class c in 2 of 10 rows?

    ECE_c = sum over bins of (count / n) |mean p_c - share of class c|,      classwise ECE = (1/C) sum_c ECE_c

over equal-width bins of p_c, closed on the right, and all n rows: the static calibration error of Nixon et al. (2019);
Kumar et al. (2019) call it marginal calibration and take squares instead of absolute values. Most p_c are near 0, so
that it is small for many classes; the value of one class says more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, ShapeError
from posterity.evaluation.binning import equal_width
from posterity.evaluation.calibration import Reliability, ece_of, half_width
from posterity.evaluation.metric import Metric
from posterity.evaluation.proper import check_probs, check_targets

__all__ = ["Classwise"]


@dataclass(frozen=True, eq=False)
class Classwise:
    """Tallies of the events (p_c, y = c) per class and bin; they add up over blocks of rows and ranks.

    Args:
        count: [classes, bins] int64 rows; each class has every row once.
        total: [classes, bins] float64 sum of p_c.
        hits: [classes, bins] int64 rows of class c.
        squares: [classes, bins] float64 sum of (p_c - 1[y = c])^2.
    """

    count: Tensor
    total: Tensor
    hits: Tensor
    squares: Tensor

    @classmethod
    def of(cls, probs: Tensor, targets: Tensor, bins: int = 15) -> Classwise:
        """The tallies of a block of rows; memory O(classes * bins) is kept.

        Args:
            probs: [rows, classes] in [0, 1].
            targets: [rows] integer class indices.
            bins: at least 1.

        Raises DataError on NaN, p outside [0, 1] or a target out of range, ShapeError on shapes.
        """
        probs = check_probs("probs", probs)
        if probs.ndim != 2:
            raise ShapeError(f"probs {list(probs.shape)} must be [rows, classes]")
        rows, classes = probs.shape
        targets = check_targets(targets, rows, classes).cpu()
        edges = equal_width(bins, probs.dtype)
        probs = probs.cpu().to(torch.float64)
        where = torch.bucketize(probs, edges[1:-1]) + bins * torch.arange(classes)
        own = where.gather(1, targets[:, None]).flatten()
        p = probs.gather(1, targets[:, None]).flatten()
        size, flat = classes * bins, where.flatten()
        squares = torch.bincount(flat, probs.square().flatten(), size)
        squares += torch.bincount(own, (1 - p).square() - p.square(), size)
        tallies = (
            torch.bincount(flat, minlength=size),
            torch.bincount(flat, probs.flatten(), size),
            torch.bincount(own, minlength=size),
            squares,
        )
        return cls(*(tally.view(classes, bins) for tally in tallies))

    def __add__(self, other: Classwise) -> Classwise:
        """The tallies of the rows of both. Raises CompatibilityError if the classes or bins differ."""
        if self.count.shape != other.count.shape:
            sizes = f"{list(self.count.shape)} and {list(other.count.shape)}"
            raise CompatibilityError(f"tallies of {sizes} classes and bins do not add up; use the same for every block")
        return Classwise(
            self.count + other.count,
            self.total + other.total,
            self.hits + other.hits,
            self.squares + other.squares,
        )

    def ece(self) -> Metric:
        """The mean over classes of the ECE of a class, a fraction in [0, 1]; n is the number of rows.

        The interval is the value +- the mean of the half-widths of the classes: the std of a mean is at most the mean
        of the stds, whatever the dependence between classes, so that it is wide rather than narrow.
        Undefined without rows, and for a single class, which has nothing to tell apart.
        """
        classes, n = len(self.count), self._rows
        if classes < 2:
            return Metric.undefined(n, "one class")
        if n == 0:
            return Metric.undefined(0, "no rows")
        value = sum(metric.value for metric in self.per_class()) / classes
        if n == 1:
            return Metric(value, math.nan, math.nan, 1, "an interval needs at least two rows")
        half = sum(map(half_width, self._tables())) / classes
        return Metric(value, max(value - half, 0.0), min(value + half, 1.0), n)

    def per_class(self) -> list[Metric]:
        """[classes] the ECE of each class with its interval; n is the number of rows, those of other classes too."""
        return [ece_of(table) for table in self._tables()]

    @property
    def _rows(self) -> int:
        return int(self.count[0].sum()) if len(self.count) else 0

    def _tables(self) -> list[Reliability]:
        edges = equal_width(self.count.shape[1])
        return [
            Reliability(edges[:-1], edges[1:], count, total / count, hits / count, (total - hits) / count, squares)
            for count, total, hits, squares in zip(self.count, self.total, self.hits, self.squares)
        ]
