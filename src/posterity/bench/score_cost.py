"""What a step of score-based variational inference costs, against plain SGD, AdamW and the usual way to write ADVI.

How it is measured stands in `race.py`; on networks too large to hold side by side, one contestant after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from posterity.bench import worker
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.race import Race, available_peers, measured_alone, memory, ours, times
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.score import ScoreVI

__all__ = ["CONTESTANTS", "LIMITS", "cells", "claims"]

CONTESTANTS: dict[str, worker.Builder] = {
    "mean_field": ours(MeanFieldVI()),
    "score_vi": ours(ScoreVI()),
    "score_vi_whitened": ours(ScoreVI(update="whitened")),
    "score_vi_lagged": ours(ScoreVI(lag=5)),
}
PLAIN = ("sgd", "adamw", "advi_autograd")

LIMITS = {
    "time_vs_sgd": Limit(high=1.5),
    "time_vs_autograd_advi": Limit(high=0.75),
    "memory_copies": Limit(high=7.0),
}

SMALL, LARGE = "784-1536-1536-1536-10", "784-2800-2800-2800-2800-10"  # 5.9M and 25.8M weights
RACES = {
    f"time, {weights} weights, B={rows}": Race(__name__, network, rows, 2, repeats)
    for weights, network, repeats in (("5.9M", SMALL, 15), ("25.8M", LARGE, 9))
    for rows in (256, 32)
}
ALONE = {
    "ResNet-101, B=4": Race(__name__, "resnet-101", 4, 1, 3),
    "ViT-L/32, B=2": Race(__name__, "vit-l-32", 2, 1, 3),
}
QUICK = Race(__name__, "64-256-256-256-8", 32, 2, 2)


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """The timings, the memory of every contestant, and the large networks."""
    names = [*PLAIN, *CONTESTANTS, *(available_peers() if peers else ())]
    if quick:
        return {"time": partial(times, names, QUICK, "sgd"), "memory": partial(memory, names, QUICK)}
    alone = ("sgd", "adamw", "mean_field", "score_vi")
    return {
        **{key: partial(times, names, race, "sgd") for key, race in RACES.items()},
        "memory, 25.8M weights, B=32": partial(memory, names, Race(__name__, LARGE, 32, 4, 1)),
        **{key: partial(measured_alone, alone, race) for key, race in ALONE.items()},
    }


def claims(rows: list[Row]) -> dict[str, float]:
    """Time: the worse of the two perceptrons at their largest batch. Memory: copies of the weights; and what autograd's
    way would take on ViT-L/32, in GiB, if it needs as many copies there.
    """
    largest = max(row["batch_size"] for row in rows if "times_sgd" in row)
    cells = {row["cell"] for row in rows if "times_sgd" in row and row["batch_size"] == largest}
    timed = [{row["contestant"]: row["milliseconds"] for row in rows if row["cell"] == cell} for cell in cells]
    copies = {row["contestant"]: row["copies"] for row in rows if row["cell"].startswith("memory")}
    heaviest = max(row["weights"] for row in rows)
    return {
        "time_vs_sgd": max(each["score_vi"] / each["sgd"] for each in timed),
        "time_vs_autograd_advi": max(each["score_vi"] / each["advi_autograd"] for each in timed),
        "time_vs_adamw": max(each["score_vi"] / each["adamw"] for each in timed),
        "time_vs_mean_field": max(each["score_vi"] / each["mean_field"] for each in timed),
        "memory_copies": copies["score_vi"],
        "autograd_advi_copies": copies["advi_autograd"],
        "autograd_advi_gib_of_largest": copies["advi_autograd"] * heaviest * 4 / 2**30,
    }
