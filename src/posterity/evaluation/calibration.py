"""Calibration of the top class: does a confidence of 0.8 mean right in 8 of 10?

Rows are sorted into equal-width bins of confidence, each closed on the right: [0, 1/B], (1/B, 2/B], ..., ((B-1)/B, 1].
So 0 is in the first bin, 1.0 (what float32 softmax gives from a logit gap of 17) in the last, and every row in one.
Bins of equal mass hold equally many rows, as far as ties allow: where most rows are sure, they look closer.

    ECE = sum over bins of (count / n) |mean confidence - accuracy|

computed from the same table that a reliability diagram draws. Guo et al. (2017), equation 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.evaluation.binning import equal_mass, equal_width
from posterity.evaluation.metric import LEVEL, Metric, as_events, as_rows, clopper_pearson, mean_interval
from posterity.evaluation.proper import check_probs
from posterity.random import Random

__all__ = ["Reliability", "confidence_gap", "ece", "ece_of", "half_width", "reliability"]

# Monte Carlo draws behind the interval of the ECE: they give the quantile 0.975 of a normal to
# sqrt(0.975 * 0.025 / 2000) / (0.058 * 1.96) = 3 %.
_DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Reliability:
    """The table behind the diagram: one entry per bin, float64; NaN in empty bins, which a plot leaves blank.

    Args:
        lower, upper: [bins] edges; a bin holds lower < confidence <= upper (the first one 0 as well).
        count: [bins] int64; they add up to the number of rows.
        confidence: [bins] mean confidence.
        accuracy: [bins] share that is right.
        gap: [bins] confidence - accuracy; positive = over-confident.
        squares: [bins] sum over rows of (confidence - correct)^2, 0 in empty bins.
    """

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor
    gap: Tensor
    squares: Tensor

    def columns(self) -> dict[str, list[float]]:
        """The table by column: lower, upper, count, confidence, accuracy, low, high, gap.

        low and high are the exact 95 % interval of the accuracy of a bin; NaN where the bin is empty.
        """
        hits = (self.accuracy * self.count).nan_to_num().round().long().tolist()
        bounds = [clopper_pearson(k, n) if n else (math.nan, math.nan) for k, n in zip(hits, self.count.tolist())]
        return {
            "lower": self.lower.tolist(),
            "upper": self.upper.tolist(),
            "count": self.count.tolist(),
            "confidence": self.confidence.tolist(),
            "accuracy": self.accuracy.tolist(),
            "low": [low for low, _ in bounds],
            "high": [high for _, high in bounds],
            "gap": self.gap.tolist(),
        }


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15, mass: bool = False) -> Reliability:
    """Count, mean confidence and accuracy in bins of confidence.

    Args:
        confidence: [rows] the probability of what was predicted, in [0, 1].
        correct: [rows] bool, or 0 and 1.
        bins: at least 1.
        mass: bins of equal mass instead of equal width. Rows of one confidence are never split and empty bins vanish,
            so that there may be fewer than `bins`. A bin ends at the largest confidence in it, the last one at 1.

    Raises DataError on NaN or a confidence more than 1e-6 outside [0, 1], ShapeError on unequal shapes.
    """
    confidence = check_probs("confidence", confidence)
    edges = equal_width(bins, confidence.dtype)
    confidence, correct = as_rows(confidence=confidence, correct=as_events("correct", correct))
    if mass:
        where, upper = equal_mass(confidence, bins)
        edges = torch.cat([edges[:1], upper[:-1], edges[-1:]])
    else:
        where = torch.bucketize(confidence, edges[1:-1])
    bins = len(edges) - 1
    count = torch.bincount(where, minlength=bins)
    total = torch.bincount(where, confidence, bins)
    right = torch.bincount(where, correct, bins)
    squares = torch.bincount(where, (confidence - correct).square(), bins)
    # 0 / 0 = NaN marks the empty bins
    return Reliability(edges[:-1], edges[1:], count, total / count, right / count, (total - right) / count, squares)


def ece(confidence: Tensor, correct: Tensor, bins: int = 15, mass: bool = False) -> Metric:
    """The expected calibration error of the top class, a fraction in [0, 1]: `ece_of` the table of these rows.

    Args: as of `reliability`. No rows: undefined; one row: no interval. Raises as `reliability`.
    """
    return ece_of(reliability(confidence, correct, bins, mass))


def ece_of(table: Reliability) -> Metric:
    """ECE = sum_b |D_b| with D_b = (count_b / n) gap_b, and its interval, ECE +- `half_width` cut to [0, 1].

    No rows: undefined; one row: no interval. The interval takes the bins as given, also those of equal mass.
    """
    n = int(table.count.sum())
    if n == 0:
        return Metric.undefined(0, "no rows")
    filled = table.count > 0
    value = (table.count * table.gap)[filled].abs().sum().item() / n
    if n == 1:
        return Metric(value, math.nan, math.nan, 1, "an interval needs at least two rows")
    half = half_width(table)
    return Metric(value, max(value - half, 0.0), min(value + half, 1.0), n)


def half_width(table: Reliability) -> float:
    """Half the width of the 95 % interval of the ECE; at least two rows.

    The bootstrap does not give an interval here: |D_b| has a corner at 0, and resampling adds noise to noise, so that
    the interval of a calibrated model lies above its ECE. Instead, with D_b = delta_b + N_b and N_b Gaussian,

        | sum |D_b| - sum |delta_b| |  <=  | sum_known sign(D_b) N_b |  +  sum_others |N_b|

    where the sign of a bin is known if |D_b| exceeds max(2, sqrt(log n)) of its std; the 0.975 quantile of the right
    side without the outer bars is the half-width. The interval holds the binned error of the population at least 95
    times in 100, and more often where many small gaps add up. Two half rows, one right and one wrong, are added to the
    variance of each bin, so that a bin without an error is not taken as known. (The choice of signs is the moment
    selection of Andrews and Soares, 2010.)
    """
    n = int(table.count.sum())
    filled = table.count > 0
    shift = (table.count * table.gap)[filled] / n
    mean = table.confidence[filled]
    second = (table.squares[filled] + 0.5 * (mean.square() + (1 - mean).square())) / n**2
    variance = second - shift.square() / n
    known = shift.abs() > max(2.0, math.sqrt(math.log(n))) * variance.sqrt()
    # The N_b have covariance diag(second) - D D^T / n; the sum of the known ones keeps all of it, the rest are small.
    common = (second[known].sum() - shift[known].abs().sum().square() / n).clamp(min=0).sqrt()
    draws = Random(0).fold("ece").normal((_DRAWS, len(shift) + 1), like=second)
    error = common * draws[:, -1] + draws[:, :-1].abs() @ variance.sqrt().masked_fill(known, 0.0)
    return torch.quantile(error, 0.5 + LEVEL / 2).item()


def confidence_gap(confidence: Tensor, correct: Tensor) -> Metric:
    """Mean confidence minus accuracy, in [-1, 1]: positive = over-confident. The count-weighted sum of the bins' gaps.

    Args: as of `reliability`, without bins. Raises as it does.
    """
    confidence, correct = as_rows(
        confidence=check_probs("confidence", confidence), correct=as_events("correct", correct)
    )
    return mean_interval(confidence - correct, -1.0, 1.0)
