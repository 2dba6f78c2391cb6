"""Intervals and quantiles of a regression: how often they hold, how wide they are, and both in one number.

Tensors are [rows] or [rows, outputs] of one shape, in units of the target; `level` is the probability content of an
interval. A row with several outputs counts once, with the mean over its outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.metric import Metric, as_rows, mean_interval, proportion_interval, row_means
from posterity.evaluation.proper import check_probs

__all__ = ["covered_rows", "interval_coverage", "interval_score", "interval_width", "pit", "quantile_loss", "share"]


def covered_rows(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """[rows]: whether lower <= y <= upper, bool for one output; the share of the outputs, float64, for several."""
    lower, upper, y = _bounds(lower, upper, y)
    inside = ((lower <= y) & (y <= upper)).reshape(len(y), -1) if len(y) else y.new_zeros(0, 1, dtype=torch.bool)
    return inside[:, 0] if inside.shape[1] == 1 else inside.to(torch.float64).mean(1)


def interval_coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Metric:
    """The share of targets inside their interval, ends included; to be compared with the level.

    The interval is exact for one output. With several outputs, which are not independent within a row, it is that of
    the mean over rows. Raises DataError on NaN or lower > upper, ShapeError on unequal shapes.
    """
    return share(covered_rows(lower, upper, y))


def share(covered: Tensor) -> Metric:
    """The metric of `covered_rows`: an exact proportion of bool rows, a mean of shares."""
    if covered.dtype == torch.bool:
        return proportion_interval(int(covered.sum()), len(covered))
    return mean_interval(covered, 0.0, 1.0)


def interval_width(lower: Tensor, upper: Tensor) -> Metric:
    """The mean of upper - lower. Raises as `interval_coverage`."""
    lower, upper, _ = _bounds(lower, upper, lower)
    return mean_interval(row_means(upper - lower), lowest=0.0)


def interval_score(lower: Tensor, upper: Tensor, y: Tensor, level: float = 0.9) -> Metric:
    """The mean of the interval score of Gneiting and Raftery (2007), equation 43; less is better.

        (upper - lower) + 2 / (1 - level) * (distance from y to the interval)

    It is proper: least, in expectation, for the two true quantiles. Raises as `interval_coverage`, and on `level`.
    """
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, got {level}")
    lower, upper, y = _bounds(lower, upper, y)
    outside = (lower - y).clamp(min=0) + (y - upper).clamp(min=0)
    return mean_interval(row_means(upper - lower + 2 / (1 - level) * outside), lowest=0.0)


def quantile_loss(quantile: Tensor, y: Tensor, level: float) -> Metric:
    """The mean pinball loss of a quantile: level (y - q) above it, (1 - level) (q - y) below.

    Args:
        quantile: the value that y should stay below with probability `level`, in (0, 1).

    Source: Koenker and Bassett (1978). Raises DataError on NaN or `level`, ShapeError on unequal shapes.
    """
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, got {level}")
    quantile, y = as_rows(quantile=quantile, y=y)
    error = y - quantile
    return mean_interval(row_means(torch.maximum(level * error, (level - 1) * error)), lowest=0.0)


def pit(cdf: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """The probability integral transform F(y), [rows] or [rows, outputs] in [0, 1]; uniform if F is calibrated.

    Args:
        cdf: F of each row at a value of each row, as the `cdf` of a prediction.
        y: the targets.

    Raises DataError where F(y) is NaN or not a probability, ShapeError if its shape is not that of y.
    Source: Dawid (1984).
    """
    values, _ = as_rows(pit=check_probs("cdf(y)", cdf(y)), y=y)
    return values


def _bounds(lower: Tensor, upper: Tensor, y: Tensor) -> list[Tensor]:
    lower, upper, y = as_rows(lower=lower, upper=upper, y=y)
    if crossed := int((lower > upper).sum()):
        raise DataError(f"lower is above upper in {crossed} of {lower.numel()} intervals")
    return [lower, upper, y]
