"""Bins of numbers, of equal width or of equal mass; every bin is closed on the right, the first on both sides."""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.errors import DataError

__all__ = ["check_bins", "equal_mass", "equal_width"]


def check_bins(bins: int) -> None:
    """Raises DataError unless there is at least one bin."""
    if bins < 1:
        raise DataError(f"bins must be at least 1, got {bins}")


def equal_width(bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """[bins + 1] float64 edges 0, 1/bins, ..., 1, rounded as `dtype` rounds: 0.2 in float32 is not above the edge 0.2."""
    check_bins(bins)
    return (torch.arange(bins + 1, dtype=torch.float64) / bins).to(dtype).to(torch.float64)


def equal_mass(values: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """The bin of each row, and the largest value of each bin: equal counts as far as ties allow.

    Bin b of B ends at the end of the tie nearest to row n b / B, so that equal values are never split. Bins that this
    leaves empty vanish: there are at most `bins`, and one (of no rows) where there are no rows.

    Args:
        values: [rows], without NaN.

    Returns [rows] int64 and [bins that are left] float64, increasing; empty for no rows.
    """
    check_bins(bins)
    levels, count = torch.unique(values, return_counts=True)
    if not len(levels):
        return torch.zeros(0, dtype=torch.int64), values.new_zeros(0)
    ends = count.cumsum(0)
    wanted = torch.arange(1, bins + 1, dtype=torch.float64) * len(values) / bins
    after = torch.searchsorted(ends.to(torch.float64), wanted).clamp(max=len(ends) - 1)
    before = (after - 1).clamp(min=0)
    nearest = torch.where((wanted - ends[before]).abs() < (ends[after] - wanted).abs(), before, after)
    upper = levels[nearest.unique()]
    return torch.bucketize(values, upper), upper
