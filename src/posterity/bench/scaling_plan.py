"""What networks that do not fit here would take, by arithmetic from what was measured here and a GPU's data sheet.

    step = products + means over ranks + the larger of the update's traffic and its launches; nothing overlaps

    products   6 x weights x tokens a step; 4 x weights where only a change of them is learnt, and 6 x its numbers
    means      2 (R - 1) / R x 4 bytes x numbers that the ranks average
    traffic    what the element-wise operations of an update read and write, counted operation by operation
    launches   operations of an update on a chunk of `CHUNK` weights x chunks

The same arithmetic with this machine's copy and normals instead of a GPU's says what a step should take here beside plain
SGD's: `predicted_times_sgd` beside `times_sgd`, which was measured, is how far it can be trusted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from posterity.bench import worker
from posterity.bench.bench import Row
from posterity.bench.operations import OperationClock
from posterity.bench.race import Race, memory, ours, times
from posterity.bench.watched import PLAN, watched_step
from posterity.inference.algorithm import Algorithm
from posterity.inference.ivon import IVON
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.score import ScoreVI
from posterity.inference.sghmc import SGHMC
from posterity.random import Random
from posterity.tree import CHUNK

__all__ = ["CONTESTANTS", "GPU", "Device", "claims", "counted"]


class Device(NamedTuple):
    """The vendor's figures, a second, and the share of them that is taken to be reached."""

    products: float  # floating point operations
    traffic: float  # bytes to and from its memory
    link: float  # bytes each way to a GPU of the same node
    network: float  # bytes each way to one of another node
    launch: float  # seconds of an operation on a few numbers; ours, not the vendor's
    reached: float


GPU = Device(989e12, 3.35e12, 450e9, 50e9, 5e-6, 0.4)  # an H100 SXM of 80 GB; 400 Gb/s to other nodes

VIT, DEPTH, BREADTH, PATCHES = 305_520_650, 24, 1024, 50  # of ViT-L/32
PICTURES, RANKS = 256, 8  # a GPU and step; GPUs of one node
LAYERS, WIDTH, INNER, VOCABULARY = 32, 4096, 11008, 32000  # of a language model of 7B weights
RANK, MANY, LONG = 16, 64, 4 * 2048  # of the change; ranks; tokens a GPU and step
ACTIVATIONS = 34  # bytes a token, layer and unit of width in half precision (Korthikanti et al., 2022), attention aside

METHODS: Mapping[str, Algorithm] = {
    "map": MAP(),
    "mean_field": MeanFieldVI(),
    "ivon": IVON(),
    "score_vi": ScoreVI(),
    "sghmc": SGHMC(members=1, mass="identity", noise_correction=False, step_size=1e-6, check_stability=False),
}
STATISTICS = {
    "map": 1,
    "mean_field": 2,
    "ivon": 2,
    "score_vi": 2,
}  # trees that the ranks average where draws are their own
SIDE = 2048  # of the matrix whose update is counted
SGD_BYTES = 12  # bytes a weight of SGD's own update: reads weight and gradient, writes the weight


CHANGE = LowRankVI(rank=RANK, change=True)
CONTESTANTS: dict[str, worker.Builder] = {
    **{name: ours(method) for name, method in METHODS.items()},
    "change": ours(CHANGE),
}
RACE = Race("posterity.bench.scaling", "784-1536-1536-1536-10", PLAN.batch_size, 2, 9)
WEIGHED = Race(
    "posterity.bench.scaling", "784-3072-3072-3072-10", PLAN.batch_size, 4, 1
)  # 21.3M weights, in blocks that are given back
QUICK = Race("posterity.bench.scaling", "64-256-256-256-8", PLAN.batch_size, 2, 2)


def counted(quick: bool) -> list[Row]:
    """Of every method: its trees, what an update reads, writes, draws and launches; its time and memory here."""
    timed = times(["sgd", *CONTESTANTS], QUICK if quick else RACE, "sgd")
    copies = {row["contestant"]: row["copies"] for row in memory(list(CONTESTANTS), QUICK if quick else WEIGHED)}
    nanoseconds = {row["contestant"]: 1e6 * row["milliseconds"] / row["weights"] for row in timed}
    ratios = {row["contestant"]: row["times_sgd"] for row in timed}
    source, target, generator = torch.zeros(5_900_000), torch.zeros(5_900_000), Random(0).generator()
    copy, chunk = _nanoseconds(lambda: target.copy_(source)), target[:CHUNK]
    machine = {
        "copy_nanoseconds": copy / len(source),
        "normal_nanoseconds": _nanoseconds(lambda: chunk.normal_(generator=generator)) / CHUNK,
    }
    return [
        {
            "contestant": name,
            **_counts(method),
            "copies": copies[name],
            "sgd_nanoseconds": nanoseconds["sgd"],
            "times_sgd": ratios[name],
            **machine,
        }
        for name, method in {**METHODS, "change": CHANGE}.items()
    ]


def _nanoseconds(work: Callable[[], Any]) -> float:
    """Of CPU time, the median of 25."""
    found = []
    for _ in range(25):
        began = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - began)
    return statistics.median(found)


class _Launches(OperationClock):
    """Counts the operations that a GPU would be asked for: all but views."""

    launches = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.launches += self.running and not operation.is_view
        return super().__torch_dispatch__(operation, types, args, kwargs)


def _counts(method: Algorithm, width: int = SIDE) -> Row:
    """Per weight of one large square matrix and step, outside of the problem."""
    with watched_step(method, partial(nn.Linear, width, width, bias=False), (width,)) as watched:
        watched.step()
        trees = sum(leaf.numel() for leaf in tree_leaves(watched.state()) if isinstance(leaf, Tensor)) / width**2
        watched.problem.clock = _Launches()
        with watched.problem.clock as clock:
            watched.step()
    weights = width**2
    return {
        "trees": trees,
        "update_bytes": clock.bytes / weights,
        "normals": clock.drawn / weights,
        "launches": clock.launches / (weights / CHUNK),  # a chunk
    }


# --- the plans -------------------------------------------------------------------------------------------------------


def claims(rows: list[Row]) -> dict[str, float]:
    """Gigabytes and milliseconds of both plans; of every method what the arithmetic says of this machine."""
    methods = {row["contestant"]: row for row in rows if "contestant" in row}
    found: dict[str, float] = {}
    for name, row in methods.items():
        figures = {
            field: row[field] for field in ("trees", "update_bytes", "normals", "launches", "copies", "times_sgd")
        }
        predicted = _predicted(row)
        figures |= {"predicted_times_sgd": predicted, "predicted_share": predicted / row["times_sgd"]}
        figures |= _change(row) if name == "change" else _large(name, row)
        found |= {f"plan_{name}_{field}": value for field, value in figures.items()}
    return found


def _predicted(row: Row) -> float:
    """A step's time here, / that of SGD, where an update costs its traffic, and noise the time of its numbers."""
    traffic = (row["update_bytes"] - SGD_BYTES) / 8 * row["copy_nanoseconds"]  # of a number read and written
    return 1 + (traffic + row["normals"] * row["normal_nanoseconds"]) / row["sgd_nanoseconds"]


def _mean(numbers: float, ranks: int, bytes_per_second: float) -> float:
    """Seconds of the mean over the ranks of so many numbers."""
    return 2 * (ranks - 1) / ranks * 4 * numbers / bytes_per_second


def _large(name: str, row: Row, gpu: Device = GPU) -> dict[str, float]:
    """305M weights on 8 GPUs."""
    products = 6 * VIT * PICTURES * PATCHES / (gpu.products * gpu.reached)
    traffic = (row["update_bytes"] + 4 * row["normals"]) * VIT / (gpu.traffic * gpu.reached)
    launches = row["launches"] * VIT / CHUNK * gpu.launch
    trees = STATISTICS.get(name, 0)
    means = (
        _mean(VIT, RANKS, gpu.link * gpu.reached) if trees else 0.0
    )  # chains are shared by members, and send nothing
    whole = products + means + traffic
    step = whole - traffic + max(traffic, launches)
    others = {"draws_ms": 1e3 * trees * means} if trees > 1 else {}
    if not trees:
        others["gathered_gb"] = 4e-9 * row["trees"] * RANKS * VIT  # on every rank, in checkpoints and at the end
    return {
        "state_gb": 4e-9 * row["trees"] * VIT,
        "memory_gb": 4e-9 * (row["copies"] + 1) * VIT,  # the user's module beside
        "activations_gb": 1e-9 * ACTIVATIONS * DEPTH * BREADTH * PICTURES * PATCHES,
        "products_ms": 1e3 * products,
        "rows_ms": 1e3 * means,
        **others,
        "traffic_ms": 1e3 * traffic,
        "launches_ms": 1e3 * launches,
        "step_ms": 1e3 * step,
        "step_whole_ms": 1e3 * whole,
        "efficiency": 1 - means / whole,
    }


def _change(row: Row, gpu: Device = GPU) -> dict[str, float]:
    """7B weights on 64 GPUs, a low-rank change of the blocks' matrices learnt."""
    matrices = [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH)] * 3
    changed = LAYERS * sum(m * n for m, n in matrices)
    weights = changed + 2 * VOCABULARY * WIDTH + (2 * LAYERS + 1) * WIDTH
    numbers = LAYERS * sum(RANK * (m + n) for m, n in matrices)
    products = (4 * weights + 6 * numbers) * LONG / (gpu.products * gpu.reached)
    entries = 2 * RANK * SIDE  # of the factors whose update was counted
    pieces = 2 * -(-RANK * SIDE // CHUNK)  # their chunks
    chunks = LAYERS * sum(-(-RANK * side // CHUNK) for matrix in matrices for side in matrix)
    traffic = row["update_bytes"] * SIDE**2 / entries * numbers / (gpu.traffic * gpu.reached)
    launches = row["launches"] * SIDE**2 / CHUNK / pieces * chunks * gpu.launch
    figures = {
        "weights_b": 1e-9 * weights,
        "changed_b": 1e-9 * changed,
        "learnt_m": 1e-6 * 2 * numbers,  # means and stds
        "state_gb": 4e-9 * 6 * numbers,
        "float32_gb": 4e-9 * (weights + changed),
        "float32_start_gb": 4e-9 * (weights + row["copies"] * changed),
        "bfloat16_gb": 2e-9 * (weights + changed),
        "bfloat16_start_gb": 2e-9 * (weights + row["copies"] * changed),
        "once_gb": 2e-9 * weights,
        "activations_gb": 1e-9 * ACTIVATIONS * LAYERS * WIDTH * LONG,
        "sharded_gb": 2e-9 * weights / RANKS,  # among the GPUs of a node
        "gather_ms": 1e3 * 2 * (RANKS - 1) / RANKS * 2 * weights / (gpu.link * gpu.reached),  # forward and backward
        "products_ms": 1e3 * products,
        "means_ms": 1e3 * _mean(numbers, MANY, gpu.network * gpu.reached),
        "dense_means_ms": 1e3 * _mean(weights, MANY, gpu.network * gpu.reached),
        "dense_memory_gb": 4e-9 * weights * 9,
    }
    update = 1e3 * max(traffic, launches)
    return figures | {"update_ms": update, "step_ms": figures["products_ms"] + figures["means_ms"] + update}
