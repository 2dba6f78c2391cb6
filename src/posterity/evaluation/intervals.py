"""Intervals and quantiles of a regression: how often they hold, how wide they are, and both in one number.

Tensors are [rows] or [rows, outputs] of one shape, in units of the target; `level` is the probability content of an
interval. A row with several outputs counts once, with the mean over its outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.binning import equal_mass, equal_width
from posterity.evaluation.metric import Metric, as_rows, mean_interval, name_rows, proportion_interval, row_means
from posterity.evaluation.proper import check_probs

__all__ = [
    "covered_rows",
    "interval_coverage",
    "interval_score",
    "interval_score_rows",
    "interval_width",
    "pit",
    "pit_table",
    "quantile_loss",
    "quantile_loss_rows",
    "share",
    "spread_table",
]


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
    return mean_interval(interval_score_rows(lower, upper, y, level), lowest=0.0)


def interval_score_rows(lower: Tensor, upper: Tensor, y: Tensor, level: float = 0.9) -> Tensor:
    """[rows] float64: the interval score of each row, in units of the target. Raises as `interval_score`."""
    _check_level(level)
    lower, upper, y = _bounds(lower, upper, y)
    outside = (lower - y).clamp(min=0) + (y - upper).clamp(min=0)
    return row_means(upper - lower + 2 / (1 - level) * outside)


def quantile_loss(quantile: Tensor, y: Tensor, level: float) -> Metric:
    """The mean pinball loss of a quantile: level (y - q) above it, (1 - level) (q - y) below.

    Args:
        quantile: the value that y should stay below with probability `level`, in (0, 1).

    Source: Koenker and Bassett (1978). Raises DataError on NaN or `level`, ShapeError on unequal shapes.
    """
    return mean_interval(quantile_loss_rows(quantile, y, level), lowest=0.0)


def quantile_loss_rows(quantile: Tensor, y: Tensor, level: float) -> Tensor:
    """[rows] float64: the pinball loss of each row, in units of the target. Raises as `quantile_loss`."""
    _check_level(level)
    quantile, y = as_rows(quantile=quantile, y=y)
    error = y - quantile
    return row_means(torch.maximum(level * error, (level - 1) * error))


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


def pit_table(values: Tensor, bins: int = 20) -> dict[str, list[float]]:
    """The histogram of F(y), as columns lower, upper, count: equal bins of [0, 1], closed on the right, 0 in the first.

    Flat if F is calibrated; high at both ends if it is too narrow, in the middle if too wide, at one end if shifted.

    Args:
        values: [rows] or [rows, outputs] of `pit`, in [0, 1]; every output counts.
        bins: at least 1.

    Raises DataError on NaN, a value outside [0, 1] or `bins`.
    """
    values = check_probs("values", values)
    edges = equal_width(bins, values.dtype)
    (values,) = as_rows(values=values)
    count = torch.bincount(torch.bucketize(values.flatten(), edges[1:-1]), minlength=bins)
    edges = equal_width(bins)
    return {"lower": edges[:-1].tolist(), "upper": edges[1:].tolist(), "count": count.tolist()}


def spread_table(std: Tensor, squared_error: Tensor, bins: int = 10) -> dict[str, list[float]]:
    """Does a larger std mean larger errors? By columns lower, upper, count, std, rmse; the last two agree if calibrated.

    Bins of equal mass in std, closed on the right, the first on both sides; rows of one std are never split, so that
    there may be fewer than `bins`. std is the root of the mean variance of a bin, rmse of its mean squared error.

    Args:
        std: [rows] predicted, at least 0, in units of the target.
        squared_error: [rows] (mean - y)^2.
        bins: at least 1.

    No rows: no lines. Raises DataError on NaN, a negative value or `bins`, ShapeError unless both are [rows].
    """
    std, squared_error = as_rows(std=std, squared_error=squared_error)
    if std.ndim != 1:
        raise ShapeError(f"std {list(std.shape)} must be [rows]; take a mean over the outputs first")
    for name, column in (("std", std), ("squared_error", squared_error)):
        if (bad := column < 0).any():
            raise DataError(f"{name} is negative in {name_rows(bad)}")
    where, upper = equal_mass(std, bins)
    count = torch.bincount(where, minlength=len(upper))
    return {
        "lower": torch.cat([std.min()[None], upper[:-1]]).tolist() if len(std) else [],
        "upper": upper.tolist(),
        "count": count.tolist(),
        "std": (torch.bincount(where, std.square(), len(upper)) / count).sqrt().tolist(),
        "rmse": (torch.bincount(where, squared_error, len(upper)) / count).sqrt().tolist(),
    }


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise DataError(f"level must be between 0 and 1, got {level}")


def _bounds(lower: Tensor, upper: Tensor, y: Tensor) -> list[Tensor]:
    lower, upper, y = as_rows(lower=lower, upper=upper, y=y)
    if crossed := int((lower > upper).sum()):
        raise DataError(f"lower is above upper in {crossed} of {lower.numel()} intervals")
    return [lower, upper, y]
