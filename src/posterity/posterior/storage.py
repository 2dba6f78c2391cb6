"""A run is a folder: its manifest `posterity.json`, and the files that the manifest names.

Files are written first and the manifest last. A file that the current manifest names is never touched: saving over a
run puts the new tensors under the second of two names (`posterior.safetensors`, `posterior-1.safetensors`), replaces
the manifest in one step, and only then removes what the old one named. Killed at any moment, the folder holds the
whole old run or the whole new one. The manifest holds the size and the SHA-256 of every file and, so that a flipped
byte in its own numbers is found, a hash of itself.

A checkpoint is one file beside them, with its counters in its metadata: tensors and counters cannot disagree.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.errors import StorageError
from posterity.posterior.files import (
    FORMAT_VERSION,
    FileRecord,
    atomic_json,
    file_record,
    parse_json,
    read_json,
    reading,
    refuse_newer,
    strict_json,
    sweep,
    understood,
    verify,
)
from posterity.posterior.migrations import migrated
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.tree import Tree

__all__ = [
    "CHECKPOINT",
    "MANIFEST",
    "load_checkpoint",
    "load_json",
    "load_manifest",
    "load_tree",
    "prepare_folder",
    "records",
    "save_checkpoint",
    "save_run",
]

MANIFEST = "posterity.json"
CHECKPOINT = "checkpoint.safetensors"

_LIBRARY = "posterity"
_RESERVED = {"posterity", "checkpoint"}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def prepare_folder(folder: str | os.PathLike[str]) -> Path:
    """Make `folder` ready to be written into: it exists, without what killed writers left.

    Call it before hours of training: a folder that must not be written over is refused here.

    Raises:
        StorageError: it holds a foreign, corrupt or newer `posterity.json`, or cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder {folder} cannot be made: {error}") from error
    sweep(folder)
    if (folder / MANIFEST).exists():
        try:
            load_manifest(folder)
        except StorageError as error:
            raise StorageError(f"{folder} is not written over: {error}") from error
    return folder


def save_run(
    folder: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    trees: Mapping[str, Mapping[str, Tensor]] | None = None,
    extra_json: Mapping[str, Any] | None = None,
    shards: Mapping[str, FileRecord] | None = None,
    keep: Iterable[str] = (),
) -> None:
    """Save a run, or save over one. A kill at any moment leaves the whole old run or the whole new one.

    Args:
        folder: made if it is not there.
        manifest: any JSON content. The keys library, format_version, files and sha256 are set here.
        trees: name -> tree, to `<name>.safetensors`.
        extra_json: name -> JSON content, to `<name>.json`; a number that is not finite is an error.
        shards: what `ShardWriter.close` returned, for shards written into this folder.
        keep: names of the current run that stay as they are (`"draws"` keeps all its shards). Others are removed.

    Raises:
        StorageError: the folder is refused as in `prepare_folder`, the content cannot be stored, the disk is full.
    """
    folder = prepare_folder(folder)
    trees, extra_json, shards = trees or {}, extra_json or {}, shards or {}
    content = strict_json(manifest)
    extra_json = strict_json(extra_json)
    old = records(folder) if (folder / MANIFEST).exists() else {}
    used = {record.file for record in old.values()}

    files = _kept(folder, old, keep)
    for name in (*trees, *extra_json, *shards):
        if name in files or not _PLAIN_NAME.fullmatch(name) or name in _RESERVED:
            raise StorageError(f"{folder} cannot hold {name!r}: it is reserved, twice there, or not a plain name")
        files[name] = shards.get(name, FileRecord("", "", 0))  # keeps the names apart; the others are filled in below
    for record in shards.values():
        verify(folder, record, check=False)
    taken = used | {record.file for record in files.values()}
    written: list[Path] = []

    try:
        for name, tree in trees.items():
            write_tensors(path := _free(folder, name, ".safetensors", taken), tree)
            written.append(path)
            files[name] = file_record(path)
        for name, value in extra_json.items():
            atomic_json(path := _free(folder, name, ".json", taken), value)
            written.append(path)
            files[name] = file_record(path)

        own = {"library": _LIBRARY, "format_version": FORMAT_VERSION}
        content = {**own, **content, **own, "files": {name: record._asdict() for name, record in files.items()}}
        content["sha256"] = _digest(content)
        atomic_json(folder / MANIFEST, content)
    except StorageError:
        _take_back(folder, written)
        raise
    for file in used - {record.file for record in files.values()}:
        with suppress(OSError):
            (folder / file).unlink()


def _take_back(folder: Path, written: Iterable[Path]) -> None:
    """Remove the files of a save that failed: on a full disk they would be in the way of the next."""
    with suppress(OSError):  # also a StorageError: a manifest that cannot be read names who knows what
        named = {record.file for record in records(folder).values()} if (folder / MANIFEST).exists() else set()
        for path in written:
            if path.name not in named:
                path.unlink(missing_ok=True)


def _free(folder: Path, name: str, suffix: str, taken: set[str]) -> Path:
    """The first of name, name-1, name-2, ... that is not taken; now it is."""
    file = next(f for i in itertools.count() if (f := f"{name}-{i}{suffix}" if i else name + suffix) not in taken)
    taken.add(file)
    return folder / file


def _kept(folder: Path, old: Mapping[str, FileRecord], keep: Iterable[str]) -> dict[str, FileRecord]:
    kept: dict[str, FileRecord] = {}
    for name in keep:
        shard = re.compile(re.escape(name) + r"(-\d{5,})?")
        found = {each: record for each, record in old.items() if shard.fullmatch(each)}
        if not found:
            raise StorageError(f"{folder} has no {name!r} to keep; it has {', '.join(old) or 'nothing'}")
        kept |= found
    return kept


def _digest(content: Mapping[str, Any]) -> str:
    """The hash of a manifest but for its own: independent of the layout of the file and the order of its keys."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def load_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a run, checked; one of an older format as today's.

    Raises:
        StorageError: there is no folder, it is not a posterity run, its manifest is truncated, corrupt, or newer.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    with reading(path):
        if not folder.is_dir():
            raise StorageError(f"{folder} is {'a file, not a run folder' if folder.exists() else 'not there'}")
        if not path.exists():
            raise StorageError(f"{folder} is not a posterity run, or its first save never ended: it has no {MANIFEST}")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("library") != _LIBRARY:
        raise StorageError(f"{path} was not written by posterity: its 'library' is not {_LIBRARY!r}")
    refuse_newer(path, content.get("format_version"))
    with understood(path):
        fine = content.get("sha256") == _digest(content)
    if not fine:
        raise StorageError(f"{path} is corrupt, or was edited by hand: its content does not match its sha256")
    return migrated(content)


def records(folder: str | os.PathLike[str]) -> dict[str, FileRecord]:
    """Name -> record of every file that the manifest names; errors as in `load_manifest`."""
    listed = load_manifest(folder).get("files")
    try:
        found = {name: FileRecord(**entry) for name, entry in listed.items()}  # type: ignore[union-attr]
        # A manifest is data from outside: it may name files of its own folder only.
        sound = all(_PLAIN_NAME.fullmatch(record.file) and record.file != MANIFEST for record in found.values())
        sound &= all(type(record.bytes) is int for record in found.values())
    except (AttributeError, TypeError) as error:
        raise StorageError(f"{Path(folder) / MANIFEST} is corrupt: its list of files cannot be read") from error
    if not sound:
        raise StorageError(f"{Path(folder) / MANIFEST} is corrupt: it names a file outside the folder, or no size")
    return found


def _find(folder: str | os.PathLike[str], name: str, check: bool) -> Path:
    found = records(folder)
    if name not in found:
        raise StorageError(f"{folder} holds no {name!r}; it has {', '.join(found) or 'nothing'}")
    return verify(Path(folder), found[name], check)


def load_tree(
    folder: str | os.PathLike[str], name: str, device: torch.device | str = "cpu", check: bool = True
) -> Tree:
    """A tree of a run, after presence, size and (with `check`, which reads the file once more) hash were found right.

    Raises:
        StorageError: the run holds no such tree; its file is missing, truncated or corrupt; as in `load_manifest`.
    """
    return read_tensors(_find(folder, name, check), device, check=False)[0]


def load_json(folder: str | os.PathLike[str], name: str) -> Any:
    """The JSON content saved in a run as `name`; errors as in `load_tree`."""
    return read_json(_find(folder, name, True))


def save_checkpoint(folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Replace the checkpoint of `folder` in one step by `tensors` and the JSON content `meta`.

    Raises:
        StorageError: the content cannot be stored, or the disk is full; the last good checkpoint is untouched.
    """
    write_tensors(Path(folder) / CHECKPOINT, tensors, {"meta": json.dumps(strict_json(meta))})


def load_checkpoint(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> tuple[Tree, dict[str, Any]]:
    """The tensors and the content of the last good checkpoint.

    Raises:
        StorageError: there is none, or it is truncated, corrupt, foreign, or newer.
    """
    path = Path(folder) / CHECKPOINT
    tree, metadata = read_tensors(path, device)
    if "meta" not in metadata:
        raise StorageError(f"{path} is not a checkpoint: it holds tensors only")
    return tree, parse_json(path, metadata["meta"].encode())
