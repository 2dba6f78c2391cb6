"""Numbers as a person reads them; page.js has `fixed`, `grouped`, `percent` and `near_one` over again, to the digit."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

__all__ = ["DASH", "digits", "fixed", "grouped", "interval", "near_one", "number", "percent", "percents", "places"]

DASH = "–"
_THIN = "\u202f"  # a narrow space that does not break
_MINUS = "\u2212"


def number(value: Any) -> float | None:
    """A number of the record: null and NaN are None, the words of infinities are infinities.

    >>> [number(value) for value in (1, None, "-Infinity", float("nan"), "a word")]
    [1.0, None, -inf, None, None]
    """
    if value is None or (isinstance(value, str) and value not in ("Infinity", "-Infinity")):
        return None
    value = float(value)
    return None if math.isnan(value) else value


def fixed(value: float, decimals: int) -> str:
    """`decimals` digits behind the point, halves away from zero, thousands apart.

    >>> fixed(-1234.5, 0), fixed(0.3125, 3), fixed(-0.001, 2)
    ('−1\\u202f235', '0.313', '0.00')
    """
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    rounded = Decimal(abs(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, Context(prec=350))
    sign = _MINUS if value < 0 and rounded else ""
    return sign + f"{rounded:,f}".replace(",", _THIN)


def grouped(value: float) -> str:
    """A count, thousands apart.

    >>> grouped(1204)
    '1\\u202f204'
    """
    return fixed(value, 0)


def digits(value: float | None) -> str:
    """Three significant digits; all digits of whole numbers; an exponent below 0.001 and from a milliard on.

    >>> [digits(x) for x in (0.21449, 12.345, 12345.6, 0.5, 7.0, 2.13e-5, None)]
    ['0.214', '12.3', '12\\u202f346', '0.500', '7', '2.1e-5', '–']
    """
    if value is None:
        return DASH
    size = abs(value)
    if size == 0 or math.isinf(size) or (size < 1e9 and float(value).is_integer()):
        return fixed(value, 0)
    if not 1e-3 <= size < 1e9:
        mantissa, exponent = f"{size:.1e}".split("e")
        return f"{_MINUS if value < 0 else ''}{mantissa}e{int(exponent)}"
    return fixed(value, max(0, 2 - math.floor(math.log10(size))))


def places(values: list[float]) -> int | None:
    """Decimals that suit a column: two digits of the typical half-width `values`; None where there is nothing to go by.

    >>> places([0.023, 0.0213]), places([12.0]), places([0.0])
    (3, 0, None)
    """
    widths = sorted(abs(value) for value in values if value and math.isfinite(value))
    if not widths:
        return None
    decimals = 1 - math.floor(math.log10(widths[len(widths) // 2]))
    return max(0, decimals) if decimals <= 6 else None


def percent(fraction: float | None) -> str:
    """A fraction in percent: one decimal, more next to 0 and 100.

    >>> [percent(x) for x in (0.717, 0.9, 0.0004, 0.99996, 1.0)]
    ['71.7\\u202f%', '90\\u202f%', '0.04\\u202f%', '99.996\\u202f%', '100\\u202f%']
    """
    return DASH if fraction is None else f"{_hundred(fraction)}{_THIN}%"


def percents(low: float | None, high: float | None) -> str:
    """An interval in percent.

    >>> percents(0.008, 0.022)
    '0.8–2.2\\u202f%'
    """
    return DASH if low is None or high is None else f"{_hundred(low)}–{_hundred(high)}{_THIN}%"


def _hundred(fraction: float) -> str:
    value = 100 * fraction
    edge = min(abs(value), abs(100 - value))
    text = fixed(value, 1 if edge == 0 or edge >= 0.1 else 2 if edge >= 0.01 else 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def near_one(value: float | None) -> str:
    """A threshold on a confidence: two digits of what is missing to 1.

    >>> [near_one(x) for x in (0.83, 0.99871, 1 - 1e-9, 0.05)]
    ['0.83', '0.9987', '0.9999999', '0.05']
    """
    if value is None or value <= 0 or value >= 1:
        return digits(value)
    value = min(value, 0.9999999)
    return fixed(value, min(7, max(2, 1 - math.floor(math.log10(1 - value)))))


def interval(low: float | None, high: float | None, decimals: int | None = None, signed: bool = False) -> str:
    """low–high; with the word "to" where a sign would read as the dash does, or may (`signed`).

    >>> interval(0.1912, 0.2374, 3), interval(-0.01, 0.02, 2), interval(None, 1.0)
    ('0.191–0.237', '−0.01 to 0.02', '–')
    """
    if low is None or high is None:
        return DASH
    first, second = (digits(end) if decimals is None else fixed(end, decimals) for end in (low, high))
    return f"{first} to {second}" if signed or low < 0 else f"{first}–{second}"
