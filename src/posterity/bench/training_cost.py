"""What a training step costs: CPU time and memory against `torch.optim.AdamW` as it comes, in a plain torch loop.

How it is measured stands in `race.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from posterity.bench import peers as plain
from posterity.bench import worker
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.race import Race, available_peers, memory, ours, times
from posterity.inference.ivon import IVON
from posterity.inference.map import MAP
from posterity.inference.mean_field import MeanFieldVI

__all__ = ["CONTESTANTS", "LIMITS", "cells", "claims"]

CONTESTANTS: dict[str, worker.Builder] = {
    "map": ours(MAP()),
    "mean_field": ours(MeanFieldVI()),
    "ivon": ours(IVON()),
}

# AdamW's time at B = 256, and copies of the weights
LIMITS = {
    "mean_field_time": Limit(high=1.5),
    "ivon_time": Limit(high=1.5),
    "mean_field_memory": Limit(high=9.0),
    "ivon_memory": Limit(high=9.0),
}


RACES = {
    "time, 5.9M weights, B=256": Race(__name__, "784-1536-1536-1536-10", 256, 2, 15),
    "time, 5.9M weights, B=32": Race(__name__, "784-1536-1536-1536-10", 32, 2, 15),
    "time, 26k weights, B=64": Race(__name__, "64-128-128-8", 64, 20, 15),
}
MEMORY = Race(__name__, "784-2800-2800-2800-2800-10", 32, 4, 1)  # 25.8M weights: 98 MiB a copy
QUICK_RACES = {"time, 0.2M weights, B=32": Race(__name__, "64-256-256-256-8", 32, 2, 2)}
QUICK_MEMORY = Race(__name__, "64-256-256-256-8", 32, 2, 1)


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """The timings, and the memory of every contestant."""
    names = [*plain.PLAIN, *CONTESTANTS, *(available_peers() if peers else ())]
    races = QUICK_RACES if quick else RACES
    weighed = QUICK_MEMORY if quick else MEMORY
    return {
        **{key: partial(times, names, race) for key, race in races.items()},
        "memory": partial(memory, names, weighed),
    }


def claims(rows: list[Row]) -> dict[str, float]:
    """The ratios at the largest batch, and the copies of the weights, of our own algorithms."""
    timed = [row for row in rows if "times_adamw" in row]
    largest = max(row["batch_size"] for row in timed)
    times = {row["contestant"]: row["times_adamw"] for row in timed if row["batch_size"] == largest}
    copies = {row["contestant"]: row["copies"] for row in rows if "copies" in row}
    return {
        **{f"{name}_time": times[name] for name in CONTESTANTS},
        **{f"{name}_memory": copies[name] for name in CONTESTANTS},
    }
