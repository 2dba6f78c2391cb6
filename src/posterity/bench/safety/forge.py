"""Files as somebody with bad intentions would make them: their hashes are right, for anyone can compute a hash.

Written against the public description of the folder, not with the library's own writers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posterity.posterior.storage import MANIFEST

__all__ = ["DEEP", "HEADERS", "Edit", "edits", "header_of", "put", "put_header", "put_manifest", "signed"]

DEEP = 200_000  # nested lists, far beyond what any parser takes
_OPEN, _DIGITS = b'{"__metadata__":{"sha256":"', 64


def signed(manifest: Mapping[str, Any]) -> str:
    """A manifest as text, with the hash of its own content."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return json.dumps({**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()})


def put_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a run and sign it again."""
    content = json.loads((folder / MANIFEST).read_text("utf-8"))
    change(content)
    (folder / MANIFEST).write_text(signed(content), "utf-8")


def put(folder: Path, file: str, content: bytes) -> None:
    """Put content into a file of a run, and its size and hash into the manifest."""
    (folder / file).write_bytes(content)

    def change(manifest: dict[str, Any]) -> None:
        for record in manifest["files"].values():
            if record["file"] == file:
                record |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    put_manifest(folder, change)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a tensor file."""
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:size]), content[size:]


def put_header(folder: Path, file: str, header: bytes, data: bytes, length: int | None = None) -> None:
    """A tensor file of this header and data, sealed, in the place of `file`; `length` is what its first 8 bytes say."""
    whole = (len(header) if length is None else length).to_bytes(8, "little") + header + data
    start = 8 + len(_OPEN)
    if header.startswith(_OPEN):
        blank = whole[:start] + b"0" * _DIGITS + whole[start + _DIGITS :]
        whole = whole[:start] + hashlib.sha256(blank).hexdigest().encode() + whole[start + _DIGITS :]
    put(folder, file, whole)


# Manifests


def edits(content: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Every place of JSON content with each of `values` in it, and taken out: what is done, and a function that does it."""
    for path in _places(content):
        for name, value in values.items():
            yield f"{'.'.join(map(str, path))} = {name}", Edit(path, value)
        yield f"{'.'.join(map(str, path))} taken out", Edit(path, None, gone=True)


class Edit:
    """Another value at a path of JSON content, or none."""

    def __init__(self, path: tuple[Any, ...], value: Any, gone: bool = False) -> None:
        self.path, self.value, self.gone = path, value, gone

    def __call__(self, content: Any) -> None:
        for key in self.path[:-1]:
            content = content[key]
        if self.gone:
            del content[self.path[-1]]
        else:
            content[self.path[-1]] = self.value


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key, and of a list its first place: the others are alike."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        parts = content.items()
    elif isinstance(content, list):
        parts = enumerate(content[:1])
    for key, part in parts:
        yield (*path, key)
        yield from _places(part, (*path, key))


# Headers of tensor files: (header, data) -> header, data, what the first 8 bytes say

Forged = tuple[bytes, bytes, int | None]


def _json(header: Mapping[str, Any], data: bytes, length: int | None = None) -> Forged:
    return json.dumps(header, separators=(",", ":")).encode(), data, length


def _last(header: Mapping[str, Any]) -> str:
    return list(header)[-1]


def _with(**fields: Any) -> Callable[[dict[str, Any], bytes], Forged]:
    """The last tensor said to be another."""
    return lambda header, data: _json({**header, _last(header): {**header[_last(header)], **fields}}, data)


def _shifted(start: int, end: int) -> Callable[[dict[str, Any], bytes], Forged]:
    """The offsets of the last tensor moved."""

    def forge(header: dict[str, Any], data: bytes) -> Forged:
        begin, stop = header[_last(header)]["data_offsets"]
        return _with(data_offsets=[begin + start, stop + end])(header, data)

    return forge


def _index(**fields: Any) -> Callable[[dict[str, Any], bytes], Forged]:
    """The index of names, aliases and complex tensors said to be another."""

    def forge(header: dict[str, Any], data: bytes) -> Forged:
        own = json.dumps({**json.loads(header["__metadata__"]["posterity"]), **fields})
        return _json({**header, "__metadata__": {**header["__metadata__"], "posterity": own}}, data)

    return forge


def _more(name: str, entry: Any) -> Callable[[dict[str, Any], bytes], Forged]:
    """A tensor more."""
    return lambda header, data: _json({**header, name: entry}, data)


def _metadata(text: str) -> Callable[[dict[str, Any], bytes], Forged]:
    """The index as this text."""
    return lambda header, data: _json({**header, "__metadata__": {**header["__metadata__"], "posterity": text}}, data)


def _twice(header: dict[str, Any], data: bytes) -> Forged:
    """The last tensor there twice, once as integers."""
    text, name = _json(header, data)[0], _last(header)
    return text[:-1] + b"," + json.dumps({name: {**header[name], "dtype": "I32"}}).encode()[1:], data, None


def _said(length: int) -> Callable[[dict[str, Any], bytes], Forged]:
    """Another length of the header."""
    return lambda header, data: _json(header, data, length)


def _raw(tail: bytes) -> Callable[[dict[str, Any], bytes], Forged]:
    """A header that goes on as it should not."""
    return lambda header, data: (_json(header, data)[0][:-1] + tail, data, None)


HEADERS: dict[str, Callable[[dict[str, Any], bytes], Forged]] = {
    **{f"length {n}": _said(n) for n in (0, 1, 7, 2**20, 2**40, 2**63, 2**64 - 1)},
    **{
        f"shape {s}": _with(shape=s)
        for s in ([], [-1], [2**40], [2**62, 4], [2**63, 0], [2**40, 2**40, 0], [1.5], "x", None)
    },
    "shape of 100,000 axes": _with(shape=[1] * 100_000),
    **{f"dtype {d}": _with(dtype=d) for d in ("F64", "F16", "I32", "F4", "F6_E2M3", "F8_E8M0", "C64", "BOOL", "X", 7, None)},
    **{
        f"offsets moved by {start}, {end}": _shifted(start, end)
        for start, end in ((-4, -4), (4, 4), (0, 4), (0, -4), (-4, 0), (2**40, 2**40), (0, 2**63), (-(2**40), 0), (8, -8))
    },
    "no offsets": _with(data_offsets=[]),
    "a tensor over the others": _more("x", {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "a tensor beyond the end": _more("x", {"dtype": "F32", "shape": [2**38], "data_offsets": [2**40, 2**41]}),
    "a tensor that is a list": _more("x", []),
    "a tensor twice": _twice,
    "not a number": _raw(b',"x":NaN}'),
    "infinity": _raw(b',"x":1e999}'),
    "deep": _raw(b',"x":' + b"[" * DEEP),
    "not UTF-8": _raw(b',"\xff\xfe":0}'),
    "no end": _raw(b""),
    "an index of nothing": _index(order=[]),
    "an index of other names": _index(order=["../x"]),
    "an index of numbers": _index(order=7),
    "aliases of nothing": _index(aliases={"x": "y"}),
    "aliases in a ring": _index(aliases={"x": "x"}),
    "aliases that are a list": _index(aliases=[1]),
    "complex numbers of nothing": _index(complex=["x"]),
    "complex numbers that are text": _index(complex="x"),
    "format 2**63": _index(format_version=2**63),
    "format -1": _index(format_version=-1),
    "no index": _metadata(""),
    "a deep index": _metadata("[" * DEEP),
    "an index that is a number": _metadata("7"),
}  # fmt: skip
