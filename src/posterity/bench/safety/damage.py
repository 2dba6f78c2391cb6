"""Files of runs that were cut short, flipped by a bit, or replaced: refused by name, harmless, or silently wrong.

Every kind of posterior, saved; and fits that were interrupted, whose checkpoint and draws the next fit goes on from.
"""

from __future__ import annotations

import io
import pickle
import random
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from posterity.bench.bench import Row
from posterity.bench.safety.runs import fingerprint, fitted, loaded
from posterity.errors import PosterityError

__all__ = ["INTERRUPTED", "damaged", "damages"]

INTERRUPTED = {"map": 1, "sghmc": 2}  # the epoch of its last stage after which a fit is stopped
CUTS = (0, 1, 7, 8, 9, 40)  # bytes that are left, besides those drawn

Read = Callable[[Path], str]


def damaged(kind: str, interrupted: bool, cuts: int, flips: int) -> list[Row]:
    """A row per way of damaging: every file of a run of this kind, one at a time.

    Args:
        interrupted: a fit that stopped in its second half, and is resumed from the damaged folder.
        cuts, flips: how many truncations and flipped bits of each file.
    """
    found: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder, other, copy = (Path(root, name) for name in ("run", "other", "copy"))
        (_interrupted if interrupted else _whole)(kind, folder, 0)
        (_interrupted if interrupted else _whole)(kind, other, 1)
        read: Read = (lambda f: _resumed(kind, f)) if interrupted else (lambda f: loaded(f, kind))
        wanted = read(shutil.copytree(folder, copy))
        for path in sorted(folder.iterdir()):
            chance = random.Random(f"{kind} {interrupted} {path.name}")
            for way, content in damages(path, other / path.name, cuts, flips, chance):
                shutil.rmtree(copy)
                target = shutil.copytree(folder, copy) / path.name
                target.unlink() if content is None else target.write_bytes(content)
                counts = found.setdefault(way, Counter())
                counts["tries"] += 1
                counts.update(_outcome(read, copy, path.name, wanted))
    keys = ("tries", "refused", "named", "harmless", "wrong", "failed")
    return [
        {"run": kind, "interrupted": interrupted, "what": way, **{key: counts[key] for key in keys}}
        for way, counts in found.items()
    ]


def _whole(kind: str, folder: Path, seed: int) -> None:
    fitted(kind, seed=seed).save(folder)


def _interrupted(kind: str, folder: Path, seed: int) -> None:
    """A fit that is stopped in its last stage."""

    def stop(row: dict[str, Any]) -> None:
        if row["stage"] == kind and row["epoch"] == INTERRUPTED[kind]:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        fitted(kind, seed=seed, out=folder, checkpoint_every=1, callbacks=[stop])
        raise PosterityError(f"the fit by {kind} was to be interrupted and came to its end")


def _resumed(kind: str, folder: Path) -> str:
    return fingerprint(fitted(kind, out=folder, resume=True, checkpoint_every=1))


def _outcome(read: Read, folder: Path, name: str, wanted: str) -> list[str]:
    """refused, by an error that names the folder, and named, the file too; harmless: equal to the bit; wrong: not; failed:
    by any other error.
    """
    try:
        return ["harmless" if read(folder) == wanted else "wrong"]
    except PosterityError as error:
        said = str(error)
        return ["refused", *["named"] * (name in said)] if str(folder) in said else ["failed"]
    except Exception:
        return ["failed"]


def damages(
    path: Path, other: Path, cuts: int, flips: int, chance: random.Random
) -> Iterator[tuple[str, bytes | None]]:
    """The ways of damaging one file: their kind, and what is in it then; None where it is gone."""
    whole = path.read_bytes()
    fixed = [size for size in CUTS if size < len(whole)][:cuts]
    for size in (*fixed, *(chance.randrange(len(whole)) for _ in range(cuts - len(fixed)))):
        yield "cut", whole[:size]
    for _ in range(flips):
        content, at = bytearray(whole), chance.randrange(len(whole))
        content[at] ^= 1 << chance.randrange(8)
        yield "flipped", bytes(content)
    yield "gone", None
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(path.name, whole)
    foreign = {
        "zeros": bytes(len(whole)),
        "noise": chance.randbytes(len(whole)),
        "zip": held.getvalue(),
        "pickle": pickle.dumps({"weights": [1.0, 2.0]}),
        "page": b"<!DOCTYPE html><html><title>404 Not Found</title></html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n",
        "longer": whole + b"\0",
        "twice": whole + whole,
    }
    if other.exists() and other.read_bytes() != whole:
        foreign["of another run"] = other.read_bytes()
    yield from (("foreign", content) for content in foreign.values())
