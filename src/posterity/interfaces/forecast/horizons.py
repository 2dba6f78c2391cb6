"""How good forecasts are by how far ahead: coverage, width and CRPS, from every origin of the test part.

Forecasts from origins next to each other share most of their targets: an interval of the coverage counts only as many
forecasts as have targets of their own, one in `horizon`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posterity.evaluation.intervals import covered_rows
from posterity.evaluation.quantiles import clopper_pearson
from posterity.interfaces.forecast.said import Mixture

__all__ = ["LEVELS", "by_horizon"]

LEVELS = (0.5, 0.9)


def by_horizon(ours: Mixture, naive: Mixture, y: Tensor) -> dict[str, list[Any]]:
    """A line per step ahead.

    Args:
        y: [rows, horizon], NaN where nothing was observed: these count nowhere.

    Returns:
        step, n (forecasts), independent (of these, with targets of their own), coverage_0.5, coverage_0.9, low_0.9, high_0.9
        (95 % interval of the latter), width_0.9, crps, crps_naive (in units of the target).
    """
    names = ("step", "n", "independent", "coverage_0.5", "coverage_0.9", "low_0.9", "high_0.9", "width_0.9", "crps")
    table: dict[str, list[Any]] = {name: [] for name in (*names, "crps_naive")}
    horizon = y.shape[1]
    for step in range(horizon):
        there = torch.zeros_like(y, dtype=torch.bool)
        there[:, step] = y[:, step].isfinite()
        n = int(there.sum())
        if n == 0:
            line = [step + 1, 0, 0, *[float("nan")] * 7]
        else:
            pred, truth = ours.predictive(there), y[there]
            bounds = {level: pred.interval(level) for level in LEVELS}
            shares = [float(covered_rows(*bounds[level], truth).double().mean()) for level in LEVELS]
            own = max(1, n // horizon)
            low, high = clopper_pearson(round(shares[-1] * own), own)
            width = float((bounds[0.9][1] - bounds[0.9][0]).double().mean())
            scores = [float(each.crps(truth).double().mean()) for each in (pred, naive.predictive(there))]
            line = [step + 1, n, own, *shares, low, high, width, *scores]
        for name, value in zip(table, line):
            table[name].append(value)
    return table
