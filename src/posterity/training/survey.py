"""What must be known before the first step: N, the classes or the scale of the targets, the length of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from posterity.errors import DataError
from posterity.problem.batches import Batch
from posterity.problem.data import Source
from posterity.problem.likelihoods import Likelihood
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["Survey", "check_held_out", "survey"]


class Survey(NamedTuple):
    data_size: int  # N: rows per epoch, or the caller's
    rows: int | None  # rows seen per epoch, where known before the first
    batch_size: int
    batches: int  # per epoch
    likelihood: Likelihood  # with its classes or scale
    first: Batch


def survey(source: Source, likelihood: Likelihood, data_size: int | None, random: Random, least: int = 1) -> Survey:
    """Count rows, learn classes and scale from one pass over the training data, where it is needed.

    `least` is how many rows the first batch must have; shorter ones before it are passed over.

    Raises:
        DataError: no rows, or no batch of `least`; neither a length nor `data_size`; targets that the likelihood cannot
            use.
    """
    rows, batches = source.rows, source.batches
    if batches is None and data_size is None:
        raise DataError("the training data has no length: give data_size=, the number of its rows")
    first: list[Batch] = []
    counted = [0, 0]

    def targets() -> Iterator[Any]:
        for batch in source.in_order.epoch(random):
            first.append(batch) if not first and batch.rows >= least else None
            counted[0] += batch.rows
            counted[1] += 1
            yield batch.targets

    if likelihood.needs_survey or (rows is None and data_size is None):
        likelihood = likelihood.surveyed(targets())
        if rows is not None and counted[0] != rows:
            raise DataError(f"the training loader announces {rows} rows per epoch and gave {counted[0]}")
        rows = counted[0]
        batches = counted[1]
    else:
        for batch in source.in_order.epoch(random):
            counted[0] += batch.rows
            if batch.rows >= least:
                first.append(batch)
                break
    if counted[0] == 0:
        raise DataError("the training data has no rows")
    if not first:
        raise DataError("every batch has one row, and a layer that normalises batches needs more: use larger ones")
    if batches is None:
        assert data_size is not None
        batches = max(1, -(-data_size // first[0].rows))
    size = data_size if data_size is not None else rows
    assert size is not None
    return Survey(size, rows, source.batch_size or first[0].rows, batches, likelihood, first[0])


def check_held_out(problem: NetworkProblem, source: Source, random: Random) -> None:
    """Read validation data once, and predict the first batch: what is wrong with it should not wait for an epoch's end.

    Raises:
        DataError: no rows, NaN or infinity, targets that the likelihood cannot use.
    """
    rows = 0
    for batch in source.epoch(random):
        if not rows:
            batch, theta = problem.read(batch), problem.start()
            with torch.inference_mode(), problem.network.session(train=False):
                problem.row_log_probs(theta, problem.outputs(theta, batch), batch.targets)
        rows += batch.rows
    if not rows:
        raise DataError("the validation data has no rows")
