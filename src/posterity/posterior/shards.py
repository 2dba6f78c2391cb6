"""Draws on the disk: a stream of weights, written in shards as they come and read one at a time.

A shard is a tensor file whose tensors have a leading axis of draws. A tensor of a draw is kept in float16 where that
moves no value by more than 2^-11 of the tensor's largest (half a unit in the last of float16's 11 binary digits),
else in float32: where it overflows 65504, where it is so small that float16 runs out of exponents, where it is not
finite. What is not floating keeps its dtype. The choice depends on the values alone, so a stream that was cut and
resumed ends in the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.errors import ShapeError, StorageError
from posterity.posterior.files import FileRecord, file_record, verify
from posterity.posterior.storage import MANIFEST, prepare_folder, records
from posterity.posterior.tensorfile import TensorFile, read_tensors, write_tensors
from posterity.tree import Tree, member

__all__ = ["ShardReader", "ShardWriter", "compact", "load_draws"]

_HALF_MAX = torch.finfo(torch.float16).max
_HALF_ULP = 2.0**-11


def compact(leaf: Tensor) -> Tensor:
    """A copy on the CPU, in float16 where no value moves by more than 2^-11 of the largest, else in float32."""
    leaf = leaf.detach()
    if not leaf.is_floating_point():
        return leaf.to("cpu", copy=True)
    full = leaf.to(torch.float32)
    half = full.to(torch.float16)
    if full.numel() == 0:
        return half.cpu()
    peak = full.abs().max()
    fits = (peak <= _HALF_MAX) & ((half.to(torch.float32) - full).abs().max() <= _HALF_ULP * peak)
    return half.cpu() if bool(fits) else full.to("cpu", copy=True)


class ShardWriter:
    """Write draws into `<prefix>-00000.safetensors`, `<prefix>-00001.safetensors`, ... of a run folder.

    Shards that the folder's current run names are left alone: the new ones are then `<prefix>-1-00000.safetensors`, ...
    and become part of a run when `save_run` is given what `close` returns.

    Args:
        folder: made if it is not there.
        prefix: the name of the stream.
        per_shard_bytes: a shard is full at this size; it holds at least one draw.
        resume_from: the number of draws on the disk to go on after (0: start over). Later ones, which a killed process
            wrote after its last checkpoint, are dropped.
        digest: what `digest` was then; draws on the disk that are others are refused.

    Raises:
        StorageError: the folder is refused as in `prepare_folder`; on the disk are fewer draws than `resume_from`, or
            others.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        prefix: str = "draws",
        per_shard_bytes: int = 64 * 2**20,
        resume_from: int = 0,
        digest: str = "",
    ) -> None:
        self.folder = prepare_folder(folder)
        self._prefix = prefix
        self._limit = per_shard_bytes
        used = {r.file for r in records(self.folder).values()} if (self.folder / MANIFEST).exists() else set()
        in_use = any(re.fullmatch(re.escape(prefix) + r"-\d{5,}\.safetensors", file) for file in used)
        self._stem = f"{prefix}-1" if in_use else prefix
        self._records: dict[str, FileRecord] = {}  # of the full shards
        self._pending: list[Tree] = []  # of the open shard
        self._bytes = 0
        self._first = 0  # number of draws in the full shards
        self._saved: tuple[int, FileRecord] | None = None  # of the open shard: how many draws of it are on the disk
        self._known: dict[str, str] = {}  # what each tensor of a draw is
        self._seen = hashlib.sha256()
        self._resume(resume_from, digest)

    @property
    def digest(self) -> str:
        """A hash of all draws so far: a checkpoint keeps it beside their number."""
        return self._seen.hexdigest()

    def __len__(self) -> int:
        return self._first + len(self._pending)

    def append(self, draw: Mapping[str, Tensor]) -> None:
        """Add one draw: a tree without leading axis. It is copied.

        Raises:
            ShapeError: its names, shapes or integer dtypes are not those of the draws before.
        """
        self._add(draw)
        if self._bytes >= self._limit:
            self._records[self._name(len(self._records))] = self._write(full=True)
            self._first += len(self._pending)
            self._pending, self._bytes, self._saved = [], 0, None

    def _add(self, draw: Mapping[str, Tensor]) -> None:
        kinds = _kinds(draw)
        known = self._known = self._known or kinds
        for name in {**known, **kinds}:
            if known.get(name) != kinds.get(name):
                was, now = known.get(name, "not there"), kinds.get(name, "not there")
                raise ShapeError(f"draw {len(self)} does not fit those before it: {name} was {was} and is {now}")
        leaves = {name: compact(draw[name]) for name in known}
        self._see(leaves)
        self._pending.append(leaves)
        self._bytes += sum(leaf.nbytes for leaf in leaves.values())

    def _see(self, leaves: Mapping[str, Tensor]) -> None:
        """Take a draw into the digest."""
        for name, leaf in leaves.items():
            content: Any = leaf.reshape(-1).view(torch.uint8).numpy()
            self._seen.update(name.encode())
            self._seen.update(content)

    def extend(self, draws: Mapping[str, Tensor]) -> None:
        """Add the draws of a tree with a leading axis, in order; errors as in `append`."""
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in draws.values()}
        length = next(iter(lengths), None)
        if len(lengths) != 1 or length is None:
            shapes = {name: tuple(leaf.shape) for name, leaf in draws.items()}
            raise ShapeError(f"draws need one leading axis of one length, got the shapes {shapes}")
        for index in range(length):
            self.append(member(draws, index))

    def flush(self) -> None:
        """Bring every draw to the disk, so that a checkpoint may count `len(self)` of them. The shard stays open."""
        if self._pending and (self._saved is None or self._saved[0] != len(self._pending)):
            self._saved = len(self._pending), self._write(full=False)

    def close(self) -> dict[str, FileRecord]:
        """Write the rest; name -> record of all shards, for `save_run` and `ShardReader`."""
        self.flush()
        rest = {self._name(len(self._records)): self._saved[1]} if self._saved else {}
        return {**self._records, **rest}

    def _name(self, index: int) -> str:
        return f"{self._prefix}-{index:05d}"

    def _path(self, index: int) -> Path:
        return self.folder / f"{self._stem}-{index:05d}.safetensors"

    def _write(self, full: bool) -> FileRecord:
        path = self._path(len(self._records))
        tree = {name: _stack([draw[name] for draw in self._pending]) for name in self._pending[0]}
        numbers = {"first": self._first, "draws": len(self._pending), "full": int(full)}
        write_tensors(path, tree, {key: str(value) for key, value in numbers.items()})
        return file_record(path)

    def _resume(self, count: int, digest: str) -> None:
        while len(self) < count:
            path = self._path(len(self._records))
            if self._pending or not path.exists():  # nothing comes after an open shard
                raise StorageError(
                    f"{self.folder} holds {len(self)} draws of the {count} to go on after: "
                    f"{path.name} {'ends there' if self._pending else 'is missing'}"
                )
            tree, metadata = read_tensors(path)
            first, draws, full = _numbers(path, metadata)
            if first != self._first:
                raise StorageError(f"{path} begins at draw {first}, where draw {self._first} was to come")
            if full and first + draws <= count:
                self._records[self._name(len(self._records))] = file_record(path)
                self._first += draws
                self._known = _kinds(member(tree, 0))
                for index in range(draws):
                    self._see({name: compact(leaf) for name, leaf in member(tree, index).items()})
            else:
                for index in range(min(draws, count - first)):
                    self._add(member(tree, index))
        if digest and digest != self.digest:
            raise StorageError(
                f"{self.folder} holds other draws in {self._stem}-*.safetensors than the {count} to go on after"
            )
        # The open shard stays on the disk until the next flush takes its place: the checkpoint counts on its draws.
        keep = len(self._records) + bool(self._pending)
        for path in self.folder.glob(f"{self._stem}-*.safetensors"):
            match = re.fullmatch(re.escape(self._stem) + r"-(\d{5,})\.safetensors", path.name)
            if match and int(match[1]) >= keep:
                path.unlink()


def _kinds(draw: Mapping[str, Tensor]) -> dict[str, str]:
    kinds = {name: "floating" if leaf.is_floating_point() else str(leaf.dtype) for name, leaf in draw.items()}
    return {name: f"{kind} {tuple(draw[name].shape)}" for name, kind in kinds.items()}


def _stack(leaves: list[Tensor]) -> Tensor:
    """The draws of one tensor; in float32 if one of them needs it."""
    dtype = torch.float32 if any(leaf.dtype == torch.float32 for leaf in leaves) else leaves[0].dtype
    return torch.stack([leaf.to(dtype) for leaf in leaves])


def _numbers(path: Path, metadata: Mapping[str, str]) -> tuple[int, int, bool]:
    try:
        return int(metadata["first"]), int(metadata["draws"]), bool(int(metadata["full"]))
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} is not a shard of draws: it does not say which draws it holds") from error


class ShardReader:
    """Draws on the disk, read one at a time: `len(reader)`, `reader[index]`, `for draw in reader`.

    One shard is mapped at a time, and only the rows of the draw that is asked for are copied: memory stays at one draw.
    Floating tensors come as float32, others as they are.

    Args:
        folder: where the shards are.
        files: name -> record, as `ShardWriter.close` returned them.
        device: where draws are put.
        check: compare each shard with its recorded hash when it is first used.

    Raises:
        StorageError: a shard is missing, truncated, out of its place, or (when first used) corrupt.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        files: Mapping[str, FileRecord],
        device: torch.device | str = "cpu",
        check: bool = True,
    ) -> None:
        self._folder = Path(folder)
        self._files = list(files.values())
        self._device = device
        self._check = check
        self._unchecked = set(range(len(self._files))) if check else set()
        self._starts = [0]
        self._open: tuple[int, TensorFile] | None = None
        for record in self._files:
            path = verify(self._folder, record, check=False)
            file = TensorFile(path, check=False)
            first, draws, _ = _numbers(path, file.metadata)
            if draws < 1 or not file.rows() <= {draws}:
                raise StorageError(f"{path} is corrupt: its tensors do not hold the {draws} draws that it names")
            if first != self._starts[-1]:
                raise StorageError(f"{path} begins at draw {first}, where draw {self._starts[-1]} was to come")
            self._starts.append(first + draws)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Tree]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Tree:
        if not -len(self) <= index < len(self):
            raise IndexError(f"draw {index} of {len(self)}")
        index %= len(self)
        shard = bisect_right(self._starts, index) - 1
        file, row = self._shard(shard), index - self._starts[shard]
        leaves = {name: file.row(name, row).to(self._device) for name in file.names}
        return {name: leaf.to(torch.float32) if leaf.is_floating_point() else leaf for name, leaf in leaves.items()}

    def _shard(self, index: int) -> TensorFile:
        if self._open is None or self._open[0] != index:
            self._open = None  # unmap one before the next
            path = verify(self._folder, self._files[index], check=index in self._unchecked)
            self._unchecked.discard(index)
            self._open = index, TensorFile(path, check=False)
        return self._open[1]


def load_draws(
    folder: str | os.PathLike[str], prefix: str = "draws", device: torch.device | str = "cpu", check: bool = True
) -> ShardReader:
    """The draws of a saved run; StorageError when it holds none, and as in `ShardReader` and `load_manifest`."""
    files = {
        name: record for name, record in records(folder).items() if re.fullmatch(re.escape(prefix) + r"-\d{5,}", name)
    }
    if not files:
        raise StorageError(f"{folder} holds no {prefix!r}")
    return ShardReader(folder, files, device, check)
