"""Interpolation of positions: a fixed linear map along each axis, whose squared weights carry the variance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.prediction.propagation.table import rule
from posterity.prediction.propagation.value import MeanVar, Value


@rule("interpolate", "upsample")
def interpolate(
    input: MeanVar, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **options: Any
) -> Value:
    """Of images; other ranks where positions are only copied."""
    mean = F.interpolate(input.mean, size, scale_factor, mode, **options)
    if mode.startswith("nearest"):
        return MeanVar(mean, F.interpolate(input.var, size, scale_factor, mode, **options))
    if mean.ndim != 4:
        return NotImplemented
    rows, columns = (_along(axis, input.mean, mean, scale_factor, mode, options).square() for axis in (2, 3))
    return MeanVar(mean, rows @ input.var @ columns.mT)


def _along(axis: int, before: Tensor, after: Tensor, scale_factor: Any, mode: str, options: Any) -> Tensor:
    """[out, in] weights along one axis: what the columns of a unit matrix become."""
    n = before.shape[axis]
    unit = torch.eye(n, dtype=before.dtype, device=before.device).reshape(1, n, n, 1)
    if scale_factor is None:
        found = F.interpolate(unit, (after.shape[axis], 1), None, mode, **options)
    else:
        factor = scale_factor if isinstance(scale_factor, int | float) else scale_factor[axis - 2]
        found = F.interpolate(unit, None, (float(factor), 1.0), mode, **options)
    return found.squeeze(0).squeeze(-1).mT
