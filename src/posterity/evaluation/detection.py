"""Telling foreign rows from familiar ones by a single number per row, larger = more foreign.

    AUROC = P(foreign > familiar) + P(foreign = familiar) / 2,

the share of pairs in the right order, a tie counting one half (Mann and Whitney, 1947). Where one kind is rare, or only
one side of the threshold matters: the average precision of finding either kind, and the share of foreign rows that
pass as familiar at a threshold which accepts most of the familiar ones. A point posterior has no mutual information:
where all rows of both sets have one value, nothing was told apart and the metric is NaN with that reason.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.metric import NORMAL, Metric, as_rows
from posterity.evaluation.quantiles import LEVEL, binomial_tail, clopper_pearson

__all__ = ["aupr", "auroc", "fpr_at_tpr", "newcombe"]


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
    familiar, foreign = _both("AUROC", id_scores=id_scores, ood_scores=ood_scores)
    m, n = len(familiar), len(foreign)
    if _one_value(familiar, foreign):
        return Metric.undefined(m + n, "every row has the same value")
    familiar, foreign = familiar.sort().values, foreign.sort().values
    psi = share_below(familiar, foreign)
    phi = 1 - share_below(foreign, familiar)
    value = psi.mean().item()
    low, high = newcombe(value, m, n)
    if m > 1 and n > 1 and 0 < value < 1 and (variance := (psi.var() / n + phi.var() / m).item()) > 0:
        logit = math.log(value) - math.log1p(-value)
        half = NORMAL * math.sqrt(variance) / (value * (1 - value))
        low, high = _sigmoid(logit - half), _sigmoid(logit + half)
    return Metric(value, low, high, m + n)


def aupr(positive: Tensor, negative: Tensor) -> Metric:
    """The area under the precision-recall curve of finding the positive rows by their larger values: average precision

        AP = sum over values v, falling, of (recall at v - recall before v) * precision at v

    where all rows of one value enter at once, and nothing is interpolated. In (0, 1]; chance is the share of positives.

    The interval is that of Boyd, Eng and Page (2013) on the logit scale, logit(AP) +- 1.96 / sqrt(n AP (1 - AP)), which
    takes AP as a proportion of n positive rows. At AP = 1 it is the exact one of n hits in n.

    Args:
        positive: [n_positive] of the rows to be found, any unit: foreign ones, or familiar ones with the sign turned.
        negative: [n_negative] of the other rows, same unit.

    n is n_positive + n_negative. NaN with a reason if all rows have one value. Raises DataError if a set is empty or
    holds NaN.
    """
    found, others = _both("average precision", positive=positive, negative=negative)
    m, n = len(found), len(others)
    if _one_value(found, others):
        return Metric.undefined(m + n, "every row has the same value")
    found, others = found.sort().values, others.sort().values
    hits = m - torch.searchsorted(found, found)
    value = (hits / (hits + n - torch.searchsorted(others, found)).to(torch.float64)).mean().item()
    if value == 1:
        return Metric(value, *clopper_pearson(m, m), m + n)
    logit, half = math.log(value) - math.log1p(-value), NORMAL / math.sqrt(m * value * (1 - value))
    return Metric(value, _sigmoid(logit - half), _sigmoid(logit + half), m + n)


def fpr_at_tpr(id_scores: Tensor, ood_scores: Tensor, tpr: float = 0.95) -> Metric:
    """The share of foreign rows that pass as familiar where at least `tpr` of the familiar rows do; less is better.

    The threshold is the smallest value t with share(id_scores <= t) >= tpr; a foreign row passes if its value is at
    most t. Rows of value t all pass.

    The interval allows for both sets. The threshold of the population is between two order statistics of the familiar
    rows (binomial, content 97.5 %); low is the lower exact bound (97.5 %) of the share at the one, high the upper exact
    bound of the share at the other. Together it holds at least 95 times in 100, and is wide for few familiar rows: below
    n_id = log(0.0125) / log(tpr) (86 at 0.95) no order statistic bounds the threshold from above, and high is 1.

    Args:
        id_scores: [n_id] of the familiar rows, any unit, larger = more foreign.
        ood_scores: [n_ood] of the foreign rows, same unit.
        tpr: in (0, 1].

    n is n_id + n_ood. NaN with a reason if all rows have one value. Raises DataError on `tpr`, or if a set is empty or
    holds NaN.
    """
    if not 0 < tpr <= 1:
        raise DataError(f"tpr must be a fraction in (0, 1], got {tpr}")
    familiar, foreign = _both("FPR at TPR", id_scores=id_scores, ood_scores=ood_scores)
    m, n = len(familiar), len(foreign)
    if _one_value(familiar, foreign):
        return Metric.undefined(m + n, "every row has the same value")
    familiar, foreign = familiar.sort().values, foreign.sort().values
    tail = (1 - LEVEL) / 4
    # Row k in order is above the threshold if fewer than k rows are at most it, below it if at least k are smaller.
    first = _smallest(lambda k: 1 - binomial_tail(k, m, tpr) > tail, m) - 1
    last = _smallest(lambda k: binomial_tail(k, m, tpr) <= tail, m)

    def passing(k: int) -> int:
        return int(torch.searchsorted(foreign, familiar[k - 1 : k], right=True).item())

    passed = passing(_smallest(lambda k: k / m >= tpr, m))
    low = clopper_pearson(passing(first), n, 1 - 2 * tail)[0] if first else 0.0
    high = clopper_pearson(passing(last), n, 1 - 2 * tail)[1] if last <= m else 1.0
    return Metric(passed / n, low, high, m + n)


def _both(what: str, **sets: Tensor) -> list[Tensor]:
    """Both sets as float64 [rows]. Raises ShapeError or DataError, naming the set."""
    first, second = (as_rows(**{name: values})[0] for name, values in sets.items())
    if first.ndim != 1 or second.ndim != 1:
        raise ShapeError(f"one number per row is wanted, got {list(first.shape)} and {list(second.shape)}")
    if not len(first) or not len(second):
        kinds = {"id_scores": "in-distribution", "ood_scores": "out-of-distribution"}
        sizes = " and ".join(f"{len(values)} {kinds.get(name, name)}" for name, values in zip(sets, (first, second)))
        raise DataError(f"{what} needs rows of both kinds, got {sizes}")
    return [first, second]


def _one_value(first: Tensor, second: Tensor) -> bool:
    return bool((first == first[0]).all() and (second == first[0]).all())


def _smallest(holds: Callable[[int], bool], n: int) -> int:
    """The smallest k in 1..n for which a condition holds that keeps holding from there on; n + 1 if for none."""
    return bisect_left(range(1, n + 1), True, key=holds) + 1


def share_below(reference: Tensor, values: Tensor) -> Tensor:
    """For each value the share of the sorted reference that is smaller, equals counting one half."""
    smaller = torch.searchsorted(reference, values)
    up_to = torch.searchsorted(reference, values, right=True)
    return (smaller + up_to).to(torch.float64) / (2 * len(reference))


def newcombe(value: float, m: int, n: int) -> tuple[float, float]:
    """The 95 % interval of an AUROC of m against n rows from its value alone; it has a width at 0 and 1 too."""
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
