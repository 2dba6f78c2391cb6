"""Quantiles of the beta, Student and binomial distributions, which exact intervals are made of.

All come from one function, the regularised incomplete beta function I_x(a, b), by its continued fraction (Numerical
Recipes, 3rd edition, section 6.4) and bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from posterity.errors import DataError

__all__ = ["LEVEL", "NORMAL", "binomial_tail", "clopper_pearson", "student_t"]

LEVEL = 0.95
NORMAL = NormalDist().inv_cdf(0.5 + LEVEL / 2)  # 1.96


def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a proportion of which k of n were seen; (0, 1) for n = 0.

    It holds the true proportion at least 95 times in 100, or as `level` says, whatever n. Milliseconds, up to n = 1e7.
    Raises DataError unless 0 <= k <= n. Source: Clopper and Pearson (1934).
    """
    if not 0 <= k <= n:
        raise DataError(f"{k} of {n} is not a proportion")
    tail = (1 - level) / 2
    low = _beta_quantile(tail, k, n - k + 1) if k > 0 else 0.0
    high = _beta_quantile(1 - tail, k + 1, n - k) if k < n else 1.0
    return low, high


@lru_cache(maxsize=1024)
def student_t(freedom: int) -> float:
    """The two-sided 95 % quantile t of Student's distribution, P(|T| <= t) = 0.95, for `freedom` >= 1.

    t^2 / (freedom + t^2) is Beta(1/2, freedom/2).
    """
    x = _beta_quantile(LEVEL, 0.5, freedom / 2)
    return math.sqrt(freedom * x / (1 - x))


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) of X the number of successes in n trials of probability p: I_p(k, n - k + 1)."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    return 1.0 if p >= 1 else _beta_cdf(p, k, n - k + 1)


def _beta_cdf(x: float, a: float, b: float) -> float:
    """I_x(a, b) by the modified Lentz recursion; about sqrt(max(a, b)) / 10 terms at the quantiles needed here."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1_000_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / (1 + even * d), 1 + even / c
        fraction *= c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / (1 + odd * d), 1 + odd / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def _beta_quantile(p: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if _beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2
