"""Proper metrics and accuracy: means over rows, each with its interval.

A proper metric is best in expectation when the predicted distribution is the true one (Gneiting and Raftery, 2007).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.metric import (
    Metric,
    as_events,
    as_rows,
    mean_interval,
    name_rows,
    proportion_interval,
    row_means,
)

__all__ = ["accuracy", "brier", "brier_rows", "check_probs", "check_targets", "crps", "lppd", "nll", "rmse", "root"]

# Softmax in float32 leaves [0, 1] by a few units in the last place, 1e-7 each; more is a mistake (logits, percents).
TOLERANCE = 1e-6


def nll(log_prob: Tensor) -> Metric:
    """The mean over rows of -log p(y).

    Args:
        log_prob: [rows] log p of what was seen, nats; a row's is the sum over its outputs.

    A row of probability 0 makes the mean infinite, without an interval; the reason counts such rows.
    Raises DataError on NaN.
    """
    return mean_interval(-torch.as_tensor(log_prob))


def lppd(log_prob: Tensor) -> Metric:
    """The mean over rows of log mean_s p_s(y), the log pointwise predictive density: -nll; more is better.

    Vehtari et al. (2017) sum over the rows; a mean can be compared between sets of any size.

    Args:
        log_prob: [rows] log of the mean over draws of p(y), nats; a row's is the sum over its outputs.

    A row of probability 0 makes the mean -infinite, without an interval; the reason counts such rows.
    Raises DataError on NaN.
    """
    return mean_interval(log_prob)


def accuracy(correct: Tensor) -> Metric:
    """The share of rows that are right, with its exact interval.

    Args:
        correct: [rows] bool, or 0 and 1.
    """
    events = as_events("correct", correct)
    return proportion_interval(int(events.sum()), len(events))


def brier(probs: Tensor, targets: Tensor) -> Metric:
    """The mean over rows of sum over classes of (p - onehot)^2, in [0, 2]; half of it is the binary convention.

    Args:
        probs: [rows, classes] in [0, 1].
        targets: [rows] integer class indices.

    Raises DataError on NaN or p outside [0, 1], ShapeError on shapes. Source: Brier (1950).
    """
    return mean_interval(brier_rows(probs, targets), 0.0, 2.0)


def brier_rows(probs: Tensor, targets: Tensor) -> Tensor:
    """[rows] float64: the sum over classes of (p - onehot)^2 of each row."""
    probs = check_probs("probs", probs).to(torch.float64)
    if probs.ndim != 2:
        raise ShapeError(f"probs {list(probs.shape)} must be [rows, classes]")
    targets = check_targets(targets, *probs.shape).to(probs.device)
    # (p - onehot)^2 summed by its parts would lose digits where p is close to onehot; one subtraction does not.
    return probs.scatter_add(1, targets[:, None], probs.new_full((len(probs), 1), -1.0)).square().sum(1)


def crps(rows: Tensor) -> Metric:
    """The mean over rows of the continuous ranked probability metric of each row, in units of the target.

    Args:
        rows: [rows] integral over z of (F(z) - 1[z >= y])^2.
    """
    return mean_interval(rows, lowest=0.0)


def rmse(mean: Tensor, y: Tensor) -> Metric:
    """sqrt(mean over rows and outputs of (mean - y)^2), in units of the target.

    Args:
        mean, y: [rows] or [rows, outputs], of one shape.

    The interval is the square root of the interval of the mean squared error of a row.
    """
    mean, y = as_rows(mean=mean, y=y)
    return root(mean_interval(row_means((mean - y).square()), lowest=0.0))


def root(metric: Metric) -> Metric:
    """The square root of a metric that cannot be negative: a monotone map takes an interval to an interval."""
    return metric._replace(value=math.sqrt(metric.value), low=math.sqrt(metric.low), high=math.sqrt(metric.high))


def check_probs(name: str, probs: Tensor) -> Tensor:
    """`probs` [rows, ...], clamped to [0, 1].

    Raises DataError, naming the rows, where a probability is NaN or leaves [0, 1] by more than 1e-6.
    """
    probs = torch.as_tensor(probs).detach()
    bad = ~((probs >= -TOLERANCE) & (probs <= 1 + TOLERANCE))  # NaN compares false
    if bad.any():
        what = "NaN" if probs.isnan().any() else "outside [0, 1]"
        raise DataError(f"{name} is {what} in {name_rows(bad)}; probabilities are wanted, not logits or percents")
    return probs.clamp(0, 1)


def check_targets(targets: Tensor, rows: int, classes: int) -> Tensor:
    """`targets` as [rows] int64 class indices. Raises ShapeError on another shape, DataError on another value."""
    targets = torch.as_tensor(targets).detach()
    if targets.shape != (rows,):
        raise ShapeError(f"targets {list(targets.shape)} do not go with probs [{rows}, {classes}]; [{rows}] is wanted")
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(f"targets must be integer class indices, got {targets.dtype}")
    targets = targets.to(torch.int64)
    if ((targets < 0) | (targets >= classes)).any():
        raise DataError(f"targets must be in 0..{classes - 1}, got {int(targets.min())}..{int(targets.max())}")
    return targets
