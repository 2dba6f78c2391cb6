"""Training and validation data of a fit, the second held out of the first where only a share is given."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from posterity.errors import DataError
from posterity.problem.batches import Reader
from posterity.problem.data import Source, as_inputs, check_whole, pick_rows, source, take
from posterity.random import Random

__all__ = ["sources"]


def sources(
    data: Any, validation: Any, reader: Reader, batch_size: int | None, weight: Any, random: Random
) -> tuple[Source, Source | None]:
    """Training data and, if there is any, validation data, each as a `Source`.

    Args:
        validation: None, data like the training data's, or the share of rows given whole to hold out, in (0, 1).
        weight: per-row weights of data given whole.

    Raises:
        DataError: as `source`; a share out of range, of data not given whole, or that leaves no row.
    """
    if isinstance(validation, float):
        data, validation, weight = _held_out(data, validation, weight, random)
    for loader, what in ((data, "training"), (validation, "validation")):
        check_whole(loader, what)
    training = source(data, reader, "training", batch_size=batch_size, shuffle=True, weight=weight)
    if validation is None:
        return training, None
    own = None if _brings_batches(validation) else batch_size or 1024
    return training, source(validation, reader, "validation", batch_size=own)


def _brings_batches(data: Any) -> bool:
    return isinstance(data, DataLoader) or not isinstance(data, Dataset | tuple | list)


def _held_out(data: Any, share: float, weight: Any, random: Random) -> tuple[Any, Any, Any]:
    if not 0.0 < share < 1.0:
        raise DataError(f"validation as a share of the rows must lie in (0, 1), got {share}")
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError("a share to hold out needs data given whole, (inputs, targets); give validation= its own data")
    inputs, targets = as_inputs(data[0]), data[1]
    rows = len(targets)
    order = torch.randperm(rows, generator=random.fold("validation split").generator())
    held = max(1, round(share * rows))
    if held >= rows:
        raise DataError(f"holding out {share} of {rows} rows leaves none to train on")
    kept, out = order[held:].sort().values, order[:held].sort().values
    left = None if weight is None else pick_rows(weight, kept)
    return (take(inputs, kept), pick_rows(targets, kept)), (take(inputs, out), pick_rows(targets, out)), left
