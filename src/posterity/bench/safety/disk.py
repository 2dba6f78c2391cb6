"""A disk that is full: how a save, a checkpoint and a fit end, and what is there afterwards.

The disk is a tmpfs in a mount namespace of its own (`unshare`), with a file that leaves so many bytes free; where that
cannot be had, a limit on the size of files (RLIMIT_FSIZE). Which one it was stands in the rows.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from posterity.bench.bench import Row
from posterity.bench.safety.child import in_child
from posterity.bench.safety.runs import fitted, loaded
from posterity.errors import StorageError
from posterity.posterior.storage import load_checkpoint, save_checkpoint

__all__ = ["full_disks", "tried"]

TMPFS, LIMIT = "tmpfs", "limit on file sizes"
PAGE = 4096  # of a tmpfs: it is filled by whole pages
_MOUNT = 'exec mount -t tmpfs -o size=16m tmpfs "$0"'
WORK = ("save", "checkpoint", "fit")


def full_disks(levels: int) -> list[Row]:
    """A row per kind of work, each tried with `levels` different numbers of bytes free."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    with tempfile.TemporaryDirectory() as root:
        probe = [*namespace, "sh", "-c", _MOUNT, root]
        mounts = shutil.which("unshare") and subprocess.run(probe, capture_output=True).returncode == 0
    return in_child(tried, levels, TMPFS if mounts else LIMIT, within=namespace if mounts else ())


def tried(levels: int, disk: str) -> list[Row]:
    """The rows, in a process that may mount (tmpfs) or be limited."""
    with tempfile.TemporaryDirectory() as root:
        if disk == TMPFS:
            subprocess.run(["sh", "-c", _MOUNT, root], check=True)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error then, not the end
        try:
            return [{"what": name, "disk": disk, **_counts(name, Path(root), levels, disk)} for name in WORK]
        finally:
            if disk == TMPFS:
                subprocess.run(["umount", root], check=True)


@contextmanager
def _full(root: Path, free: int, disk: str) -> Iterator[None]:
    """So many bytes are free, or a file may have."""
    import resource  # not on every system

    filler = root / "filler"
    if disk == TMPFS:
        there = os.statvfs(root)
        with open(filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(there.f_bavail * there.f_frsize - free, 1))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (free, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        filler.unlink(missing_ok=True)


def _counts(name: str, root: Path, levels: int, disk: str) -> dict[str, int]:
    """What became of the work at each level."""
    found = Counter[str]()
    folder = root / "run"
    work, state = {"save": _saved, "checkpoint": _checkpointed, "fit": _fitted}[name]()
    for level in range(levels):
        shutil.rmtree(folder, ignore_errors=True)
        work(folder, 0)
        before, names = state(folder), sorted(os.listdir(folder))
        try:
            with _full(root, PAGE * level, disk):
                work(folder, 1)
            found["fitted_in"] += 1
        except StorageError as error:
            found["refused"] += 1
            found["unclear"] += str(folder) not in str(error) or "free some space" not in str(error)
            found["lost"] += name != "fit" and state(folder) != before
            left = set(os.listdir(folder)) - set(names)
            found["temporaries"] += any(file.endswith(".tmp") for file in left)
            found["left_over"] += name != "fit" and bool(left)
        work(folder, 1)
        after = state(folder)
        shutil.rmtree(folder)
        work(folder, 1)
        found["different"] += state(folder) != after
        found["tries"] += 1
    keys = ("tries", "refused", "fitted_in", "unclear", "lost", "different", "temporaries", "left_over")
    return {key: found[key] for key in keys}


Work = tuple[Callable[[Path, int], object], Callable[[Path], str]]


def _saved() -> Work:
    """One model, then another in its place."""
    models = [fitted("deep-ensemble", seed=seed) for seed in (0, 1)]
    return lambda folder, which: models[which].save(folder), lambda folder: loaded(folder, "deep-ensemble")


def _checkpointed() -> Work:
    """One checkpoint, then another in its place."""

    def work(folder: Path, which: int) -> None:
        save_checkpoint(folder, {"a": torch.full((20_011,), float(which))}, {"step": which})

    def state(folder: Path) -> str:
        tensors, meta = load_checkpoint(folder)
        return f"{meta} {tensors['a'].unique().tolist()}"

    return work, state


def _fitted() -> Work:
    """Nothing, then a fit with checkpoints and streamed draws that goes on from where it was."""

    def work(folder: Path, which: int) -> None:
        if which:
            fitted("sghmc", out=folder, resume=True, checkpoint_every=1)
        else:
            folder.mkdir()

    def state(folder: Path) -> str:
        return loaded(folder, "sghmc") if any(folder.iterdir()) else ""

    return work, state
