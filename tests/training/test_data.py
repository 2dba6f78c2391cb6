"""Where batches come from: an addressed, resumable stream that moves nothing of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import posterity as po
from posterity.problem.batches import Batch, Reader
from posterity.problem.data import Source, as_inputs, as_tensor, source
from posterity.random import Random
from posterity.testing.worlds import Augmented, Fuse, inputs, labels, loader

X = inputs()
Y = labels(X)
READER = Reader()


def rows(batches: Any) -> list[list[float]]:
    return [batch.inputs[:, 0].tolist() for batch in batches]


class Plain(TensorDataset):
    """The same rows, by the slow road: row by row through the loader."""


SLOW_AND_FAST = {
    "shuffled": {"batch_size": 7, "shuffle": True},
    "with its own generator": {"batch_size": 7, "shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "in order": {"batch_size": 5},
    "drop_last": {"batch_size": 5, "shuffle": True, "drop_last": True},
    "some rows": {"batch_size": 3, "sampler": SubsetRandomSampler(range(4, 15))},
    "with repeats": {"batch_size": 3, "sampler": RandomSampler(X, replacement=True, num_samples=40)},  # type: ignore[arg-type]
    "batch sampler": {"batch_sampler": BatchSampler(RandomSampler(X), 7, drop_last=False)},  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", SLOW_AND_FAST)
def test_the_fast_road_leads_to_the_same_rows(how: str) -> None:
    """Batches of the same sizes with the same rows, targets beside them; in the same order where nothing is random."""
    options = SLOW_AND_FAST[how]
    fast, slow = (Source(DataLoader(kind(X, Y), **options), READER, "training") for kind in (TensorDataset, Plain))
    assert fast._fetch is not None
    assert slow._fetch is None
    one, two = (list(stream.epoch(Random(0))) for stream in (fast, slow))
    assert [batch.rows for batch in one] == [batch.rows for batch in two]
    if how == "in order":
        assert rows(one) == rows(two)
    for batch in one:
        index = [X[:, 0].tolist().index(value) for value in batch.inputs[:, 0].tolist()]
        assert batch.inputs.equal(X[index])
        assert batch.targets.equal(Y[index])
    if how not in ("with repeats", "drop_last"):
        assert sorted(itertools.chain(*rows(one))) == sorted(itertools.chain(*rows(two)))


@pytest.mark.parametrize("data", [loader(), (X, Y)], ids=["loader", "whole"])
def test_a_batch_is_a_function_of_its_address(data: Any) -> None:
    stream = source(data, READER, "training", shuffle=True)
    one = rows(stream.epoch(Random(0).fold(1)))
    torch.rand(3)
    assert rows(stream.epoch(Random(0).fold(1))) == one
    assert rows(stream.epoch(Random(0).fold(2))) != one
    assert rows(stream.epoch(Random(1).fold(1))) != one


def test_what_is_skipped_does_not_move_the_rest() -> None:
    stream = Source(loader(), READER, "training")
    whole = rows(stream.epoch(Random(0)))
    for skip in range(5):
        assert rows(stream.epoch(Random(0), skip=skip)) == whole[skip:]


def test_epochs_that_are_read_in_turns_are_independent() -> None:
    """Members share one loader and its one generator; each sees what it would see alone, and the generator stays put."""
    for own in (True, False):
        options: dict[str, Any] = {} if own else {"generator": None}
        shared = loader(**options)
        stream = Source(shared, READER, "training")
        before = shared.generator.get_state() if own else torch.get_rng_state()
        alone = [rows(stream.epoch(Random(0).fold(k))) for k in range(3)]
        streams = [stream.epoch(Random(0).fold(k)) for k in range(3)]
        turns = [rows(batches) for batches in zip(*itertools.zip_longest(*streams))]
        assert turns == alone
        assert len({str(one) for one in alone}) == 3
        unfinished = [stream.epoch(Random(0).fold(k)) for k in range(3)]
        for one in unfinished:
            next(one)
        assert (shared.generator.get_state() if own else torch.get_rng_state()).equal(before)
        del unfinished


def test_an_epoch_that_raises_gives_the_generators_back() -> None:
    shared = loader(Fuse(9))
    before = torch.get_rng_state(), shared.generator.get_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with pytest.raises(Exception, match="on purpose"):
        list(Source(shared, READER, "training").epoch(Random(0)))
    after = torch.get_rng_state(), shared.generator.get_state(), np.random.get_state()[1]  # noqa: NPY002
    assert before[0].equal(after[0])
    assert before[1].equal(after[1])
    assert np.array_equal(before[2], after[2])


class Unsized(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y))


COUNTED = [
    ({"batch_size": 7}, 4, 23, 7),
    ({"batch_size": 7, "drop_last": True}, 3, 21, 7),
    ({"batch_size": 3, "sampler": SubsetRandomSampler(range(4, 15))}, 4, 11, 3),
    ({"batch_size": 3, "sampler": SubsetRandomSampler(range(4, 15)), "drop_last": True}, 3, 9, 3),
    ({"batch_sampler": BatchSampler(RandomSampler(X), 7, drop_last=True)}, 3, None, None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("options", "batches", "count", "batch_size"), COUNTED)
def test_what_can_be_counted_unread(
    options: dict[str, Any], batches: int, count: int | None, batch_size: int | None
) -> None:
    stream = Source(DataLoader(TensorDataset(X, Y), **options), READER, "training")
    assert (stream.batches, stream.rows, stream.batch_size) == (batches, count, batch_size)
    read = list(stream.epoch(Random(0)))
    assert len(read) == batches
    assert count is None or sum(batch.rows for batch in read) == count


def test_what_has_no_length() -> None:
    stream = Source(DataLoader(Unsized(), batch_size=7), READER, "training")
    assert (stream.batches, stream.rows, stream.batch_size) == (None, None, 7)
    assert sum(batch.rows for batch in stream.epoch(Random(0))) == 23


def test_data_given_whole_keeps_its_structure() -> None:
    """A dict of arrays and tensors, targets as a list, weights as a series: row by row alike in every batch."""
    given = {"a": X.numpy(), "b": torch.arange(23)}
    weight = pd.Series(np.arange(23.0))
    stream = source((given, Y.tolist()), READER, "training", batch_size=7, shuffle=True, weight=weight)
    read = list(stream.epoch(Random(0)))
    assert [batch.rows for batch in read] == [7, 7, 7, 2]
    for batch in read:
        index = batch.inputs["b"]
        assert batch.inputs["a"].equal(X[index])
        assert torch.as_tensor(batch.targets).equal(Y[index])
        assert batch.weight.equal(index.float())  # type: ignore[union-attr]
    seen = torch.cat([batch.inputs["b"] for batch in read])
    assert sorted(seen.tolist()) == list(range(23))
    assert seen.tolist() != list(range(23))
    assert torch.cat([batch.inputs["b"] for batch in stream.in_order.epoch(Random(0))]).tolist() == list(range(23))


def test_arrays_and_frames_become_tensors() -> None:
    assert as_tensor(np.float64([1, 2]), "x").dtype == torch.float32
    assert as_tensor(pd.DataFrame({"a": [1.5], "b": [2]}), "x").tolist() == [[1.5, 2.0]]
    assert as_tensor([1, 2], "x").dtype == torch.int64
    nested = as_inputs({"a": np.zeros((2, 3)), "b": (np.ones(2), torch.ones(2))})
    assert nested["a"].shape == (2, 3)
    assert nested["b"][0].equal(nested["b"][1])
    frame = pd.DataFrame({"a": [1.0], "name": ["x"], "day": pd.to_datetime(["2020-01-01"])})
    with pytest.raises(po.DataError, match=r"\['name', 'day'\] are not numbers"):
        as_tensor(frame, "inputs")


def test_what_is_not_finite_is_named_with_its_place() -> None:
    x = X.clone()
    x[8, 2] = torch.nan
    stream = Source(DataLoader(TensorDataset(x, Y), batch_size=7), READER, "training")
    with pytest.raises(po.DataError, match=r"training batch 1: input holds NaN or infinity in 1 of 7 rows \(1\)"):
        list(stream.epoch(Random(0)))


def test_rows_are_augmented_by_address() -> None:
    """All three global generators: the same noise when a batch is asked for again, another one in another epoch."""
    stream = Source(DataLoader(Augmented(X, Y), batch_size=7), READER, "training")
    one, again, other = (torch.cat([b.inputs for b in stream.epoch(Random(0).fold(e))]) for e in (0, 0, 1))
    assert one.equal(again)
    noise, others = (one - X)[:, 0], (other - X)[:, 0]
    assert len(set(noise.tolist())) == 23, "two rows share their noise"
    assert abs(float(torch.corrcoef(torch.stack([noise, others]))[0, 1])) < 4 / 23**0.5


def test_a_batch_passes_as_it_is() -> None:
    batch = Batch(X, Y, None, 23)
    assert next(iter(Source([batch], READER, "training").epoch(Random(0)))) is batch
