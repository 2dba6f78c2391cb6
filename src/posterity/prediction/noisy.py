"""Inputs that are known up to independent normal noise: x + std z.

Draws: z of draw i has the address of the draw, and all rows share it, as they share its weights: a row does not depend on
its batch. Propagation: x goes in with its variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity.errors import DataError, ShapeError
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.problem.batches import Batch, rows_of
from posterity.problem.data import as_tensor
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["Noisy", "drawn", "noisy", "rounds"]


class Noisy(NamedTuple):
    """Inputs [rows, ...] and the std of each of their numbers."""

    mean: Tensor
    std: Tensor


def noisy(batches: Iterable[Batch], std: Any, data: Any, targets: bool = False) -> Iterator[Batch]:
    """The batches with `Noisy` inputs.

    Args:
        std: a float, or a tensor or array that broadcasts to all inputs [rows, ...] of `data`.
        data: what the batches come from; of a loader or data set the std broadcasts over rows. With `targets` its inputs
            are the first of two.

    Raises:
        DataError: a std that is negative or not finite; inputs that are not one tensor of floating point.
        ShapeError: a std that does not broadcast.
    """
    std = _checked(std)
    inputs = data[0] if targets and isinstance(data, tuple | list) and len(data) == 2 else data
    streamed = isinstance(data, DataLoader | Dataset) or not hasattr(inputs, "__len__")
    start, rows = 0, None if streamed else rows_of(inputs)
    for batch in batches:
        mean = batch.inputs
        if not isinstance(mean, Tensor) or not mean.is_floating_point():
            found = str(mean.dtype) if isinstance(mean, Tensor) else f"a {type(mean).__name__} of {len(mean)}"
            raise DataError(f"input_std needs inputs of one floating-point tensor, got {found}: predict without it")
        by_row = std.ndim == mean.ndim and std.shape[0] != 1
        shape = (rows if rows is not None and by_row else batch.rows, *mean.shape[1:])
        if (by_row and (streamed or std.shape[0] != rows)) or not _broadcasts(std, torch.Size(shape)):
            wanted = (
                f"inputs of shape [rows, {', '.join(map(str, mean.shape[1:]))}] of a loader or data set: give what all rows "
                "share, or the inputs as a tensor or array"
                if streamed
                else f"the inputs {(rows, *mean.shape[1:])}: one std per row is [{rows}{', 1' * (mean.ndim - 1)}], one per "
                f"feature [{mean.shape[-1]}]"
            )
            raise ShapeError(f"input_std of shape {tuple(std.shape)} does not broadcast to {wanted}")
        own = std[start : start + batch.rows] if by_row else std
        start += batch.rows
        yield batch._replace(inputs=Noisy(mean, own.to(mean).expand_as(mean)))


def _checked(std: Any) -> Tensor:
    tensor = torch.tensor(float(std)) if isinstance(std, int | float) else as_tensor(std, "input_std")
    bad = ~torch.isfinite(tensor) | (tensor < 0) if not tensor.is_complex() else torch.ones(1)
    if bool(bad.any()):
        raise DataError(
            f"input_std must be finite and >= 0, and is not in {int(bad.sum())} of {bad.numel()} places: 0 stands for an "
            "input without noise"
        )
    return tensor


def _broadcasts(std: Tensor, shape: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(std.shape, shape) == shape
    except RuntimeError:
        return False


def drawn(inputs: Noisy, random: Random) -> Tensor:
    """The inputs of one draw, [rows, ...]: every row with the same z."""
    z = random.fold("input noise").normal(tuple(inputs.mean.shape[1:]), like=inputs.mean)
    return inputs.mean + inputs.std * z


def rounds(posterior: Posterior, n: int | None, random: Random) -> Iterator[Tree]:
    """`n` draws of the weights (32), each for a noise of its own; those of a finite posterior in whole rounds."""
    if posterior.finite is None:
        return posterior.draws(n, random)
    own = min(n or posterior.finite, posterior.finite)
    return chain.from_iterable(posterior.draws(own, random) for _ in range(math.ceil((n or DRAWS) / own)))
