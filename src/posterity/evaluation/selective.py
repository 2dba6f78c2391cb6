"""Selective prediction: answer where confident, and look at the risk of what is answered.

With the rows in order of falling confidence, and e the error (0 or 1),

    risk(i) = (e_1 + ... + e_i) / i,    coverage(i) = i / n,    AURC = (1/n) sum_i risk(i)

Rows of equal confidence cannot be told apart: inside a tie the risk is the expectation over the orders of the tie, so
that each error in it counts as the tie's mean error, and a threshold takes all of the tie or none.
Geifman and El-Yaniv (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.detection import newcombe
from posterity.evaluation.metric import Metric, bootstrap_counts, clopper_pearson, student_t
from posterity.evaluation.ordering import ordered, tie_ends, tie_means
from posterity.evaluation.threshold import answered_table, best_threshold, effective_reliability

__all__ = [
    "RiskCoverage",
    "answered_table",
    "aurc",
    "best_threshold",
    "coverage_at_risk",
    "effective_reliability",
    "excess_aurc",
    "risk_coverage",
]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The curve, one point per row, float64 [rows].

    Args:
        coverage: i / n, the share answered.
        risk: the expected share of errors in the i most confident rows.
        confidence: that of row i, the threshold; non-increasing.
    """

    coverage: Tensor
    risk: Tensor
    confidence: Tensor


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The risk-coverage curve.

    Args:
        confidence: [rows] any numbers, larger = surer.
        correct: [rows] bool, or 0 and 1.

    Raises DataError on NaN, ShapeError on unequal shapes.
    """
    confidence, errors, ties = ordered(confidence, correct)
    rank = torch.arange(1, len(errors) + 1, dtype=torch.float64)
    return RiskCoverage(rank / len(errors), tie_means(errors, ties).cumsum(0) / rank, confidence)


def aurc(confidence: Tensor, correct: Tensor) -> Metric:
    """The mean over i of the risk of the i most confident rows, in [0, 1]; less is better.

    AURC = (1/n) sum_j e_j w_j with w_j = 1/j + ... + 1/n is a linear statistic of ranks, and the influence of row j is

        e_j w_j - sum_{i >= j} e_i / i + constant          (both sums averaged over ties)

    so its standard error costs a sort and no resampling. The interval is AURC exp(+- t se / AURC), cut at 1, where t
    has as many degrees of freedom as there are errors (or rows without, if fewer): those carry the information. Where
    errors are few it holds the truth more often than the percentile bootstrap does.

    Without an error the upper end is e (1 - log e), the AURC of the worst order at the upper exact bound e of the error
    rate; without a right row the lower end is 1 - a + a log a, the best order at the upper bound a of the accuracy.

    Args: as of `risk_coverage`. No rows: undefined. Raises as it does.
    """
    confidence, errors, ties = ordered(confidence, correct)
    n, wrong = len(errors), int(errors.sum())
    if n == 0:
        return Metric.undefined(0, "no rows")
    rarer = clopper_pearson(0, n)[1]
    if wrong == 0:
        return Metric(0.0, 0.0, rarer * (1 - math.log(rarer)), n)
    if wrong == n:
        return Metric(1.0, 1 - rarer + rarer * math.log(rarer), 1.0, n)
    value, influence = _area(errors, ties)
    error = influence.std().item() / math.sqrt(n)
    ratio = min(student_t(min(wrong, n - wrong)) * error / value, 700.0)  # exp(710) overflows
    return Metric(value, value * math.exp(-ratio), min(value * math.exp(ratio), 1.0), n)


def excess_aurc(confidence: Tensor, correct: Tensor) -> Metric:
    """AURC minus that of the perfect order of the same errors: what a better confidence could still win.

    With k errors the perfect order has AURC* = (1/n) sum_{j <= k} j / (n - k + j), about r + (1 - r) log(1 - r) at the
    error rate r. In [0, log 2]; 0 if every error is less confident than every right row.

    A linear statistic of ranks as the AURC: its influence is that of the AURC plus e_j log(1 - r), and its interval
    E exp(+- t se / E), cut at log 2. A few misplaced rows can carry all of it, so that t has n / kurtosis of the
    influence degrees of freedom, at most those of the AURC. At E = 0 that has no width: the upper end is then the
    largest excess that an AUROC A0 of right against wrong rows allows, all misplaced errors on top, with A0 the lower
    bound of the AUROC by Newcombe,

        (1 - r + q) H(q / (1 - r + q)),    q = (1 - A0) r,    H(p) = -p log p - (1 - p) log(1 - p)

    Without an error, or without a right row, the excess is 0 and the upper end H of the exact bound of the rarer kind.

    Args: as of `risk_coverage`. No rows: undefined. Raises as it does. Source: Geifman et al. (2019).
    """
    confidence, errors, ties = ordered(confidence, correct)
    n, wrong = len(errors), int(errors.sum())
    if n == 0:
        return Metric.undefined(0, "no rows")
    if wrong in (0, n):
        return Metric(0.0, 0.0, _entropy(min(clopper_pearson(0, n)[1], 0.5)), n)
    rate = wrong / n
    area, influence = _area(errors, ties)
    steps = torch.arange(1, wrong + 1, dtype=torch.float64)
    value = area - (steps / (n - wrong + steps)).sum().item() / n
    # `ordered` is sorted: the confidences fall, so that the smallest right row against the largest wrong one decides.
    if confidence[errors == 0][-1] > confidence[errors == 1][0]:
        q = (1 - newcombe(1.0, wrong, n - wrong)[0]) * rate
        return Metric(0.0, 0.0, (1 - rate + q) * _entropy(q / (1 - rate + q)), n)
    ratio = min(half_width(influence + errors * math.log1p(-rate), min(wrong, n - wrong)) / value, 700.0)
    return Metric(value, value * math.exp(-ratio), max(value, min(value * math.exp(ratio), math.log(2))), n)


def half_width(influence: Tensor, freedom: int) -> float:
    """t se of a linear statistic; t has n / kurtosis of the influence [rows] degrees of freedom, at most `freedom`."""
    squares = influence.sub(influence.mean()).square()
    if squares.any():
        freedom = min(freedom, int(squares.sum().square() / squares.square().sum()))
    return student_t(max(1, freedom)) * influence.std().item() / math.sqrt(len(influence))


def influence(confidence: Tensor, correct: Tensor) -> Tensor:
    """[rows] the influence of each row, in the order given, on the AURC, up to a constant."""
    order = torch.as_tensor(confidence).to(torch.float64).argsort(descending=True)
    errors = 1 - torch.as_tensor(correct)[order].to(torch.float64)
    ties = torch.unique_consecutive(confidence[order], return_inverse=True)[1]
    return torch.empty_like(errors).scatter(0, order, _area(errors, ties)[1])


def coverage_at_risk(confidence: Tensor, correct: Tensor, risk: float = 0.05) -> Metric:
    """The largest share that can be answered with a risk of at most `risk`; 0 if no threshold gives that.

    Searched from the full coverage down: the risk need not grow with coverage. Only the ends of ties are thresholds.

    Args:
        confidence, correct: as of `risk_coverage`.
        risk: the error rate allowed among the answered, a fraction in [0, 1].

    The interval is by bootstrap. No rows: undefined. Raises as `risk_coverage`, and DataError on `risk`.
    """
    if not 0 <= risk <= 1:
        raise DataError(f"risk must be a fraction in [0, 1], got {risk}")
    confidence, errors, ties = ordered(confidence, correct)
    n, ends = len(errors), tie_ends(ties)
    is_end = torch.zeros(n, dtype=torch.bool).index_fill(0, ends, True)

    def largest(drawn: Tensor) -> Tensor:
        answered, wrong = drawn.cumsum(-1), (drawn * errors.to(drawn.dtype)).cumsum(-1)
        # a quotient rounds as the literal does, 1 / 200 == 0.005, where a product need not; 0 / 0 compares false
        return ((wrong / answered <= risk) & is_end).mul(answered).amax(-1).to(torch.float64) / n

    # float32 adds up counts without rounding
    metric = bootstrap_counts(largest, n, dtype=torch.float32 if n < 2**24 else torch.float64)
    return metric._replace(low=max(metric.low, 0.0), high=min(metric.high, 1.0))


def _area(errors: Tensor, ties: Tensor) -> tuple[float, Tensor]:
    """The AURC and the influence of each row on it, up to a constant."""
    rank = torch.arange(1, len(errors) + 1, dtype=torch.float64)
    mean_errors = tie_means(errors, ties)
    weight = tie_means((1 / rank).flip(0).cumsum(0).flip(0), ties)
    behind = tie_means((mean_errors / rank).flip(0).cumsum(0).flip(0), ties)
    return (mean_errors.cumsum(0) / rank).mean().item(), errors * weight - behind


def _entropy(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log1p(-p)
