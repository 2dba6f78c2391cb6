"""The forecast that any other has to beat: what was observed a season ago.

mean   y_{t+h} = y_{t+h-ks}, k = ceil(h / s)
std_h  root mean square of the errors of that rule, h steps ahead, on the training part
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import DataError

__all__ = ["seasonal_naive", "seasonal_naive_std"]


def seasonal_naive(windows: Tensor, horizon: int, season: int = 1) -> Tensor:
    """[rows, horizon, ...]: the last season of each window, repeated; with a season of 1, its last value.

    Args:
        windows: [rows, lookback, ...].

    Raises DataError: a lookback shorter than the season, a horizon or season below 1.

    >>> seasonal_naive(torch.tensor([[9.0, 1.0, 2.0, 3.0]]), horizon=5, season=3)
    tensor([[1., 2., 3., 1., 2.]])
    """
    if min(horizon, season) < 1 or windows.shape[1] < season:
        raise DataError(
            f"a seasonal naive forecast needs a horizon and a season of at least 1 and windows of a whole season, got "
            f"{horizon}, {season} and windows of {windows.shape[1]}"
        )
    return windows[:, windows.shape[1] - season :][:, torch.arange(horizon) % season]


def seasonal_naive_std(series: Tensor, horizon: int, season: int = 1) -> Tensor:
    """[horizon] float64 root mean squared errors of the rule on `series` [times]; pairs with a NaN are left out.

    NaN for a step that no pair of observed times has.
    """
    series = series.double()
    found = []
    for step in range(1, horizon + 1):
        lag = -(-step // season) * season
        found.append((series[lag:] - series[: max(len(series) - lag, 0)]).square().nanmean().sqrt())
    return torch.stack(found)
