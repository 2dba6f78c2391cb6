"""The lowest threshold whose risk among the answered rows is bounded, whatever the model and the distribution.

With the n calibration rows in order of falling certainty and k_m errors among the m surest,

    p_m = P(Binomial(m, max_risk) <= k_m)        small where the risk is below max_risk
    m   = the last of start, start + 1, ... before the first p_m > 1 - confidence        fixed-sequence testing
    cut = just above the certainty of row m + 1

start does not depend on the rows: every test is at the full 1 - confidence, where binary search (Geifman and El-Yaniv,
2017) shares it out over log2 n. It is valid though m is random: given the row m + 1 the m before it are independent rows
of what the cut answers; and to end beyond a place where the risk crosses max_risk, the test at that place must have been
rejected, and there k is Binomial(m, max_risk), however many rows lie before. Tied rows are answered together and tested
at the end of the tie; with ties the same holds where a lower cut has no lower risk.

Sources: Bauer (1991); Angelopoulos et al. (2021), "Learn then test", section 2.3; Clopper and Pearson (1934).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.ordering import ordered, tie_ends
from posterity.evaluation.quantiles import binomial_tail, clopper_pearson

__all__ = ["Guarantee", "allowed_errors", "check_risk", "control_risk", "first_rank", "rows_needed", "upper_bound"]


@dataclass(frozen=True)
class Guarantee:
    """What calibration rows promise about new rows of the same distribution.

    Args:
        max_risk: the error rate allowed among the answered.
        confidence: the probability, over calibration rows, that it is kept.
        cut: new rows are answered whose certainty is at least this; infinity answers nothing, -infinity everything.
        rows: of the calibration, without those that look foreign.
        answered, errors: how many of them lie at or above the cut, and how many of these are wrong.
        tried, tried_errors: the last test that was made and failed; 0 where there was none.
    """

    max_risk: float
    confidence: float
    cut: float
    rows: int
    answered: int
    errors: int
    tried: int = 0
    tried_errors: int = 0

    @property
    def holds(self) -> bool:
        """Whether anything is answered."""
        return self.answered > 0

    @property
    def coverage(self) -> float:
        """The share of the calibration rows that is answered."""
        return self.answered / self.rows if self.rows else math.nan

    @property
    def risk(self) -> float:
        """The error rate among them; NaN if there are none."""
        return self.errors / self.answered if self.answered else math.nan

    @property
    def upper(self) -> float:
        """The exact upper bound of the risk at the cut; at most `max_risk`, or 1 where nothing is answered."""
        return upper_bound(self.errors, self.answered, self.confidence)

    @property
    def needed(self) -> int:
        """How many rows without an error guarantee `max_risk`."""
        return rows_needed(self.max_risk, self.confidence)

    def __str__(self) -> str:
        sure = f"{100 * self.confidence:g} % confidence"
        if self.holds:
            return (
                f"answers {100 * self.coverage:.1f} % of the rows; risk <= {self.max_risk:g} guaranteed with {sure}: "
                f"{plural(self.errors, 'error')} in {self.answered:,} answered rows, at most {self.upper:.4f}"
            )
        says = f"risk <= {self.max_risk:g} cannot be guaranteed with {sure}"
        if self.rows < self.needed:
            bound = upper_bound(0, self.rows, self.confidence)
            return (
                f"{says} from {plural(self.rows, 'row')}: without an error they bound it by {bound:.4f}, and "
                f"{self.needed:,} rows without an error are needed"
            )
        bound = upper_bound(self.tried_errors, self.tried, self.confidence)
        allowed = allowed_errors(self.tried, self.max_risk, self.confidence)
        return (
            f"{says} with {plural(self.tried_errors, 'error')} in the {self.tried:,} surest of {self.rows:,} rows: they "
            f"bound it by {bound:.4f}; {allowed} would be allowed there ({self.needed:,} rows are needed without an error)"
        )

    def to_json(self) -> dict[str, Any]:
        """Every field; a cut that is infinite is null where everything is answered and "Infinity" where nothing is."""
        cut = None if self.cut == -math.inf else "Infinity" if self.cut == math.inf else self.cut
        return {**asdict(self), "cut": cut}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Guarantee:
        """The inverse of `to_json`."""
        return cls(**{**record, "cut": -math.inf if record["cut"] is None else float(record["cut"])})


def control_risk(certainty: Tensor, correct: Tensor, max_risk: float, confidence: float = 0.95) -> Guarantee:
    """The lowest cut with P(risk of the answered <= max_risk) >= confidence over independent calibration rows.

    Args:
        certainty: [rows] any numbers, larger = surer.
        correct: [rows] bool, or 0 and 1.
        max_risk: in (0, 1).
        confidence: in (0.5, 1).

    Nothing is answered where no cut can be guaranteed. Raises DataError on NaN or an argument out of range, ShapeError on
    unequal shapes.
    """
    check_risk(max_risk, confidence)
    certainty, errors, ties = ordered(certainty, correct)
    n = len(errors)
    start = first_rank(n, max_risk, confidence)
    ends = (tie_ends(ties) + 1).tolist() if n else []
    wrong = errors.cumsum(0).long().tolist()
    answered, tried = 0, 0
    for end in ends:
        if end < start:
            continue
        # without a new error p falls with m: only rows with one are tested
        if (not answered or wrong[end - 1] > wrong[answered - 1]) and not _bounded(
            wrong[end - 1], end, max_risk, confidence
        ):
            tried = end
            break
        answered = end
    if not answered:
        cut = math.inf
    elif answered == n:
        cut = -math.inf
    else:
        cut = math.nextafter(certainty[answered].item(), math.inf)
    found = [wrong[rank - 1] if rank else 0 for rank in (answered, tried)]
    return Guarantee(max_risk, confidence, cut, n, answered, found[0], tried, found[1])


def first_rank(rows: int, max_risk: float, confidence: float) -> int:
    """Where the sequence starts: the least m that allows as many errors as sqrt(needed * rows) surest rows do.

    Fewer, and a single error among the surest ends it; more, and a model that is sure of few rows answers none.
    """
    needed = rows_needed(max_risk, confidence)
    if rows <= needed:
        return needed
    around = int(math.sqrt(needed * rows))
    allowed = allowed_errors(around, max_risk, confidence)
    low, high = 0, around
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _bounded(allowed, middle, max_risk, confidence) else (middle, high)
    return high


def rows_needed(max_risk: float, confidence: float) -> int:
    """The least n with (1 - max_risk)^n <= 1 - confidence: so many rows without an error guarantee `max_risk`.

    >>> rows_needed(0.02, 0.95)
    149
    """
    n = max(1, math.floor(math.log(1 - confidence) / math.log1p(-max_risk)))
    while not _bounded(0, n, max_risk, confidence):
        n += 1
    return n


def allowed_errors(rows: int, max_risk: float, confidence: float) -> int:
    """The largest k whose exact upper bound with `rows` rows is at most `max_risk`; -1 if not even 0 is."""
    low, high = -1, rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _bounded(middle, rows, max_risk, confidence) else (low, middle)
    return low


def upper_bound(errors: int, rows: int, confidence: float) -> float:
    """The exact one-sided upper bound of an error rate; 1 without rows. Clopper and Pearson (1934)."""
    return clopper_pearson(errors, rows, 2 * confidence - 1)[1]


def plural(count: int, what: str) -> str:
    """ "1 error", "2 errors"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _bounded(errors: int, rows: int, max_risk: float, confidence: float) -> bool:
    """Whether P(Binomial(rows, max_risk) <= errors) <= 1 - confidence."""
    return binomial_tail(errors + 1, rows, max_risk) >= confidence


def check_risk(max_risk: float, confidence: float) -> None:
    if not 0 < max_risk < 1:
        raise DataError(f"max_risk must be a fraction between 0 and 1, got {max_risk}")
    if not 0.5 < confidence < 1:
        raise DataError(f"confidence must be a fraction between 0.5 and 1, got {confidence}")
