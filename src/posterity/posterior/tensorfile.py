"""Tensor files: plain safetensors, sealed, ties kept.

The file format is the public one (https://github.com/huggingface/safetensors#format). It is written here, tensor by
tensor, rather than by the library: that refuses tied and strided tensors, wants all of them on the host at once, and
leaves temporaries under names of its own. Its metadata hold a seal, the SHA-256 of the whole file with the seal's own
64 digits set to 0, so that one flipped byte is found without any other file. Nothing is pickled, nothing that was read
is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from posterity.errors import StorageError
from posterity.posterior.files import FORMAT_VERSION, atomic, file_size, reading, refuse_newer, understood
from posterity.tree import Tree

__all__ = ["TensorFile", "read_tensors", "write_tensors"]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PREFIX = b'{"__metadata__":{"sha256":"'
_SEAL = 8 + len(_PREFIX)  # 8 bytes of header length stand before the header
_UNSEALED = "0" * 64
_HEADER_LIMIT = 100_000_000  # the safetensors library reads no longer header


def write_tensors(
    path: str | os.PathLike[str], tree: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a tree as one sealed safetensors file.

    Tensors that are the same memory seen the same way are stored once and come back as one tensor. A view is stored
    as its own elements, not its buffer; complex numbers as pairs of reals.

    Args:
        path: the file; it is replaced whole, at the end.
        tree: tensors of any shape, dtype and device; gradients are not stored.
        metadata: text to keep in the same file, beside the tensors.

    Raises:
        StorageError: a leaf that is not a dense tensor with data, a name that JSON cannot hold, a full disk.
    """
    path = Path(path)
    stored: Tree = {}
    aliases: dict[str, str] = {}
    owners: dict[tuple[object, ...], str] = {}
    for name, leaf in tree.items():
        plain = _plain(path, name, leaf)
        owner = owners.setdefault(_identity(leaf), name)
        if owner == name:
            stored[name] = plain
        else:
            aliases[name] = owner
    own = {
        "format_version": FORMAT_VERSION,
        "order": list(tree),
        "aliases": aliases,
        "complex": [name for name, leaf in stored.items() if leaf.is_complex()],
    }
    # Wide elements first: every tensor then starts at a multiple of its element size.
    pairs = {name: torch.view_as_real(leaf) if leaf.is_complex() else leaf for name, leaf in stored.items()}
    leaves = sorted(pairs.items(), key=lambda pair: -pair[1].element_size())
    header = _header(path, leaves, {"posterity": json.dumps(own), **(metadata or {})})
    digest = hashlib.sha256()
    with atomic(path) as file:
        for part in _parts(header, leaves):
            digest.update(part)
            file.write(part)
        file.seek(_SEAL)
        file.write(digest.hexdigest().encode())


def _plain(path: Path, name: object, leaf: object) -> Tensor:
    if not isinstance(name, str) or name == "__metadata__":
        raise StorageError(f"{path} cannot hold a tensor named {name!r}")
    plain = leaf.detach() if isinstance(leaf, Tensor) else leaf
    if type(plain) is not Tensor:
        raise StorageError(f"{path} holds dense tensors, but {name} is a {type(leaf).__name__}: give the tensors in it")
    if (
        plain.layout != torch.strided
        or plain.device.type == "meta"
        or not (plain.is_complex() or plain.dtype in _DTYPES)
    ):
        kind = f"{plain.dtype}, {plain.layout}, on {plain.device}"
        raise StorageError(f"{path} holds dense tensors with data, but {name} is {kind}")
    return plain.resolve_conj().resolve_neg()


def _identity(leaf: Tensor) -> tuple[object, ...]:
    """Equal for two leaves that are the same memory seen the same way; an empty tensor has no memory, only itself."""
    if leaf.numel() == 0:
        return ("empty", id(leaf))
    where = (leaf.device, leaf.untyped_storage().data_ptr(), leaf.storage_offset())
    return (*where, leaf.dtype, leaf.shape, leaf.stride(), leaf.is_conj(), leaf.is_neg())


def _header(path: Path, leaves: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)) or key == "sha256":
            raise StorageError(
                f"metadata are text under names other than sha256 and posterity, not {key!r}: {value!r:.80}"
            )
    header: dict[str, object] = {"__metadata__": {"sha256": _UNSEALED, **metadata}}
    end = 0
    for name, leaf in leaves:
        start, end = end, end + leaf.numel() * leaf.element_size()
        header[name] = {"dtype": _DTYPES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [start, end]}
    try:
        encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{path} cannot hold a name or metadata that is not Unicode: {error}") from error
    encoded += b" " * (-len(encoded) % 8)
    if len(encoded) > _HEADER_LIMIT:
        raise StorageError(f"{path} would have {len(encoded)} bytes of names and metadata, over {_HEADER_LIMIT}")
    return encoded


def _parts(header: bytes, leaves: Iterable[tuple[str, Tensor]]) -> Iterator[Any]:
    """The file in order, one tensor on the host at a time."""
    yield len(header).to_bytes(8, "little")
    yield header
    for _, leaf in leaves:
        yield leaf.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class TensorFile:
    """A tensor file opened for reading: memory-mapped, so that only what is asked for is read.

    Args:
        check: read the file once and compare it with its seal.

    Raises:
        StorageError: missing, truncated, corrupt, not written by `write_tensors`, or by a newer posterity.
    """

    names: list[str]  # in the order of the tree that was written
    aliases: dict[str, str]  # name -> name of the tensor that it is
    metadata: dict[str, str]  # the caller's

    def __init__(self, path: str | os.PathLike[str], check: bool = True) -> None:
        self.path = Path(path)
        file_size(self.path)
        with reading(self.path):
            self._handle: Any = safe_open(self.path, framework="pt")
            metadata = dict(self._handle.metadata() or {})
            try:
                own = json.loads(metadata.pop("posterity"))
                del metadata["sha256"]
                version = own["format_version"]
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise StorageError(f"{self.path} is corrupt or was not written by posterity: it has no seal") from error
            refuse_newer(self.path, version)
            if check:
                _check_seal(self.path)
        try:
            self.names, self.aliases, self._complex = list(own["order"]), dict(own["aliases"]), set(own["complex"])
            whole = set(self.names) == {*self._handle.keys(), *self.aliases}
            whole &= {*self.aliases.values(), *self._complex} <= {*self._handle.keys()}
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self.path} is corrupt: its index cannot be read") from error
        if not whole:
            raise StorageError(f"{self.path} is corrupt: its index does not match its tensors")
        self.metadata = metadata

    def tensor(self, name: str) -> Tensor:
        """A copy of a whole tensor."""
        with reading(self.path), understood(self.path):
            return self._copy(name, self._handle.get_tensor(self.aliases.get(name, name)))

    def row(self, name: str, index: int) -> Tensor:
        """A copy of row `index` of a tensor; nothing else of it is read."""
        with reading(self.path), understood(self.path):
            return self._copy(name, self._handle.get_slice(self.aliases.get(name, name))[index])

    def rows(self) -> set[int | None]:
        """The lengths of the leading axes; None for a tensor without one. Nothing of the tensors is read."""
        with reading(self.path), understood(self.path):
            stored = (name for name in self.names if name not in self.aliases)
            shapes = [self._handle.get_slice(name).get_shape() for name in stored]
        return {shape[0] if shape else None for shape in shapes}

    def _copy(self, name: str, mapped: Tensor) -> Tensor:
        # Copied before it is seen as complex: a pair may lie in the map at half the alignment that complex128 needs.
        copy = mapped.clone()
        return torch.view_as_complex(copy) if self.aliases.get(name, name) in self._complex else copy


def read_tensors(
    path: str | os.PathLike[str], device: torch.device | str = "cpu", check: bool = True
) -> tuple[Tree, dict[str, str]]:
    """The tree and the metadata of a file by `write_tensors`: same order, and tied tensors are one tensor again.

    Args:
        device: where the tensors are put. They are copies: the file may be replaced or removed afterwards.
        check: compare the file with its seal, at the price of reading it once more.

    Raises:
        StorageError: as in `TensorFile`.
    """
    file = TensorFile(path, check)
    stored = {name: file.tensor(name).to(device) for name in file.names if name not in file.aliases}
    return {name: stored[file.aliases.get(name, name)] for name in file.names}, file.metadata


def _check_seal(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(_SEAL)
        seal = file.read(len(_UNSEALED))
        digest = hashlib.sha256(head + _UNSEALED.encode())
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if seal != digest.hexdigest().encode():
        raise StorageError(f"{path} is corrupt: its content does not match its seal")
