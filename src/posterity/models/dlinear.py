"""DLinear: a trend and a remainder, each forecast by a linear map over time. Zeng et al. (2023), arXiv 2205.13504.

trend = moving mean of x, its ends repeated      y = W_trend trend + W_rest (x - trend) + b, for each channel
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.errors import DataError
from posterity.models.forecasters import check_sizes, check_windows

__all__ = ["DLinear", "dlinear"]


def dlinear(channels: int, lookback: int, horizon: int, *, kernel: int = 25) -> nn.Module:
    """[rows, lookback, channels] to [rows, horizon, channels]; the maps are shared by the channels.

    Windows are seen from their last value, which comes back at the end: levels that training never had are forecast too.

    Args:
        kernel: times in the moving mean, an odd number.

    Raises DataError: a size below 1, an even kernel.
    """
    check_sizes(channels=channels, lookback=lookback, horizon=horizon, kernel=kernel)
    if kernel % 2 == 0:
        raise DataError(f"the kernel of a moving mean is an odd number of times, got {kernel}")
    return DLinear(channels, lookback, horizon, kernel)


class DLinear(nn.Module):
    """The network that `dlinear` builds."""

    def __init__(self, channels: int, lookback: int, horizon: int, kernel: int) -> None:
        super().__init__()
        self.channels, self.lookback, self.kernel = channels, lookback, kernel
        self.trend = nn.Linear(lookback, horizon)
        self.rest = nn.Linear(lookback, horizon, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, lookback, channels] to [rows, horizon, channels]."""
        last = check_windows(x, self.lookback, self.channels)[:, -1:]
        rows = (x - last).transpose(1, 2)
        half = self.kernel // 2
        ends = [rows[..., :1].expand(-1, -1, half), rows, rows[..., -1:].expand(-1, -1, half)]
        trend = torch.cat(ends, -1).unfold(-1, self.kernel, 1).mean(-1)
        return (self.trend(trend) + self.rest(rows - trend)).transpose(1, 2) + last
