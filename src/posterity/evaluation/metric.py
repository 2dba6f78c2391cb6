"""A metric: a value, its 95 % interval, the number of rows, and, where something is undefined, the reason.

Intervals for three kinds of value, all two-sided and of content 95 %:

    a mean of rows      m +- t s / sqrt(n),  t the Student quantile of n - 1 degrees of freedom
    a share of rows     exact (Clopper and Pearson, 1934): the quantiles 0.025 of Beta(k, n - k + 1) and
                        0.975 of Beta(k + 1, n - k)
    anything else       the percentile bootstrap over rows (Efron, 1979)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.quantiles import LEVEL, NORMAL, clopper_pearson, student_t
from posterity.random import Random

__all__ = [
    "LEVEL",
    "NORMAL",
    "Metric",
    "as_events",
    "as_rows",
    "bootstrap",
    "bootstrap_counts",
    "clopper_pearson",
    "mean_interval",
    "name_rows",
    "proportion_interval",
    "row_means",
    "student_t",
]

_BOTH_TAILS = torch.tensor([0.5 - LEVEL / 2, 0.5 + LEVEL / 2], dtype=torch.float64)

# 2**20 float64 are 8 MiB: what one chunk of bootstrap replicates holds of each column. Counts stay in the cache.
_CHUNK = 2**20
_COUNTS = 2**17


class Metric(NamedTuple):
    """One number and how well it is known.

    Args:
        value: the metric; NaN where it is undefined.
        low, high: the 95 % interval; NaN where there is none.
        n: the rows it was computed from.
        reason: why `value`, `low` or `high` is NaN or infinite; None where all three are finite.
    """

    value: float
    low: float
    high: float
    n: int
    reason: str | None = None

    @classmethod
    def undefined(cls, n: int, reason: str) -> Metric:
        """NaN, and why."""
        return cls(math.nan, math.nan, math.nan, n, reason)

    def to_json(self) -> dict[str, float | int | str | None]:
        """Strict JSON: NaN becomes null, an infinity "Infinity" or "-Infinity"; "reason" is there only if there is one.

        >>> Metric(0.5, 0.25, 0.75, 7).to_json()
        {'value': 0.5, 'low': 0.25, 'high': 0.75, 'n': 7}
        """
        record = {"value": _number(self.value), "low": _number(self.low), "high": _number(self.high), "n": self.n}
        return record if self.reason is None else {**record, "reason": self.reason}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Metric:
        """The inverse of `to_json`. Raises DataError if a key is missing or a number is none."""
        try:
            value, low, high = (math.nan if record[k] is None else float(record[k]) for k in ("value", "low", "high"))
            return cls(value, low, high, int(record["n"]), record.get("reason"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a metric: {record!r} needs the numbers value, low, high and n ({error!r})") from error


def as_rows(**columns: Tensor) -> list[Tensor]:
    """The columns as float64 on the CPU, in the order given.

    Args:
        columns: tensors of one shape, [rows] or [rows, ...].

    Raises:
        ShapeError: two shapes differ, or one has no axis of rows.
        DataError: a NaN; the message names the rows.
    """
    names = list(columns)
    tensors = [torch.as_tensor(column).detach().cpu().to(torch.float64) for column in columns.values()]
    for name, tensor in zip(names, tensors):
        if tensor.ndim == 0:
            raise ShapeError(f"{name} is a single number; it needs an axis of rows")
        if tensor.shape != tensors[0].shape:
            shapes = f"{names[0]} {list(tensors[0].shape)} and {name} {list(tensor.shape)}"
            raise ShapeError(f"{shapes} differ; nothing is broadcast, reshape one of them")
        if (bad := tensor.isnan()).any():
            raise DataError(f"{name} is NaN in {name_rows(bad)}; a metric does not skip rows, mend or drop them first")
    return tensors


def as_events(name: str, values: Tensor) -> Tensor:
    """[rows] of 0 or 1 as float64. Raises DataError naming the rows that hold anything else."""
    (events,) = as_rows(**{name: values})
    if (bad := (events != 0) & (events != 1)).any():
        raise DataError(f"{name} must be 0 or 1 (or bool); it is not in {name_rows(bad)}")
    return events


def row_means(values: Tensor) -> Tensor:
    """[rows] from [rows, ...]: the mean over everything but the rows."""
    return values.reshape(len(values), -1).mean(1) if len(values) else values.flatten()


def mean_interval(values: Tensor, lowest: float = -math.inf, highest: float = math.inf) -> Metric:
    """The mean of the rows, m +- t s / sqrt(n), cut to the range that the mean can have.

    Args:
        values: [rows], any unit; s is their std with n - 1 below the line, t = student_t(n - 1).
        lowest, highest: the range of a single value, where it is known.

    No rows: undefined. One row, or an infinite one: the value alone, and the reason for the missing interval.
    Raises DataError on NaN.
    """
    (values,) = as_rows(values=values)
    n = len(values)
    if n == 0:
        return Metric.undefined(0, "no rows")
    value = values.mean().item()
    if infinite := int(values.isinf().sum()):
        return Metric(value, math.nan, math.nan, n, f"{infinite} of {n} rows infinite")
    if n == 1:
        return Metric(value, math.nan, math.nan, 1, "an interval needs at least two rows")
    half = student_t(n - 1) * values.std().item() / math.sqrt(n)
    return Metric(value, max(value - half, lowest), min(value + half, highest), n)


def proportion_interval(k: int, n: int) -> Metric:
    """The share k / n with its exact interval; undefined for n = 0. Raises DataError unless 0 <= k <= n."""
    low, high = clopper_pearson(k, n)
    return Metric.undefined(0, "no rows") if n == 0 else Metric(k / n, low, high, n)


def bootstrap(statistic: Callable[..., Tensor], *columns: Tensor, replicates: int = 1000, seed: int = 0) -> Metric:
    """Any statistic of the rows, with its percentile bootstrap interval.

    Rows are drawn with replacement, `replicates` times; the interval is from the 0.025 to the 0.975 quantile of the
    statistic, widened to hold the value itself. Above 20,000 rows only 200 replicates are affordable, too few for those
    quantiles: the interval is then value +- 1.96 std of the replicates, whose std 200 replicates give to
    1 / sqrt(2 * 200) = 5 %.

    Args:
        statistic: takes as many tensors as there are columns, each [..., rows], and returns [...]: it must work over
            the last axis, for many replicates at once. A chunk holds 2**20 numbers of a column (or one replicate).
        columns: [rows] each, of one length.
        replicates: at least 100.
        seed: the same seed gives the same interval.

    No rows: undefined. One row, or an undefined replicate: NaN bounds with the reason. Raises DataError on NaN.
    Source: Efron (1979); Davison and Hinkley (1997), section 5.
    """
    rows = as_rows(**{f"column {i}": column for i, column in enumerate(columns)})
    n = len(rows[0])
    value = statistic(*rows).item() if n else math.nan
    return _percentiles(
        value, n, lambda index: statistic(*(column[index] for column in rows)), replicates, seed, _CHUNK
    )


def bootstrap_counts(
    statistic: Callable[[Tensor], Tensor],
    n: int,
    replicates: int = 1000,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Metric:
    """`bootstrap` of a statistic that needs to know only how often each row was drawn: no sort per replicate.

    Args:
        statistic: takes counts [..., n] that add up to n, and returns [...]; all ones give the value.
        n, replicates, seed: the rows; as of `bootstrap`, whose replicates these are.
        dtype: of the counts of the replicates; those of the value are float64.
    """

    def counted(index: Tensor) -> Tensor:
        flat = (index + n * torch.arange(len(index))[:, None]).flatten()
        return statistic(torch.bincount(flat, minlength=index.numel()).view(index.shape).to(dtype))

    value = statistic(torch.ones(n, dtype=torch.float64)).item() if n else math.nan
    return _percentiles(value, n, counted, replicates, seed, _COUNTS)


def _percentiles(
    value: float, n: int, resampled: Callable[[Tensor], Tensor], replicates: int, seed: int, chunk: int
) -> Metric:
    """The metric of a value and its replicates: `resampled` takes drawn rows [some, n] and returns [some]."""
    if replicates < 100:
        raise DataError(f"a bootstrap interval needs at least 100 replicates, got {replicates}")
    if n == 0:
        return Metric.undefined(0, "no rows")
    if n == 1:
        return Metric(value, math.nan, math.nan, 1, "an interval needs at least two rows")
    few = n > 20_000
    if few:
        replicates = min(replicates, 200)
    generator = Random(seed).fold("bootstrap").generator()
    parts = []
    size = max(1, chunk // n)
    for start in range(0, replicates, size):
        parts.append(resampled(torch.randint(n, (min(size, replicates - start), n), generator=generator)))
    values = torch.cat(parts).to(torch.float64)
    if undefined := int((~values.isfinite()).sum()):
        return Metric(value, math.nan, math.nan, n, f"undefined in {undefined} of {replicates} bootstrap replicates")
    if few:
        half = NORMAL * values.std().item()
        return Metric(value, value - half, value + half, n)
    low, high = torch.quantile(values, _BOTH_TAILS).tolist()
    return Metric(value, min(low, value), max(high, value), n)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def name_rows(bad: Tensor) -> str:
    """Of a mask [rows, ...]: "3 rows (0, 4, 6)", at most five of them by number."""
    rows = bad.reshape(len(bad), -1).any(1).nonzero().flatten().tolist()
    shown = ", ".join(str(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} ({shown})"
