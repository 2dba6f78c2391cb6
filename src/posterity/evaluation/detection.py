"""Telling foreign rows from familiar ones by a single number per row, larger = more foreign.

    AUROC = P(foreign > familiar) + P(foreign = familiar) / 2,

the share of pairs in the right order, a tie counting one half (Mann and Whitney, 1947).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.metric import NORMAL, Metric, as_rows

__all__ = ["auroc"]


def auroc(id_scores: Tensor, ood_scores: Tensor) -> Metric:
    """The area under the ROC curve of out-of-distribution detection, in [0, 1]; 0.5 is chance. O(n log n).

    The interval is DeLong's, computed on the logit scale so that it stays inside (0, 1): with psi_j the share of
    familiar rows below foreign row j (ties half), and phi_i the share of foreign rows above familiar row i,

        var = var(psi) / n_ood + var(phi) / n_id,      logit(A) +- 1.96 sqrt(var) / (A (1 - A))

    Where that variance is 0 or unknown (the sets do not overlap, or one has a single row) it is Newcombe's: the values
    A0 with |A - A0| = 1.96 sqrt(V(A0)), V the variance of Hanley and McNeil.

    Args:
        id_scores: [n_id] of the familiar rows, any unit.
        ood_scores: [n_ood] of the foreign rows, same unit.

    n is n_id + n_ood. NaN with a reason if all rows of both sets have one value, as the mutual information of a point
    posterior. Raises DataError if a set is empty or holds NaN.
    Sources: DeLong et al. (1988); Newcombe (2006), method 5.
    """
    (familiar,), (foreign,) = as_rows(id_scores=id_scores), as_rows(ood_scores=ood_scores)
    if familiar.ndim != 1 or foreign.ndim != 1:
        raise ShapeError(f"one number per row is wanted, got {list(familiar.shape)} and {list(foreign.shape)}")
    m, n = len(familiar), len(foreign)
    if not m or not n:
        raise DataError(f"AUROC needs rows of both kinds, got {m} in-distribution and {n} out-of-distribution")
    if (familiar == familiar[0]).all() and (foreign == familiar[0]).all():
        return Metric.undefined(m + n, "every row has the same value")
    familiar, foreign = familiar.sort().values, foreign.sort().values
    psi = _share_below(familiar, foreign)
    phi = 1 - _share_below(foreign, familiar)
    value = psi.mean().item()
    low, high = _newcombe(value, m, n)
    if m > 1 and n > 1 and 0 < value < 1 and (variance := (psi.var() / n + phi.var() / m).item()) > 0:
        logit = math.log(value) - math.log1p(-value)
        half = NORMAL * math.sqrt(variance) / (value * (1 - value))
        low, high = _sigmoid(logit - half), _sigmoid(logit + half)
    return Metric(value, low, high, m + n)


def _share_below(reference: Tensor, values: Tensor) -> Tensor:
    """For each value the share of the sorted reference that is smaller, equals counting one half."""
    smaller = torch.searchsorted(reference, values)
    up_to = torch.searchsorted(reference, values, right=True)
    return (smaller + up_to).to(torch.float64) / (2 * len(reference))


def _newcombe(value: float, m: int, n: int) -> tuple[float, float]:
    pairs = (m + n) / 2 - 1

    def distance(area: float) -> float:
        spread = 1 + pairs * ((1 - area) / (2 - area) + area / (1 + area))
        return abs(value - area) - NORMAL * math.sqrt(area * (1 - area) * spread / (m * n))

    def solve(far: float) -> float:
        near = value
        for _ in range(60):  # 2^-60 is below float64's resolution of [0, 1]
            middle = (near + far) / 2
            near, far = (middle, far) if distance(middle) < 0 else (near, middle)
        return (near + far) / 2

    return (solve(0.0) if value > 0 else 0.0), (solve(1.0) if value < 1 else 1.0)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
