"""PAC-Bayes bounds: what the error on the rows of a fit promises about the error on new ones.

For a loss in [0, 1], N independent rows and a prior p that was fixed before they were seen: with probability 1 - delta over
the rows, for all posteriors q at once,

    kl(L_train(q) || L(q)) <= ( KL(q || p) + ln(2 sqrt(N) / delta) ) / N        Seeger (2002); Maurer (2004) for 2 sqrt(N)
    L(q) <= L_train(q) + sqrt( ( KL(q || p) + ln(2 sqrt(N) / delta) ) / (2 N) )  McAllester (1999), by Pinsker's inequality

L(q) is the Gibbs error: each row judged by a draw of its own. kl(a || b) is the divergence of two coins, in nats. The first
bound is never the larger one.
"""

from __future__ import annotations

import math

from posterity.errors import DataError

__all__ = ["binary_kl", "kl_inverse", "mcallester", "sampling_bound", "seeger"]


def binary_kl(a: float, b: float) -> float:
    """kl(a || b) = a ln(a / b) + (1 - a) ln((1 - a) / (1 - b)) in nats, of a, b in [0, 1]; infinite where b rules a out."""
    if a == b:
        return 0.0
    if (b <= 0 < a) or (a < 1 <= b):
        return math.inf
    near = abs(b - a)  # log1p of the difference where the two logarithms would cancel
    yes = no = 0.0
    if a > 0:
        yes = -a * math.log1p((b - a) / a) if near < a / 2 else a * (math.log(a) - math.log(b))
    if a < 1:
        rest = 1 - a
        no = -rest * math.log1p((a - b) / rest) if near < rest / 2 else rest * (math.log1p(-a) - math.log1p(-b))
    return max(yes + no, 0.0)


def kl_inverse(risk: float, bound: float) -> float:
    """The largest p in [risk, 1] with kl(risk || p) <= bound, rounded up; in [0, 1], and at most risk + sqrt(bound / 2).

    Args:
        risk: a share, in [0, 1].
        bound: in nats, >= 0; infinity gives 1.

    Raises:
        DataError: an argument out of range.
    """
    _check_share(risk)
    if not bound >= 0:
        raise DataError(f"a divergence is at least 0 nats, got {bound}")
    if risk == 0:
        return -math.expm1(-bound)
    low, high = risk, min(1.0, risk + math.sqrt(bound / 2))  # Pinsker: beyond it kl exceeds the bound
    while low < (middle := (low + high) / 2) < high:
        if binary_kl(risk, middle) <= bound:
            low = middle
        else:
            high = middle
    return high


def mcallester(risk: float, kl: float, rows: int, delta: float) -> float:
    """risk + sqrt((KL + ln(2 sqrt(N) / delta)) / (2 N)); may exceed 1, where it says nothing.

    Args:
        risk: the Gibbs error on the N rows, in [0, 1].
        kl: KL(q || p) in nats, >= 0; rows: N >= 1; delta: in (0, 1), the probability that the bound is wrong.

    Raises:
        DataError: an argument out of range.
    """
    _check_share(risk)
    return risk + math.sqrt(_exponent(kl, rows, delta) / 2)


def seeger(risk: float, kl: float, rows: int, delta: float) -> float:
    """kl^-1(risk, (KL + ln(2 sqrt(N) / delta)) / N), in [risk, 1]; arguments and errors as of `mcallester`."""
    return kl_inverse(risk, _exponent(kl, rows, delta))


def sampling_bound(risk: float, draws: int, delta: float) -> float:
    """A bound on the Gibbs error of q on given rows, whose mean over finitely many draws is `risk`.

        kl^-1(risk, ln(2 / delta) / draws)        with probability 1 - delta over the draws

    For independent draws, each with an error in [0, 1], not necessarily of one law. A whole certificate at 1 - delta takes
    this at a part of delta, and one of the bounds above, with the outcome as its risk, at the rest.

    Raises:
        DataError: an argument out of range.

    Source: Langford and Caruana (2001), "(Not) bounding the true error"; Hoeffding (1963), theorem 1.
    """
    _check_delta(delta)
    if draws < 1:
        raise DataError(f"a sampling bound needs at least one draw, got {draws}")
    return kl_inverse(risk, math.log(2 / delta) / draws)


def _exponent(kl: float, rows: int, delta: float) -> float:
    """(KL + ln(2 sqrt(N) / delta)) / N."""
    _check_delta(delta)
    if not kl >= 0:
        raise DataError(f"a divergence is at least 0 nats, got {kl}")
    if rows < 1:
        raise DataError(f"a bound needs at least one row, got {rows}")
    return (kl + math.log(2 * math.sqrt(rows) / delta)) / rows


def _check_share(risk: float) -> None:
    if not 0 <= risk <= 1:
        raise DataError(f"an error is a share between 0 and 1, got {risk}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise DataError(f"delta is a probability between 0 and 1, got {delta}")
