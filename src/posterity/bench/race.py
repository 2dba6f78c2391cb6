"""Contestants in processes of their own, timed in turns or weighed one by one.

    time     CPU time of a step, the minimum over the repeats: what the work costs when nothing interferes
    memory   peak resident memory less what was resident with the network and one batch loaded, / bytes of the weights

Each runs on one thread, on the same network and random batch. In a race the processes take turns, in another order each
repeat, so that what else the machine does meets them all. Our own steps are the algorithms' `step` on a `NetworkProblem`,
inside the network's session as `fit` opens it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from posterity.bench import peers as plain
from posterity.bench import worker
from posterity.bench.bench import Row
from posterity.errors import PosterityError, PosterityWarning
from posterity.inference.algorithm import Algorithm, Plan
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

__all__ = ["Race", "available_peers", "measured_alone", "memory", "ours", "times"]

PEER_PYTHON = Path(".venv-peers/bin/python")  # `make peers`, in the checkout that the command runs in


def ours(algorithm: Algorithm) -> worker.Builder:
    """The steps of one of our algorithms."""

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


class Race(NamedTuple):
    """What is timed.

    Args:
        module: whose CONTESTANTS has our own; those of `peers.py` are always there.
        network: widths of a perceptron, or a name that the worker knows.
        rows: of the batch.
        steps: in a turn.
        repeats: turns.
    """

    module: str
    network: str
    rows: int
    steps: int
    repeats: int


def available_peers() -> list[str]:
    """The other libraries' contestants; none, with a warning, where their environment is not there."""
    if PEER_PYTHON.exists():
        return list(plain.PEERS)
    warnings.warn(
        f"no {PEER_PYTHON}: the rows of {', '.join(plain.PEERS)} are left out; `make peers` builds their environment",
        PosterityWarning,
        stacklevel=2,
    )
    return []


def times(names: Sequence[str], race: Race, base: str = "adamw") -> list[Row]:
    """A row per contestant: milliseconds of a step, and their ratio to those of `base`.

    The ratio of the minima, and beside it the median over the repeats of the ratio within one, which should be near.
    """
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(_contestant(name, race)) for name in names}
        assert all(contestant.opening for contestant in contestants.values())  # none is still starting
        for repeat in range(race.repeats):
            turn = repeat % len(names)
            for name in [*names[turn:], *names[:turn]]:
                seconds[name].append(contestants[name].ask(race.steps)["seconds"])
        weights = contestants[base].opening["weights"]
    yardstick = seconds[base]
    return [
        {
            "contestant": name,
            "batch_size": race.rows,
            "weights": weights,
            "milliseconds": 1e3 * min(each),
            f"times_{base}": min(each) / min(yardstick),
            f"median_times_{base}": statistics.median(a / b for a, b in zip(each, yardstick)),
            "repeats": race.repeats,
        }
        for name, each in seconds.items()
    ]


def memory(names: Sequence[str], race: Race) -> list[Row]:
    """A row per contestant: the peak of its memory, in MiB and in copies of the weights."""
    fields = ("contestant", "batch_size", "weights", "mebibytes", "copies")
    return [{field: row[field] for field in fields} for row in measured_alone(names, race)]


def measured_alone(names: Sequence[str], race: Race) -> list[Row]:
    """Time and memory of contestants too large to be in memory together: one after the other."""
    rows = []
    for name in names:
        with _contestant(name, race) as contestant:
            answers = [contestant.ask(race.steps) for _ in range(race.repeats)]
            weights, resident = contestant.opening["weights"], contestant.opening["resident"]
        taken = answers[-1]["peak"] - resident
        rows.append(
            {
                "contestant": name,
                "batch_size": race.rows,
                "weights": weights,
                "milliseconds": 1e3 * min(answer["seconds"] for answer in answers),
                "mebibytes": taken / 2**20,
                "copies": taken / (4 * weights),
                "repeats": race.repeats,
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
def _contestant(name: str, race: Race) -> Iterator[_Contestant]:
    """A process for one contestant; ended on leaving."""
    python = str(PEER_PYTHON) if name in plain.PEERS else sys.executable
    # a neighbour of the worker's file, also where we are not installed
    module = "peers" if name in plain.CONTESTANTS else race.module
    arguments = [python, "-W", "ignore", worker.__file__, module, name, race.network, str(race.rows)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone) as process:
        try:
            yield _Contestant(name, process)
        finally:
            process.kill()
