"""A function of the safety bench in an interpreter of its own: it forks, fills a disk, and limits its memory there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from posterity.bench.bench import Row
from posterity.errors import PosterityError

__all__ = ["in_child", "main"]

_CODE = "from posterity.bench.safety.child import main; main()"


def in_child(work: Callable[..., list[Row]], *arguments: Any, within: Sequence[str] = ()) -> list[Row]:
    """The rows of a function of a module, called in a new process.

    Args:
        arguments: JSON.
        within: a command that the process is started by, such as `unshare`.

    Raises:
        PosterityError: the process failed; the end of what it said is in the message.
    """
    command = [*within, sys.executable, "-c", _CODE, work.__module__, work.__name__, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PosterityError(f"{work.__name__} ended with {done.returncode}: {done.stderr[-2000:]}")
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    """Call what the command line names and write its rows to standard output."""
    torch.set_num_threads(1)  # a forked child must find no pool of threads that it does not have
    module, name, arguments = sys.argv[1:]
    rows = getattr(import_module(module), name)(*json.loads(arguments))
    sys.stdout.write("\n" + json.dumps(rows) + "\n")
