"""The command line under `torchrun`: every rank runs the command, and rank 0 speaks and writes."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path

from posterity.group import Group, launched, torchrun
from posterity.inference.algorithm import Algorithm
from posterity.interfaces.console import say, stderr, stdout

__all__ = ["distribution", "own", "several", "together"]

SHARED = ("fit", "evaluate")


def distribution(method: Algorithm) -> str | None:
    """How `po.fit` is to share the work: by members where each rank gets one, else by rows; None in one process."""
    size = Group.here().size
    if size == 1:
        return None
    return "members" if method.members >= size else "rows"


def several() -> bool:
    """Whether there is another rank."""
    return Group.here().size > 1


def own(out: Path) -> Path:
    """`out` on rank 0; on the others a folder that nobody reads."""
    return out if Group.here().rank == 0 else _nowhere()


@cache
def _nowhere() -> Path:
    folder = tempfile.mkdtemp(prefix="posterity-rank-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def together(arguments: Sequence[str]) -> Iterator[bool]:
    """Whether this rank has to run the command, for the length of it; only rank 0 is heard."""
    if not launched():
        yield True
        return
    leads = os.environ["RANK"] == "0"
    if next(iter(arguments), None) not in SHARED:
        if leads:
            say(f"only {' and '.join(SHARED)} are shared among ranks: rank 0 works alone")
        yield leads
        return
    with torchrun():
        if leads:
            yield True
            return
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            stdout.quiet = stderr.quiet = True
            try:
                yield True
            except Exception as error:
                sys.stderr.write(f"posterity, rank {os.environ['RANK']}: {error}\n")
                raise
