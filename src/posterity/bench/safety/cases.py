"""What is tried against a run folder: names that lead out of it, links and pipes, other values, JSON that is none, headers
that promise what is not there, and files that run when they are opened by what opens such files.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from posterity.bench.safety.forge import DEEP, HEADERS, Edit, edits, header_of, put, put_header, put_manifest
from posterity.posterior.storage import MANIFEST

__all__ = ["GROUPS", "OUTSIDE", "Case"]

OUTSIDE = "outside"  # a folder beside that of the run, with a file called "kept"
CALIBRATION = "calibration.json"
Change = Callable[[Path], object]  # done to the folder of a run
Case = tuple[str, Change]  # what is tried

PATHS: tuple[Any, ...] = (
    *("../outside/kept", "..", ".", "", "/", "/etc/passwd", "../../../../../../etc/passwd", "a/b", "a\\b"),
    *("..\\outside\\kept", "~/kept", "%2e%2e/outside/kept", "file:///etc/passwd", "\0", "kept\0.safetensors"),
    *("x" * 5000, "\u202e", MANIFEST, 7, None, []),
)  # fmt: skip
VALUES: dict[str, Any] = {
    **{repr(number): number for number in (2**63, 2**31, -1, 0, 0.5, 1e308, None, True)},
    **{repr(text): text for text in ("", "x")},
    "[]": [],
    "{}": {},
    "[[]]": [[]],
    "['x']": ["x"],
    "a long text": "x" * 100_000,
    "a class": {"class_path": "posix.system", "init_args": {"command": "touch ran"}},
}
TEXTS = {
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "1e999": "1e999",
    "too many digits": "9" * 10_000,
    "deep": "[" * DEEP + "]" * DEEP,
    "nested 900 times": "[" * 900 + "]" * 900,
    "a key twice": '{"a": 1, "a": 2}',
    "a lone surrogate": r'"\ud800"',
    "cut": "[",
}


class _Call:
    """What runs a command when a pickle of it is opened."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _written(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def _put(name: str, content: bytes) -> Change:
    """The content in a file, hashed; the manifest itself as it is."""
    return _written(name, content) if name == MANIFEST else lambda folder: put(folder, name, content)


def _edited(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda folder: put_manifest(folder, change)


def _instead(name: str, make: Callable[[Path], object]) -> Change:
    """Something else in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def _linked(name: str, target: str) -> Change:
    return _instead(name, lambda path: path.symlink_to(target))


# What is tried: folder of the run, folder that it is in -> cases


def _paths(folder: Path, root: Path) -> Iterator[Case]:
    """Names of files that lead out of the folder."""
    records = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
    for entry in records:
        for path in (*PATHS, str(root / OUTSIDE / "kept")):
            yield f"{entry} at {path!r}", _at(entry, path)
            yield f"{entry} called {path!r}", _called(entry, path)


def _at(entry: str, path: Any) -> Change:
    return _edited(lambda manifest: manifest["files"][entry].update(file=path))


def _called(entry: str, name: Any) -> Change:
    """The record under another name, JSON's own form of it."""
    return _edited(lambda manifest: manifest["files"].update({str(name): manifest["files"].pop(entry)}))


def _links(folder: Path, root: Path) -> Iterator[Case]:
    """Files that are none, or lie elsewhere."""
    kept = str(root / OUTSIDE / "kept")
    for name in _names(folder):
        for target in ("/dev/zero", "/dev/random", "/proc/self/environ", kept, ".", "nowhere", name):
            yield f"{name} -> {target}", _linked(name, target)
        yield f"{name} moved out, linked", _moved(name)
        yield f"{name} a pipe", _instead(name, os.mkfifo)
        yield f"{name} a folder", _instead(name, Path.mkdir)
        yield f"{name} of 2^40 bytes", _instead(name, _endless)
        yield f"a temporary of {name} that is a link", _stale(name)


def _moved(name: str) -> Change:
    """A good file elsewhere, as caches keep them."""

    def change(folder: Path) -> None:
        shutil.copy(folder / name, folder.parent / OUTSIDE / "kept")
        _linked(name, f"../{OUTSIDE}/kept")(folder)

    return change


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def _stale(name: str) -> Change:
    """What a writer that is dead seems to have left, and the next save removes: the link, not what it leads to."""
    return lambda folder: (folder / f".{name}.1.x.tmp").symlink_to(f"../{OUTSIDE}/kept")


def _values(folder: Path, root: Path) -> Iterator[Case]:
    """Every value of the manifest and the calibration as another, or gone."""
    for name, change in edits(json.loads((folder / MANIFEST).read_text("utf-8")), VALUES):
        yield name, _edited(change)
    for name, change in edits(json.loads((folder / CALIBRATION).read_text("utf-8")), VALUES):
        yield f"calibration {name}", _recalibrated(change)


def _recalibrated(edit: Callable[[Any], None]) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / CALIBRATION).read_text("utf-8"))
        edit(content)
        put(folder, CALIBRATION, json.dumps(content).encode())

    return change


def _texts(folder: Path, root: Path) -> Iterator[Case]:
    """JSON that is none, or more than that."""
    for name, text in TEXTS.items():
        yield f"manifest with {name}", _seeded(text)
        yield f"manifest is {name}", _put(MANIFEST, text.encode())
        yield f"calibration is {name}", _put(CALIBRATION, text.encode())
        yield f"temperature {name}", _put(CALIBRATION, f'{{"temperature": {text}}}'.encode())


def _seeded(text: str) -> Change:
    """The seed as this text, in a manifest that nobody can sign any more."""

    def change(folder: Path) -> None:
        whole = (folder / MANIFEST).read_text("utf-8")
        (folder / MANIFEST).write_text(whole.replace('"seed": 0', f'"seed": {text}', 1), "utf-8")

    return change


def _headers(folder: Path, root: Path) -> Iterator[Case]:
    """Headers of tensor files that promise what is not there."""
    for file in (name for name in _names(folder) if name.endswith(".safetensors")):
        if len(header_of(folder / file)[0]) > 1:
            for name, forge in HEADERS.items():
                yield f"{file}: {name}", _forged(file, forge)


def _forged(file: str, forge: Callable[[dict[str, Any], bytes], tuple[bytes, bytes, int | None]]) -> Change:
    return lambda folder: put_header(folder, file, *forge(*header_of(folder / file)))


def _code(folder: Path, root: Path) -> Iterator[Case]:
    """Files that run when they are opened by what opens such files."""
    mark = root / "ran"
    call, held = _Call(f"touch {mark}"), io.BytesIO()
    torch.save({"state_dict": call}, held)
    python = f"open({str(mark)!r}, 'w')".encode()
    payloads = {
        **{f"pickle {n}": pickle.dumps(call, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
        "torch.save": held.getvalue(),
        "python": python,
        "yaml": f'!!python/object/apply:os.system ["touch {mark}"]'.encode(),
        "shell": f"#!/bin/sh\ntouch {mark}\n".encode(),
    }
    for payload, content in payloads.items():
        for file in _names(folder):
            yield f"{file}: {payload}", _put(file, content)
    for extra in ("__init__.py", "posterity.py", "torch.py", "conftest.py", "sitecustomize.py", "network.py"):
        yield f"{extra} beside", _written(extra, python)
    yield "posterior.pkl beside", _written("posterior.pkl", payloads["pickle 4"])
    for path in (("method",), ("likelihood", "name"), ("prior", "name"), ("posterior", "kind"), ("versions", "torch")):
        for word in ("os.system", "builtins.exec", "__import__", python.decode(), "posterity.model.load"):
            yield f"{'.'.join(path)} = {word}", _edited(Edit(path, word))


GROUPS: dict[str, Callable[[Path, Path], Iterator[Case]]] = {
    "paths": _paths,
    "links": _links,
    "values": _values,
    "texts": _texts,
    "headers": _headers,
    "code": _code,
}
