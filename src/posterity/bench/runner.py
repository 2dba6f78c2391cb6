"""How a bench is run and written down, and whether the committed figures still hold.

A run that writes to a file keeps finished cells beside it and goes on from there. A claim is
published from `benchmarks/results/NAME.json` only, which a full run wrote; `check` holds it to the limits.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import posterity
from posterity.bench.bench import Limit
from posterity.bench.registry import BENCHES
from posterity.errors import DataError, PosterityWarning, StorageError
from posterity.posterior.files import atomic_json, read_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["RESULTS", "check", "names", "run", "table"]

RESULTS = Path("benchmarks/results")  # of the checkout that the command runs in


def names() -> list[str]:
    """What can be run."""
    return list(BENCHES)


def run(
    name: str,
    *,
    quick: bool = False,
    peers: bool = False,
    out: Path | None = None,
    resume: bool = True,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run one bench and return its record, written to `out` where that is given.

    Args:
        quick: a minute-sized version of the same work, not for publication.
        peers: add the rows of other libraries; they need `make peers`.
        out: a JSON file. The cells that are done lie beside it until all are.
        resume: go on from the cells of an interrupted run with the same settings and environment.
        tell: called with a line before each cell.

    Raises:
        KeyError: no bench has this name.
    """
    bench = BENCHES[name]
    began = time.perf_counter()
    record: dict[str, Any] = {
        "bench": name,
        "command": f"posterity bench {name}" + " --quick" * quick + " --peers" * peers,
        "environment": environment(),
        "quick": quick,
    }
    partial = None if out is None else out.with_suffix(".partial.json")
    done = _done(partial, record) if resume and partial is not None else {}
    cells = bench.cells(quick, peers)
    seconds = sum(cell["seconds"] for cell in done.values())
    for key, cell in cells.items():
        if key in done:
            continue
        if tell is not None:
            tell(f"{name}: {key} ({len(done) + 1} of {len(cells)})")
        started, load = time.perf_counter(), os.getloadavg()[0]
        with one_thread():
            found = cell()
        done[key] = {"rows": found, "seconds": time.perf_counter() - started, "load": load}
        if partial is not None:
            partial.parent.mkdir(parents=True, exist_ok=True)
            atomic_json(partial, {**record, "cells": done})
    rows = [{"cell": key, **row, "load": done[key]["load"]} for key in cells for row in done[key]["rows"]]
    record |= {
        "seconds": seconds + time.perf_counter() - began,
        "rows": rows,
        "claims": bench.claims(rows),
        "limits": {claim: limit._asdict() for claim, limit in bench.limits.items()},
    }
    if out is not None and partial is not None:
        atomic_json(out, record)
        partial.unlink(missing_ok=True)
    return record


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _done(partial: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """The finished cells of an interrupted run, where it was the same run."""
    if not partial.exists():
        return {}
    try:
        found = read_json(partial)
    except StorageError:
        return {}
    return found["cells"] if all(found.get(key) == value for key, value in record.items()) else {}


def environment() -> dict[str, Any]:
    """What a cost depends on; no names of hosts, users or folders."""
    return {
        "posterity": posterity.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": 1,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def check(name: str, results: Path = RESULTS) -> list[str]:
    """What is wrong with the committed figures of one bench, a line each; none where all is well.

    The file must be there, come from a full run, hold every claim that the bench makes within its limit, and have the
    rows that a quick run (which this starts) still gives; without the data for one, a warning says so.
    """
    bench, path = BENCHES[name], results / f"{name}.json"
    redo = f"; run: posterity bench {name} --out {path}"
    try:
        record = read_json(path)
    except StorageError as error:
        return [f"{name}: {error}{redo}"]
    failures = []
    if record.get("quick") is not False:
        failures.append(f"{name}: {path} is not from a full run{redo}")
    claims = record.get("claims", {})
    for claim, limit in bench.limits.items():
        if claim not in claims:
            failures.append(f"{name}: {path} lacks the claim {claim!r}{redo}")
        elif not limit.holds(claims[claim]):
            failures.append(f"{name}: {claim} is {claims[claim]:.3g} and must be {limit}")
    try:
        fresh = run(name, quick=True)
    except DataError as error:
        warnings.warn(f"{name} is not run again: {error}", PosterityWarning, stacklevel=2)
        return failures
    return failures + [f"{name}: {path} {line}{redo}" for line in _misfits(record, fresh)]


def _misfits(committed: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Where the shape of two records of one bench differs: keys, claims, fields of the rows."""
    lines = []
    for what, then, now in (
        ("keys", committed.keys(), fresh.keys()),
        ("claims", committed.get("claims", {}).keys(), fresh["claims"].keys()),
    ):
        if then != now:
            lines.append(f"has other {what} than a run of today: {sorted(then ^ now)}")
    shapes = {frozenset(row) for row in committed.get("rows", [])}
    if missing := {frozenset(row) for row in fresh["rows"]} - shapes:
        lines.append(f"has no rows with the fields {[sorted(shape) for shape in missing]}")
    return lines


def table(record: Mapping[str, Any]) -> Table:
    """The rows of a record for the terminal, under the name of their cell, and the claims under them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = record["rows"]
    fields = BENCHES[record["bench"]].shown or tuple(
        f for f in dict.fromkeys(f for r in rows for f in r) if f != "cell"
    )
    out = Table(
        title=record["command"], caption=_claims(record), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left"
    )
    for field in fields:
        numeric = all(isinstance(row.get(field), int | float | None) for row in rows)
        out.add_column(field.replace("_", "\n"), justify="right" if numeric else "left", no_wrap=True)
    for cell, group in itertools.groupby(rows, lambda row: row["cell"]):
        out.add_section()
        out.add_row(f"[bold]{cell}[/bold]")
        for row in group:
            out.add_row(*(_cell(row.get(field)) for field in fields))
    return out


def _claims(record: Mapping[str, Any]) -> str:
    """A line per claim, with its limit."""
    width = max(map(len, record["claims"]))
    lines = []
    for claim, value in record["claims"].items():
        limit = record["limits"].get(claim)
        lines.append(f"{claim:{width}}  {value:.3g}" + (f"  ({Limit(**limit)})" if limit else ""))
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
