"""The difference of a metric between two methods on the same rows, and statistics to take it of.

A hard row is hard for both: the difference of paired rows is known better than either metric.

A statistic takes columns [..., rows] and returns [...], one number per replicate; it works over the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation import selective
from posterity.evaluation.binning import equal_width
from posterity.evaluation.metric import LEVEL, Metric, as_rows, bootstrap, bootstrap_counts
from posterity.random import Random

__all__ = ["aurc", "ece", "mean", "paired_difference", "root_mean"]

_BINS = 15
_DRAWS = 2000  # as of calibration.half_width


def paired_difference(
    statistic: Callable[..., Tensor],
    first: Sequence[tuple[Tensor, ...]],
    second: Sequence[tuple[Tensor, ...]],
    replicates: int = 1000,
    seed: int = 0,
) -> Metric:
    """The mean over seeds of statistic(first) minus that of statistic(second), with its paired percentile interval.

    Each replicate draws rows once, for every seed of both methods. The interval says what another set of test rows
    would change for these fitted models. It does not say what another seed of training would: that is seen in the spread
    over seeds. As `metric.bootstrap`: 200 replicates and a normal interval above 20,000 rows.

    Two statistics are not resampled, because the percentile interval does not hold what it should: that of an ECE lies
    above the ECE of a calibrated model, that of an AURC misses where errors are few. `ece`: as `calibration.half_width`,
    with D the binned gaps of all seeds, D = delta + N, N Gaussian with the covariance of the paired rows, w = 1 / seeds,

        | error |  <=  | sum_known +-w sign(D) N |  +  sum_others w |N|

    `aurc`: +- t se from the difference of the influences of a row, t with n / kurtosis degrees of freedom, as
    `selective.excess_aurc`. Where a run has no error, or no right row, it has no influence: its own bounds are used then.

    Args:
        statistic: takes columns [..., rows] and returns [...], as `mean`, `root_mean`, `ece` and `aurc`.
        first, second: per seed a tuple of columns [rows]; row i is the same row in all of them.
        replicates, seed: as of `metric.bootstrap`.

    No rows: undefined. One row: no interval. Raises DataError on NaN or no seed, ShapeError on unequal numbers of rows.
    """
    if not first or not second:
        raise DataError(f"a difference needs both methods, got {len(first)} and {len(second)} seeds")
    sides = []
    for name, runs in (("first", first), ("second", second)):
        for column in (column for run in runs for column in run):
            as_rows(**{name: column})  # names the rows of a NaN
        sides.append([tuple(torch.as_tensor(column).detach().cpu() for column in run) for run in runs])
    shapes = {tuple(column.shape) for runs in sides for run in runs for column in run}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ShapeError(f"paired columns must be [rows], all of the same rows, got {sorted(map(list, shapes))}")
    ((n,),) = shapes

    if n > 1 and statistic in (aurc, ece):
        return _paired_aurc(sides) if statistic is aurc else _paired_ece(sides)
    if statistic in _COUNTED and n:
        counted = [[_COUNTED[statistic](*run) for run in runs] for runs in sides]
        return bootstrap_counts(lambda drawn: _difference(counted, drawn), n, replicates, seed)

    def drawn_rows(columns: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
        return lambda index: statistic(*(column[index.long()] for column in columns)).to(torch.float64)

    # Row numbers are what is drawn: the columns keep their dtype, which decides the bin of a float32 confidence.
    prepared = [[drawn_rows(run) for run in runs] for runs in sides]
    return bootstrap(lambda index: _difference(prepared, index), torch.arange(n), replicates=replicates, seed=seed)


def _difference(sides: list[list[Callable[[Tensor], Tensor]]], drawn: Tensor) -> Tensor:
    first, second = (torch.stack([run(drawn) for run in runs]).mean(0) for runs in sides)
    return first - second


def _paired_ece(sides: list[list[tuple[Tensor, ...]]]) -> Metric:
    rows, weights, pseudo = [], [], []
    for sign, runs in zip((1, -1), sides):
        for confidence, correct in runs:
            gaps, where = _gaps(confidence, correct)
            rows.append(gaps.new_zeros(len(gaps), _BINS).scatter(1, where[:, None], gaps[:, None]))
            weights.append(gaps.new_full((_BINS,), sign / len(runs)))
            # two half rows, one right and one wrong, in every bin that is not empty
            count = torch.bincount(where, minlength=_BINS)
            mean_confidence = torch.bincount(where, confidence.to(torch.float64), _BINS) / count.clamp(min=1)
            pseudo.append((count > 0) * 0.5 * (mean_confidence.square() + (1 - mean_confidence).square()))
    z, weight, n = torch.cat(rows, 1), torch.cat(weights), len(rows[0])
    shift = z.mean(0)
    covariance = (z.T @ z / n - shift.outer(shift)) / n + torch.cat(pseudo).diag() / n**2
    known = shift.abs() > max(2.0, math.sqrt(math.log(n))) * covariance.diagonal().sqrt()
    values, vectors = torch.linalg.eigh(covariance)
    noise = Random(0).fold("ece").normal((_DRAWS, len(values)), like=z) @ (vectors * values.clamp(min=0).sqrt()).T
    error = noise @ (known * weight * shift.sign()) + noise.abs() @ (~known * weight.abs())
    half = torch.quantile(error, 0.5 + LEVEL / 2).item()
    value = (weight * shift.abs()).sum().item()
    return Metric(value, max(value - half, -1.0), min(value + half, 1.0), n)


def _paired_aurc(sides: list[list[tuple[Tensor, ...]]]) -> Metric:
    runs = [[selective.aurc(*run) for run in runs] for runs in sides]
    n = runs[0][0].n
    values, lows, highs = (
        [sum(getattr(metric, name) for metric in metrics) / len(metrics) for metrics in runs]
        for name in ("value", "low", "high")
    )
    value = values[0] - values[1]
    if any(metric.value in (0, 1) for metrics in runs for metric in metrics):
        # Zou and Donner (2008), as if the two were independent
        low = value - math.hypot(values[0] - lows[0], highs[1] - values[1])
        high = value + math.hypot(highs[0] - values[0], values[1] - lows[1])
    else:
        first, second = (torch.stack([selective.influence(*run) for run in runs]).mean(0) for runs in sides)
        half = selective.half_width(first - second, n)
        low, high = value - half, value + half
    return Metric(value, max(low, -1.0), min(high, 1.0), n)


def mean(values: Tensor) -> Tensor:
    """[...] the mean of values [..., rows]: nll, accuracy, brier, crps, an interval's score."""
    return values.to(torch.float64).mean(-1)


def root_mean(values: Tensor) -> Tensor:
    """[...] the root of the mean of values [..., rows]: rmse of squared errors."""
    return mean(values).sqrt()


def ece(confidence: Tensor, correct: Tensor) -> Tensor:
    """[...] the ECE of the top class, `calibration.ece` in 15 bins of equal width, of columns [..., rows]."""
    gaps, where = _gaps(confidence, correct)
    zeros = gaps.new_zeros(*gaps.shape[:-1], _BINS)
    return zeros.scatter_add(-1, where, gaps).abs().sum(-1) / gaps.shape[-1]


def aurc(confidence: Tensor, correct: Tensor) -> Tensor:
    """[...] the area under the risk-coverage curve, `selective.aurc` with ties averaged, of columns [..., rows]."""
    confidence, order = confidence.sort(dim=-1, descending=True)
    errors = 1 - correct.to(torch.float64).gather(-1, order)
    changes = (confidence[..., 1:] != confidence[..., :-1]).long()
    ties = torch.cat([torch.zeros_like(order[..., :1]), changes.cumsum(-1)], -1)
    total = torch.zeros_like(errors).scatter_add(-1, ties, errors)
    count = torch.zeros_like(errors).scatter_add(-1, ties, torch.ones_like(errors))
    rank = torch.arange(1, errors.shape[-1] + 1, dtype=torch.float64)
    return ((total.gather(-1, ties) / count.gather(-1, ties)).cumsum(-1) / rank).mean(-1)


def _gaps(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, confidence - correct and the bin it is in."""
    edges = equal_width(_BINS, confidence.dtype)
    confidence = confidence.to(torch.float64)
    return confidence - correct.to(torch.float64), torch.bucketize(confidence, edges[1:-1])


# The statistics that are smooth, of how often each row was drawn: counts [..., rows] that add up to the number of rows.


def _mean_counted(values: Tensor) -> Callable[[Tensor], Tensor]:
    values = values.to(torch.float64)
    return lambda counts: counts @ values / len(values)


def _root_mean_counted(values: Tensor) -> Callable[[Tensor], Tensor]:
    squared = _mean_counted(values)
    return lambda counts: squared(counts).sqrt()


_COUNTED: dict[Callable[..., Tensor], Callable[..., Callable[[Tensor], Tensor]]] = {
    mean: _mean_counted,
    root_mean: _root_mean_counted,
}
