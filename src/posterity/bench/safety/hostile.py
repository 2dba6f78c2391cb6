"""Run folders that were made to do harm, opened: what runs, what is touched outside, how long and how much memory it takes.

All hashes are right, so that nothing is refused for those. Of each case (`cases.py`): `refused` by one of the
library's errors, `loaded` as what the folder then says, or `failed` by another error; `escaped` where a file outside the
folder changed, `ran` where the code in the folder did, `hung` after LONG seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from posterity.bench.bench import Row
from posterity.bench.safety.cases import GROUPS, OUTSIDE
from posterity.bench.safety.runs import fitted, inputs, network
from posterity.bench.worker import peak, resident
from posterity.errors import PosterityError
from posterity.model import BayesianModel, load

__all__ = ["RUNS", "hostile_folders"]

RUNS = {"map": 1, "sghmc": 5, "score-vi-flow": 5, "low-rank": 5}  # every so many-th case is tried
WRITTEN_TO = ("paths", "links")  # groups whose folders another run is saved over, too
LONG = 20  # seconds
ROOM = 8 * 2**30  # bytes of addresses that a case may take at most; what it did take is in the rows


class _Hung(BaseException):
    """Nothing in the library may catch it."""


def hostile_folders(kind: str, every: int) -> list[Row]:
    """A row per group of cases against a run of this kind, in a process whose memory may be limited."""
    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory() as name, _limited(ROOM):
        root = Path(name)
        os.chdir(root)  # where commands of the cases leave their mark
        fitted(kind).save(root / "made")
        other = fitted(kind, seed=1)
        return [_row(kind, group, root, other, every) for group in GROUPS]


def _row(kind: str, group: str, root: Path, other: BayesianModel, every: int) -> Row:
    found, seconds, most = Counter[str](), 0.0, 0
    folder = root / "made"
    for index, (_, make) in enumerate(GROUPS[group](folder, root)):
        if index % every:
            continue
        copy = root / "run"
        for made in (copy, root / OUTSIDE):
            shutil.rmtree(made, ignore_errors=True)
        (root / OUTSIDE).mkdir()
        (root / OUTSIDE / "kept").write_text("somebody's own", "utf-8")
        make(shutil.copytree(folder, copy))
        outside = _all(root / OUTSIDE)
        with _watched() as watch:
            found[_opened(kind, copy, other if group in WRITTEN_TO else None)] += 1
        found["tries"] += 1
        found["escaped"] += _all(root / OUTSIDE) != outside
        found["ran"] += (root / "ran").exists()
        (root / "ran").unlink(missing_ok=True)
        seconds, most = max(seconds, watch["seconds"]), max(most, watch["bytes"])
    counts = {key: found[key] for key in ("tries", "refused", "loaded", "failed", "escaped", "ran", "hung")}
    return {"run": kind, "what": group, **counts, "slowest_seconds": seconds, "most_mebibytes": most / 2**20}


def _opened(kind: str, folder: Path, other: BayesianModel | None) -> str:
    """Load the run, predict with it, and save another over it where one is given."""
    outcome = "failed"
    try:
        signal.alarm(LONG)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = load(folder, network(kind)())
                model.predict(inputs()[:7])
                outcome = "loaded"
            except PosterityError:
                outcome = "refused"
            if other is not None:
                with suppress(PosterityError):
                    other.save(folder)
    except _Hung:
        outcome = "hung"
    except Exception:
        outcome = "failed"
    finally:
        signal.alarm(0)
    return outcome


def _hang(number: int, frame: object) -> None:
    raise _Hung


@contextmanager
def _limited(room: int) -> Iterator[None]:
    """No more addresses than there are now and `room`: a case that wants more fails before the machine does."""
    import resource  # not on every system

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _watched() -> Iterator[dict[str, Any]]:
    """Seconds, and bytes of memory at the peak above what was there."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak is what is there now
    before, began = resident(), time.monotonic()
    watch: dict[str, Any] = {}
    yield watch
    watch |= {"seconds": time.monotonic() - began, "bytes": peak() - before}


def _all(folder: Path) -> dict[str, Any]:
    """Every file below a folder, with its content and when it was written."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
