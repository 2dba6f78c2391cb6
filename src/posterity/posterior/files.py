"""Files that appear whole or not at all, and that are known by their content.

A write goes to `.<name>.<pid>.<host and random>.tmp` beside its target, is flushed to the disk, and takes the target's
name by one `os.replace`: a process killed at any moment leaves the last good file untouched. What killed processes left
behind is swept by the next write into the same folder; temporaries of writers that still live are not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from safetensors import SafetensorError

from posterity.errors import PosterityError, StorageError

__all__ = [
    "FORMAT_VERSION",
    "FileRecord",
    "atomic",
    "atomic_json",
    "file_record",
    "file_size",
    "parse_json",
    "read_json",
    "reading",
    "refuse_newer",
    "strict_json",
    "sweep",
    "understood",
    "verify",
]

FORMAT_VERSION = 1
JSON_LIMIT = 2**28  # bytes: what is longer is not ours, and would fill the memory

_MISREAD = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(MemoryError, RuntimeError, TypeError, ValueError),
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_TEMPORARY = re.compile(r"\..+\.(\d+)\.([^.]+)\.tmp")
_DAY = 86400.0
_writing: set[str] = set()  # names of the temporaries that this process is writing now


class FileRecord(NamedTuple):
    """What a manifest knows of a file: its name in the folder, the SHA-256 of its content, its size in bytes."""

    file: str
    sha256: str
    bytes: int


# Whole or not at all


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file that takes the place of `path` only once it is complete and on the disk.

    Raises:
        StorageError: the disk is full, the folder cannot be written; what `path` held before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_HOST}{secrets.token_hex(4)}.tmp")
    _writing.add(temporary.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync(path.parent)
    except StorageError:
        raise
    except OSError as error:
        advice = "; free some space and save again" if error.errno in _FULL else ""
        raise StorageError(f"{path} could not be written, and is as it was: {error}{advice}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
        _writing.discard(temporary.name)


def sweep(folder: Path) -> None:
    """Remove the temporaries that killed writers left in `folder`."""
    with suppress(OSError):
        for path in folder.iterdir():
            if (match := _TEMPORARY.fullmatch(path.name)) and _stale(path, int(match[1]), match[2]):
                with suppress(OSError):
                    path.unlink()


def _stale(path: Path, pid: int, token: str) -> bool:
    if path.name in _writing:
        return False
    if token.startswith(_HOST) and (pid == os.getpid() or not _alive(pid)):
        return True
    # A writer on another host, or another process that took over the number: a live write is never a day old.
    return time.time() - path.stat().st_mtime > _DAY


def _alive(pid: int) -> bool:
    if os.name != "posix":  # there, signal 0 would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    """Make a rename survive a power cut; a file system that cannot is left alone."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Hashes


def file_record(path: Path) -> FileRecord:
    """The record of a file as it is on the disk."""
    file_size(path)
    with reading(path), open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(path.name, digest, file.tell())


def file_size(path: Path) -> int:
    """Bytes of a file. StorageError: it is missing, or no file but a folder, a pipe or a device, which may never end."""
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(
            f"{path} is {'a folder' if stat.S_ISDIR(status.st_mode) else 'a pipe or device'}, not a file"
        )
    return status.st_size


def verify(folder: Path, record: FileRecord, check: bool = True) -> Path:
    """The path of a recorded file, after its presence, size and (with `check`) hash were found right.

    Raises:
        StorageError: it is missing, shorter or longer, or its content changed.
    """
    path = folder / record.file
    size = file_size(path)
    if size != record.bytes:
        kind = "truncated" if size < record.bytes else "not the file that was saved"
        raise StorageError(f"{path} is {kind}: {size} bytes, where {record.bytes} were saved")
    if check and file_record(path).sha256 != record.sha256:
        raise StorageError(f"{path} is corrupt: its SHA-256 is not the one that was saved")
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what reading a file can raise into a StorageError that names it."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{path} is missing") from error
    except SafetensorError as error:
        raise StorageError(f"{path} is truncated or corrupt: {error}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


@contextmanager
def understood(where: object) -> Iterator[None]:
    """Turn what content of the wrong kind makes its readers raise into a StorageError that says where it stands.

    A hash finds damage; it does not say who wrote a file, for anyone can hash what they write.
    """
    try:
        yield
    except PosterityError:
        raise
    except _MISREAD as error:
        raise StorageError(f"{where} cannot be read as posterity's: {type(error).__name__}: {error}") from error


# JSON


def strict_json(content: Any, null: bool = False, where: str = "") -> Any:
    """`content` as strict JSON can hold it: tuples as lists, numpy scalars and 0-d tensors as numbers.

    Args:
        null: store a number that is not finite as null; otherwise it is an error.

    Raises:
        StorageError: a number that is not finite, a key that is not a string, an object that JSON has no word for.
    """
    if isinstance(content, Mapping):
        for key in content:
            if not isinstance(key, str):
                raise StorageError(f"JSON keys are strings: {where or 'the content'} holds the key {key!r}")
        return {str(key): strict_json(value, null, f"{where}.{key}".lstrip(".")) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [strict_json(value, null, f"{where}[{index}]") for index, value in enumerate(content)]
    if getattr(content, "ndim", None) == 0 and hasattr(content, "item"):
        content = content.item()
    if content is None or isinstance(content, bool | int | str):
        return content
    if isinstance(content, float):
        if content - content == 0:
            return float(content)
        if null:
            return None
        raise StorageError(f"JSON has no {content}: {where or 'the content'} is not finite")
    raise StorageError(f"JSON cannot hold a {type(content).__name__}: {where or 'the content'} is {content!r:.80}")


def atomic_json(path: str | os.PathLike[str], content: Any, null: bool = False) -> None:
    """Write `content` as strict, readable JSON; arguments and errors as in `strict_json`."""
    text = json.dumps(strict_json(content, null), indent=2, allow_nan=False).encode() + b"\n"
    if len(text) > JSON_LIMIT:
        raise StorageError(
            f"{path} would have {len(text):,} bytes of JSON, over {JSON_LIMIT:,}: put arrays into tensors"
        )
    with atomic(Path(path)) as file:
        file.write(text)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file; StorageError when it is missing, too long, or as in `parse_json`."""
    path = Path(path)
    if (size := file_size(path)) > JSON_LIMIT:
        raise StorageError(f"{path} is corrupt or was not written by posterity: {size:,} bytes, over {JSON_LIMIT:,}")
    with reading(path):
        content = path.read_bytes()
    return parse_json(path, content)


def parse_json(where: object, content: bytes) -> Any:
    """The content of strict JSON. StorageError: it is truncated, has a key twice or a number that is not finite."""
    try:
        return json.loads(content.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_keys_once)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where} is truncated or corrupt: it is not JSON ({error})") from error


def _finite(word: str) -> float:
    """A number; json lets NaN, Infinity and 1e999 pass."""
    if (number := float(word)) - number != 0:
        raise ValueError(f"{word} is not a finite number")
    return number


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; json would take the last value of a key, and other readers the first."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def refuse_newer(path: Path, version: object) -> None:
    """StorageError unless `version` is one of a format that this library reads."""
    if type(version) is not int or version < 1:
        raise StorageError(f"{path} is corrupt or was not written by posterity: its format_version is {version!r}")
    if version > FORMAT_VERSION:
        raise StorageError(
            f"{path} was written by a newer posterity: its format is {version}, this library reads up to "
            f"{FORMAT_VERSION}; update posterity"
        )
