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
from posterity.evaluation.metric import Metric, as_events, as_rows, bootstrap, clopper_pearson, student_t

__all__ = ["RiskCoverage", "aurc", "coverage_at_risk", "risk_coverage"]


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
    confidence, errors, ties = _ordered(confidence, correct)
    rank = torch.arange(1, len(errors) + 1, dtype=torch.float64)
    return RiskCoverage(rank / len(errors), _tie_means(errors, ties).cumsum(0) / rank, confidence)


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
    confidence, errors, ties = _ordered(confidence, correct)
    n, wrong = len(errors), int(errors.sum())
    if n == 0:
        return Metric.undefined(0, "no rows")
    rarer = clopper_pearson(0, n)[1]
    if wrong == 0:
        return Metric(0.0, 0.0, rarer * (1 - math.log(rarer)), n)
    if wrong == n:
        return Metric(1.0, 1 - rarer + rarer * math.log(rarer), 1.0, n)
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    mean_errors = _tie_means(errors, ties)
    value = (mean_errors.cumsum(0) / rank).mean().item()
    weight = _tie_means((1 / rank).flip(0).cumsum(0).flip(0), ties)
    behind = _tie_means((mean_errors / rank).flip(0).cumsum(0).flip(0), ties)
    error = (errors * weight - behind).std().item() / math.sqrt(n)
    ratio = min(student_t(min(wrong, n - wrong)) * error / value, 700.0)  # exp(710) overflows
    return Metric(value, value * math.exp(-ratio), min(value * math.exp(ratio), 1.0), n)


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
    confidence, errors, _ = _ordered(confidence, correct)

    def largest(confidence: Tensor, errors: Tensor) -> Tensor:
        confidence, order = confidence.sort(dim=-1, descending=True)
        rank = torch.arange(1, errors.shape[-1] + 1, dtype=torch.float64)
        allowed = errors.gather(-1, order).cumsum(-1) / rank <= risk
        allowed[..., :-1] &= confidence[..., 1:] != confidence[..., :-1]
        return (allowed * rank).amax(-1) / errors.shape[-1]

    metric = bootstrap(largest, confidence, errors)
    return metric._replace(low=max(metric.low, 0.0), high=min(metric.high, 1.0))


def _ordered(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence and error in order of falling confidence, and the number of the tie that each row is in."""
    confidence, correct = as_rows(confidence=confidence, correct=as_events("correct", correct))
    confidence, order = confidence.sort(descending=True)
    ties = torch.unique_consecutive(confidence, return_inverse=True)[1]
    return confidence, 1 - correct[order], ties


def _tie_means(values: Tensor, ties: Tensor) -> Tensor:
    return (torch.bincount(ties, values) / torch.bincount(ties))[ties]
