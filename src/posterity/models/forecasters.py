"""What networks for forecasts share: `[rows, lookback, channels]` in, `[rows, horizon, channels]` out."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError

__all__ = ["centred", "check_sizes", "check_windows"]

_FLOOR = 1e-5  # added to the variance of a window: one that stands still is not stretched


def centred(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each window and channel with mean 0 and std 1 over its times; and that mean and std, `[rows, 1, channels]`.

    Kim et al., "Reversible instance normalization" (2022), without its weights.
    """
    mean = x.mean(1, keepdim=True)
    std = torch.sqrt((x - mean).square().mean(1, keepdim=True) + _FLOOR)
    return (x - mean) / std, mean, std


def check_sizes(**sizes: int) -> None:
    """Raises DataError naming the size that is not at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise DataError(f"a forecaster needs {name} of at least 1, got {size}")


def check_windows(x: Tensor, lookback: int, channels: int) -> Tensor:
    """The windows themselves. Raises ShapeError unless they are `[rows, lookback, channels]`."""
    if x.ndim != 3 or tuple(x.shape[1:]) != (lookback, channels):
        raise ShapeError(f"windows must be [rows, {lookback}, {channels}] (time, channel), got {list(x.shape)}")
    return x
