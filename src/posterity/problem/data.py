"""Where batches come from: a loader, a data set, or arrays, as an addressed and resumable stream.

Batch b of epoch e for member k is a function of (seed, k, e, b): shuffling and augmentation run on forked generators that
are seeded from that address, so members are independent, a resumed run sees the rest of its epoch, and nothing global moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset, default_collate

from posterity.errors import CompatibilityError, DataError
from posterity.problem.batches import Batch, Reader, check_finite, row_weights, rows_of, tensors_in
from posterity.random import Random

__all__ = ["Source", "as_inputs", "as_tensor", "check_whole", "pick_rows", "source", "take"]

BATCH_SIZE = 64


class Source:
    """A loader read in a reproducible order.

    Args:
        loader: any iterable of raw batches; a `DataLoader` as a rule.
        reader: how a raw batch is read.
        what: "training", "validation", ...: the word in error messages.

    Attributes:
        in_order: the same rows in the order in which they were given, where the loader is not the user's.
    """

    def __init__(self, loader: Any, reader: Reader, what: str) -> None:
        self.loader, self.reader, self.what = loader, reader, what
        self.in_order: Source = self
        self._fetch = _fetcher(loader)

    @property
    def batches(self) -> int | None:
        """Batches per epoch, or None where the loader has no length."""
        try:
            return len(self.loader)
        except TypeError:
            return None

    @property
    def rows(self) -> int | None:
        """Rows per epoch as the sampler and drop_last leave them, or None where they cannot be counted unread."""
        loader = self.loader
        if self.batches is None:
            return None
        if isinstance(loader, DataLoader):
            if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
                return None
            return self.batches * loader.batch_size if loader.drop_last else len(loader.sampler)  # type: ignore[arg-type]
        return None

    @property
    def batch_size(self) -> int | None:
        return getattr(self.loader, "batch_size", None)

    def epoch(self, random: Random, skip: int = 0) -> Iterator[Batch]:
        """The batches of one epoch in the order of `random`, the first `skip` left out; checked for NaN and infinity."""
        for i, raw in enumerate(self.raw(random)):
            if i < skip:
                continue
            batch = self.reader(raw)
            check_finite(batch, f"{self.what} batch {i}")
            yield batch

    def raw(self, random: Random) -> Iterator[Any]:
        """The raw batches of one epoch, as the loader gives them."""
        own = _OwnGenerators(self.loader, random)
        if self._fetch is not None:
            with random.fold("order").forked(data=True), own.lent():
                order = list(self.loader.batch_sampler)
            yield from map(self._fetch, order)
            return
        with random.fold("order").forked(data=True), own.lent():
            iterator = _iterator(self.loader)
        index = 0
        while True:
            with random.fold("batch").fold(index).forked(data=True), own.lent():
                try:
                    raw = next(iterator)
                except StopIteration:
                    return
            yield raw
            index += 1


def _fetcher(loader: Any) -> Callable[[list[int]], Any] | None:
    """For rows that are plain tensors, or given whole: a batch by its indices, the same as the loader's, without
    collating row by row and without user code that would need a forked generator."""
    if not (isinstance(loader, DataLoader) and loader.num_workers == 0 and loader.batch_sampler is not None):
        return None
    data = loader.dataset
    if isinstance(data, _Rows):
        return data.__getitems__
    if type(data) is TensorDataset and loader.collate_fn is default_collate:
        return lambda indices: [tensor[torch.as_tensor(indices)] for tensor in data.tensors]
    return None


class _OwnGenerators:
    """The generators that a user gave to a loader or sampler: lent our state while a batch is drawn, and theirs again
    between two batches.

    The epochs of several members are read in turns, each with its own state of the one generator.
    """

    def __init__(self, loader: Any, random: Random) -> None:
        batch_sampler = getattr(loader, "batch_sampler", None)
        holders = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
        found = {id(g): g for h in holders if isinstance(g := getattr(h, "generator", None), torch.Generator)}
        self._generators = list(found.values())
        self._states = [
            random.fold(f"generator {i}").generator(g.device).get_state() for i, g in enumerate(found.values())
        ]

    @contextmanager
    def lent(self) -> Iterator[None]:
        users = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._states):
            generator.set_state(state)
        try:
            yield
        finally:
            self._states = [generator.get_state() for generator in self._generators]
            for generator, state in zip(self._generators, users):
                generator.set_state(state)


def _iterator(loader: Any) -> Iterator[Any]:
    """A fresh iterator; one of a loader with persistent workers would be shared by all members and epochs."""
    persistent = isinstance(loader, DataLoader) and loader.persistent_workers
    return loader._get_iterator() if persistent else iter(loader)


def as_tensor(value: Any, what: str) -> Tensor:
    """An array, frame, list or tensor of numbers as a tensor; float64 becomes float32.

    Raises:
        DataError: a column that is not numeric, named.
    """
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "columns") and hasattr(value, "dtypes"):
        foreign = [str(c) for c, d in zip(value.columns, value.dtypes) if not _numeric(d)]
        if foreign:
            raise DataError(f"{what}: the columns {foreign} are not numbers; encode or drop them")
    array = value.to_numpy() if hasattr(value, "to_numpy") else value
    try:
        if isinstance(array, np.ndarray) and array.dtype == object:  # columns of several types
            array = array.astype(np.float64)
        if isinstance(array, np.ndarray) and not array.flags.writeable:  # a tensor would let it be written to
            array = array.copy()
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: a {type(value).__name__} cannot be read as numbers ({error})") from error
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biuf"


def as_inputs(x: Any, what: str = "inputs") -> Any:
    """Inputs given whole: a tensor, array or frame as a tensor, and the same inside of tuples and mappings."""
    if isinstance(x, Mapping):
        return {key: as_inputs(part, what) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(as_inputs(part, what) for part in x)
    return as_tensor(x, what)


class _Rows(Dataset):
    """Inputs, targets and weights given whole, row by row; nested inputs keep their structure."""

    def __init__(self, inputs: Any, targets: Any, weight: Any) -> None:
        self.inputs, self.targets, self.weight = inputs, targets, weight
        self.rows = rows_of(inputs)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple:
        inputs = take(self.inputs, index)
        return (inputs, *(part[index] for part in (self.targets, self.weight) if part is not None))

    def __getitems__(self, indices: list[int]) -> Batch:
        """A whole batch at once, as `DataLoader` asks for it."""
        index = torch.as_tensor(indices)
        targets = None if self.targets is None else pick_rows(self.targets, index)
        weight = None if self.weight is None else self.weight[index]
        return Batch(take(self.inputs, index), targets, weight, len(indices))


def take(value: Any, index: Any) -> Any:
    """Rows of nested inputs."""
    if isinstance(value, Mapping):
        return {key: take(part, index) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(take(part, index) for part in value)
    return value[index]


def pick_rows(targets: Any, index: Tensor) -> Any:
    """Rows of targets in whatever form the user gave them."""
    if isinstance(targets, Tensor):
        return targets[index]
    if hasattr(targets, "to_numpy"):
        targets = targets.to_numpy()
    return targets[index.numpy()] if hasattr(targets, "dtype") else [targets[i] for i in index.tolist()]


def _as_is(batch: Any) -> Any:
    return batch


def source(
    data: Any, reader: Reader, what: str, *, batch_size: int | None = None, shuffle: bool = False, weight: Any = None
) -> Source:
    """A `Source` of a loader, a data set, or `(inputs, targets)` given whole.

    Args:
        data: a `DataLoader` or other iterable of batches; a map-style `Dataset`; a tuple `(inputs, targets)` of tensors,
            arrays, frames, dicts or lists.
        batch_size: rows per batch where `data` brings no batches; 64 unless given.
        shuffle: whether to shuffle where `data` brings no order.
        weight: per-row weights for data given whole.

    Raises:
        DataError: zero rows; parts of different lengths; a batch size for a loader that has its own.
    """
    if isinstance(data, DataLoader) or not isinstance(data, Dataset | tuple | list | Mapping):
        if not isinstance(data, Iterable):
            raise DataError(f"{what} data must be a loader, a data set or (inputs, targets); got {type(data).__name__}")
        if batch_size is not None:
            raise DataError(f"the {what} loader has its own batches: leave batch_size out")
        if weight is not None:
            raise DataError("sample weights for a loader come with its batches: name their key or position")
        if _length(data) == 0:
            raise DataError(f"the {what} loader has no batches")
        return Source(data, reader, what)
    rows = data if isinstance(data, Dataset) else _whole(data, what, weight)
    if isinstance(data, Dataset) and weight is not None:
        raise DataError("sample weights for a data set come with its rows: name their key or position")
    if len(rows) == 0:  # type: ignore[arg-type]
        raise DataError(f"the {what} data has no rows")
    collate = _as_is if isinstance(rows, _Rows) else None
    options: dict[str, Any] = {"batch_size": batch_size or BATCH_SIZE, "collate_fn": collate}
    found = Source(DataLoader(rows, shuffle=shuffle, **options), reader, what)
    if shuffle:
        found.in_order = Source(DataLoader(rows, **options), reader, what)
    return found


def check_whole(loader: Any, what: str) -> None:
    """Raise where a loader gives this rank its part of the rows only, of which nobody else would know.

    Raises:
        CompatibilityError: it has a `DistributedSampler` of several replicas.
    """
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise CompatibilityError(
            f"the {what} loader has a DistributedSampler, and would give 1 of {sampler.num_replicas} parts of the rows: "
            "leave it out, distribute= shares the rows of every batch itself"
        )


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _whole(data: Any, what: str, weight: Any) -> _Rows:
    if isinstance(data, Mapping) or len(data) != 2:
        raise DataError(f"{what} data given whole must be (inputs, targets), got {type(data).__name__} of {len(data)}")
    inputs, targets = as_inputs(data[0], what), data[1]
    counts = {tensor.shape[0] if tensor.dim() else 0 for _, tensor in tensors_in(inputs)} | {rows_of(targets)}
    if weight is not None:
        weight = as_tensor(weight, "sample weights").float()
        counts |= {rows_of(weight)}
    if len(counts) != 1:
        raise DataError(f"the parts of the {what} data have different lengths: {sorted(counts)}")
    rows = _Rows(inputs, targets, weight if weight is None else row_weights(weight, rows_of(inputs)))
    check_finite(Batch(inputs, rows=len(rows)), f"{what} data")
    return rows
