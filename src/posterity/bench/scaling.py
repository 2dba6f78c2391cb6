"""What two processes save over one: steps on shared rows, fits of shared members, evaluations; and what they send.

    speedup      seconds of the same work by one process, / by two that share it, one thread each; medians over turns
    machine      what the machine itself gives two processes that have nothing to do with each other, of 2: cores that share
                 memory, caches or heat give less
    of_machine   speedup / machine: what is lost by sharing the work

How it is measured stands in `scaling_ranks.py`; what follows for larger networks on more ranks in `scaling_plan.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from posterity.bench import scaling_plan, scaling_ranks
from posterity.bench.bench import Cell, Limit, Row
from posterity.errors import PosterityError

__all__ = ["CONTESTANTS", "LIMITS", "cells", "claims", "launched"]

# of a machine with two cores that others use too
LIMITS = {
    "rows_5.9M_1024_map_speedup": Limit(low=1.0),
    "rows_5.9M_1024_map_of_machine": Limit(low=0.6),
    "members_ensemble_of_machine": Limit(low=0.5),
    "members_chains_of_machine": Limit(low=0.5),
    "evaluation_mean_field_of_machine": Limit(low=0.5),
    "all_reduce_80_gbs": Limit(low=0.2),
    "memory_mean_field_share": Limit(high=1.3),
    "memory_ensemble_share": Limit(high=1.5),
    "plan_mean_field_predicted_share": Limit(0.5, 1.5),
}

CONTESTANTS = scaling_plan.CONTESTANTS
PERCEPTRONS = {"1M": "784-800-480-10", "5.9M": "784-1536-1536-1536-10"}
ENCODER = "encoder-192"  # 2.6M weights
FIGURES = ("one_ms", "two_ms", "speedup", "machine", "of_machine")
PARTS = ("one_compute_ms", "one_update_ms", "two_compute_ms", "two_reduce_ms", "two_update_ms")


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A launch of two ranks for every network and batch; what is sent; what is held; what the plans count."""
    turns = 2 if quick else 7
    found: dict[str, Cell] = {}

    def add(cell: str, work: str, **options: Any) -> None:
        if quick and "network" in options:
            options["network"] = "encoder-16" if cell.startswith("rows, encoder") else "64-64-48-10"
        found[cell] = partial(launched, work, **{"repeats": turns, **options})

    methods = list(scaling_ranks.METHODS)
    for name, network in PERCEPTRONS.items():
        for batch in (256, 1024):
            steps = 2 if quick or name == "5.9M" else 1024 // batch + 2
            add(f"rows, {name} weights, B={batch}", "rows", network=network, batch=batch, steps=steps, methods=methods)
    add("rows, encoder, B=64", "rows", network=ENCODER, batch=64, steps=2, methods=["map", "mean-field"])
    for name, steps in (("ensemble", 12), ("chains", 4)):
        add(f"members, {name}", "members", network=PERCEPTRONS["1M"], batch=256, steps=steps, methods=[name])
    rows, draws = (500, 2) if quick else (20_000, 16)
    add("evaluation", "evaluation", network="256-512-256-10", rows=rows, draws=draws, repeats=min(turns, 4))
    found["link"] = partial(launched, "link", megabytes=[4, 20, 80], repeats=3 if quick else 15)
    for name in ("mean-field", "ensemble"):
        found[f"memory, {name}"] = partial(_held, "32-64-48-10" if quick else PERCEPTRONS["5.9M"], name)
    found["methods"] = partial(scaling_plan.counted, quick)
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Of every work, by its cell and method, what one and two processes take; of the link GB/s; what the plans say."""
    found: dict[str, float] = {}
    for row in rows:
        if "speedup" in row:
            key = _key(row)
            found |= {f"{key}_{figure}": row[figure] for figure in (*FIGURES, *PARTS) if figure in row}
        elif "what" in row:
            found[f"{row['what'].replace(' ', '_').replace('-', '_')}_{row['megabytes']}_gbs"] = row["gbs"]
        elif "ranks" in row:
            found[f"{_key(row)}_mebibytes_{row['ranks']}"] = row["mebibytes"]
    alone = {key: value for key, value in found.items() if key.endswith("_mebibytes_1")}
    for key, value in alone.items():
        stem = key.removesuffix("_mebibytes_1")
        found[f"{stem}_share"] = found[f"{stem}_mebibytes_2"] / value
    return found | scaling_plan.claims(rows)


def _key(row: Row) -> str:
    """
    >>> _key({"cell": "rows, 5.9M weights, B=256", "method": "mean-field"})
    'rows_5.9M_256_mean_field'
    """
    words = row["cell"].replace(" weights", "").replace("B=", "").replace(",", "").split()
    return "_".join(words if row["method"] in words else [*words, row["method"]]).replace("-", "_")


def _held(network: str, method: str) -> list[Row]:
    """The memory of one process, and that of each of two."""
    return [row for ranks in (1, 2) for row in launched("memory", ranks, network=network, batch=256, method=method)]


def launched(work: str, ranks: int = 2, **options: Any) -> list[Row]:
    """What the ranks of one launch of torchrun measured.

    Raises:
        PosterityError: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        command += ["-m", scaling_ranks.__name__, work, json.dumps(options), str(out)]
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=alone)
        if done.returncode != 0:
            said, _, _ = done.stderr.partition("failed (exitcode")  # what follows is torchrun's own
            raise PosterityError(f"the ranks of {work} failed:\n{said[-2000:]}")
        return json.loads(out.read_text("utf-8"))
