"""What a training step costs: CPU time and memory against `torch.optim.AdamW` as it comes.

    time     minimum over the repeats of the CPU time of a step / that of AdamW, in a plain torch loop
    memory   (peak resident memory - that with the module and one batch loaded) / bytes of the weights

Every contestant runs in a process of its own, on one thread, on the same network and random batch; the processes take
turns, in another order each repeat, so that what else the machine does meets them all. Our steps are the algorithms'
own `step` on a `NetworkProblem`, inside the network's session as `fit` opens it. The minimum is what the work costs when
nothing interferes; `median_times_adamw` is the median over the repeats of the ratio within one, and should be near.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from posterity.bench import peers as plain
from posterity.bench import worker
from posterity.bench.bench import Limit
from posterity.errors import PosterityError, PosterityWarning
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.ivon import IVON
from posterity.inference.map import MAP
from posterity.inference.mean_field import MeanFieldVI
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["CONTESTANTS", "LIMITS", "cells", "claims"]

PEER_PYTHON = Path(".venv-peers/bin/python")  # `make peers`, in the checkout that the command runs in


def _ours(algorithm: Algorithm) -> worker.Builder:
    def build(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> worker.Step:
        problem = NetworkProblem(net, "categorical", 1.0, data_size=data_size)
        batch, random = problem.read((inputs, targets)), Random(0)
        problem.probe(batch, random)
        open_session = ExitStack()  # as long as there are steps
        open_session.enter_context(problem.network.session(True))
        state = algorithm.init(problem, problem.start(), random, Plan(batch.rows, 100_000, 1000))

        def step(held: ExitStack = open_session) -> None:
            nonlocal state
            state, _ = algorithm.step(problem, state, (batch,), random)

        return step

    return build


CONTESTANTS: dict[str, worker.Builder] = {
    "map": _ours(MAP()),
    "mean_field": _ours(MeanFieldVI()),
    "ivon": _ours(IVON()),
}

# AdamW's time at B = 256, and copies of the weights
LIMITS = {
    "mean_field_time": Limit(high=1.5),
    "ivon_time": Limit(high=1.5),
    "mean_field_memory": Limit(high=9.0),
    "ivon_memory": Limit(high=9.0),
}


class _Race(NamedTuple):
    """One timing: a network, rows per batch, steps per turn, turns."""

    widths: str
    rows: int
    steps: int
    repeats: int


RACES = {
    "time, 5.9M weights, B=256": _Race("784-1536-1536-1536-10", 256, 2, 15),
    "time, 5.9M weights, B=32": _Race("784-1536-1536-1536-10", 32, 2, 15),
    "time, 26k weights, B=64": _Race("64-128-128-8", 64, 20, 15),
}
MEMORY = _Race("784-2800-2800-2800-2800-10", 32, 4, 1)  # 25.8M weights: 98 MiB a copy
QUICK_RACES = {"time, 0.2M weights, B=32": _Race("64-256-256-256-8", 32, 2, 2)}
QUICK_MEMORY = _Race("64-256-256-256-8", 32, 2, 1)


def cells(quick: bool, peers: bool) -> Mapping[str, Callable[[], list[dict[str, Any]]]]:
    """The timings, and the memory of every contestant."""
    names = [*plain.PLAIN, *CONTESTANTS, *(_peers() if peers else ())]
    races = QUICK_RACES if quick else RACES
    weighed = QUICK_MEMORY if quick else MEMORY
    times = {key: (lambda race=race: _times(names, race)) for key, race in races.items()}
    return {**times, "memory": lambda: _memory(names, weighed)}


def claims(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The ratios at the largest batch, and the copies of the weights, of our own algorithms."""
    timed = [row for row in rows if "times_adamw" in row]
    largest = max(row["batch_size"] for row in timed)
    times = {row["contestant"]: row["times_adamw"] for row in timed if row["batch_size"] == largest}
    copies = {row["contestant"]: row["copies"] for row in rows if "copies" in row}
    return {
        **{f"{name}_time": times[name] for name in CONTESTANTS},
        **{f"{name}_memory": copies[name] for name in CONTESTANTS},
    }


def _peers() -> list[str]:
    if PEER_PYTHON.exists():
        return list(plain.PEERS)
    warnings.warn(
        f"no {PEER_PYTHON}: the rows of {', '.join(plain.PEERS)} are left out; `make peers` builds their environment",
        PosterityWarning,
        stacklevel=2,
    )
    return []


def _times(names: list[str], race: _Race) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(_contestant(name, race)) for name in names}
        assert all(contestant.opening for contestant in contestants.values())  # none is still starting
        for repeat in range(race.repeats):
            turn = repeat % len(names)
            for name in names[turn:] + names[:turn]:
                seconds[name].append(contestants[name].ask(race.steps)["seconds"])
        weights = contestants["adamw"].opening["weights"]
    base = seconds["adamw"]
    return [
        {
            "contestant": name,
            "batch_size": race.rows,
            "weights": weights,
            "milliseconds": 1e3 * min(each),
            "times_adamw": min(each) / min(base),
            "median_times_adamw": statistics.median(a / b for a, b in zip(each, base)),
            "repeats": race.repeats,
        }
        for name, each in seconds.items()
    ]


def _memory(names: list[str], race: _Race) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        with _contestant(name, race) as contestant:
            weights = contestant.opening["weights"]
            taken = contestant.ask(race.steps)["peak"] - contestant.opening["resident"]
        rows.append(
            {
                "contestant": name,
                "batch_size": race.rows,
                "weights": weights,
                "mebibytes": taken / 2**20,
                "copies": taken / (4 * weights),
            }
        )
    return rows


class _Contestant:
    """A worker process, spoken to line by line."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process = name, process

    @cached_property
    def opening(self) -> dict[str, float]:
        """What it held before the first step; waits until it is ready."""
        return self._answer()

    def ask(self, steps: int) -> dict[str, float]:
        """The CPU seconds of a step over so many steps, and the peak of its memory."""
        assert self.opening
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PosterityError(f"the process of {self.name} ended before its answer; what it said is above")
        return json.loads(line)


@contextmanager
def _contestant(name: str, race: _Race) -> Iterator[_Contestant]:
    """A process for one contestant; ended on leaving."""
    python = str(PEER_PYTHON) if name in plain.PEERS else sys.executable
    module = (
        __name__ if name in CONTESTANTS else "peers"
    )  # a neighbour of the worker's file, also where we are not installed
    arguments = [python, "-W", "ignore", worker.__file__, module, name, race.widths, str(race.rows)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone) as process:
        try:
            yield _Contestant(name, process)
        finally:
            process.kill()
