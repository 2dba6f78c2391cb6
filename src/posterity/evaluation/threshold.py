"""Answering only at or above a threshold of confidence: what it is worth, which one is best, and the whole table.

With a reward of 1 for a right answer, a cost c for a wrong one and 0 for none, the effective reliability is

    Phi_c = (right answers - c * wrong answers) / rows                                    Whitehead et al. (2022)

A threshold takes all rows of one confidence or none. It is picked on validation rows and judged on others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.metric import Metric, as_events, as_rows, clopper_pearson
from posterity.evaluation.ordering import ordered, tie_ends

__all__ = ["RISKS", "answered_table", "best_threshold", "effective_reliability"]

RISKS = (0.005, 0.01, 0.05)  # at which the coverage is told


def effective_reliability(confidence: Tensor, correct: Tensor, threshold: float, cost: float = 1.0) -> Metric:
    """Phi_c, the mean of 1 (answered and right), -cost (answered and wrong) and 0 (not answered), in [-cost, 1].

    Answered is a row whose confidence is at least `threshold`; infinity answers nothing, which is worth exactly 0.

    The interval combines the exact ones [l, u] of the shares p of right and q of wrong answers (Zou and Donner, 2008),

        low = Phi - sqrt(a^2 + b^2 - 2 rho a b),    a = p - l_p,  b = cost (u_q - q),    rho = -sqrt(p q / (1 - p)(1 - q))

    and high likewise with u_p - p and cost (q - l_q). It has a width where no error was seen; a t interval has none.

    Args:
        confidence: [rows] any numbers, larger = surer.
        correct: [rows] bool, or 0 and 1.
        threshold: picked on other rows, as by `best_threshold`.
        cost: of a wrong answer, in right answers; at least 0.

    No rows: undefined. Raises DataError on NaN, a threshold of NaN or a cost below 0, ShapeError on unequal shapes.
    """
    _check_cost(cost)
    if math.isnan(threshold):
        raise DataError("threshold is NaN; pick it with best_threshold, infinity answers nothing")
    confidence, correct = as_rows(confidence=confidence, correct=as_events("correct", correct))
    n = len(correct)
    if n == 0:
        return Metric.undefined(0, "no rows")
    if threshold == math.inf:
        return Metric(0.0, 0.0, 0.0, n)
    answered = confidence >= threshold
    right, wrong = int((answered & (correct == 1)).sum()), int((answered & (correct == 0)).sum())
    p, q = right / n, wrong / n
    (p_low, p_high), (q_low, q_high) = clopper_pearson(right, n), clopper_pearson(wrong, n)
    # one of them is all rows: what the one gains the other loses
    rho = -1.0 if n in (right, wrong) else -math.sqrt(p * q / ((1 - p) * (1 - q)))
    value = p - cost * q

    def reach(a: float, b: float) -> float:
        return math.sqrt(a * a + b * b - 2 * rho * a * b)

    low = value - reach(p - p_low, cost * (q_high - q))
    high = value + reach(p_high - p, cost * (q - q_low))
    return Metric(value, max(low, -cost), min(high, 1.0), n)


def best_threshold(confidence: Tensor, correct: Tensor, cost: float = 1.0) -> float:
    """The confidence from which on to answer, to have the largest Phi_c on these validation rows.

    It is one of the confidences; of equally good ones the smallest, which answers most. Infinity where answering
    nothing is better than any of them.

    Args: as of `effective_reliability`. Raises as it does, and DataError without rows.
    """
    _check_cost(cost)
    confidence, errors, ties = ordered(confidence, correct)
    if not len(errors):
        raise DataError("a threshold cannot be picked from no rows")
    ends = tie_ends(ties)
    wrong = errors.cumsum(0)[ends]
    gain = ends + 1 - wrong - cost * wrong
    # cost * wrong is rounded: what differs by less than that is equal
    best = (gain >= gain.max() - 1e-9).nonzero()[-1]
    return confidence[ends[best]].item() if gain[best] >= -1e-9 else math.inf


def answered_table(confidence: Tensor, correct: Tensor, points: int = 200) -> dict[str, list[float]]:
    """The risk-coverage curve at thresholds that exist, as columns, surest first.

    threshold; answered and errors (counts); coverage, risk (fractions) and its exact 95 % interval low, high; oracle,
    the risk of the perfect order at that coverage. The last line answers everything.

    Args:
        confidence, correct: as of `effective_reliability`.
        points: at most so many lines, about evenly spaced in coverage, and those where the coverages at `RISKS` are; at
            least 1.

    No rows: no lines. Raises DataError on NaN or `points`, ShapeError on unequal shapes.
    """
    if points < 1:
        raise DataError(f"points must be at least 1, got {points}")
    confidence, errors, ties = ordered(confidence, correct)
    n, right = len(errors), int((errors == 0).sum())
    ends = tie_ends(ties)
    if len(ends) > points:
        wanted = torch.arange(1, points + 1, dtype=torch.float64) * n / points
        kept = torch.searchsorted((ends + 1).to(torch.float64), wanted).clamp(max=len(ends) - 1)
        risk = errors.cumsum(0)[ends] / (ends + 1)
        reached = [(risk <= level).nonzero()[-1] for level in RISKS if bool((risk <= level).any())]
        ends = ends[torch.cat([kept, *reached]).unique()]
    answered = (ends + 1).tolist()
    wrong = errors.cumsum(0)[ends].long().tolist()
    bounds = [clopper_pearson(k, m) for k, m in zip(wrong, answered)]
    return {
        "threshold": confidence[ends].tolist(),
        "answered": answered,
        "coverage": [m / n for m in answered],
        "errors": wrong,
        "risk": [k / m for k, m in zip(wrong, answered)],
        "low": [low for low, _ in bounds],
        "high": [high for _, high in bounds],
        "oracle": [max(m - right, 0) / m for m in answered],
    }


def _check_cost(cost: float) -> None:
    if not 0 <= cost < math.inf:
        raise DataError(f"cost must be a number of at least 0, got {cost}")
