"""What a comparison of chains works on: configurations, budgets, one ensemble with its data, predictions streamed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.bench.bench import finite
from posterity.inference.mass import Mass
from posterity.problem.batches import Batch
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["CONFIGURATIONS", "LOG", "Averages", "Budget", "Configuration", "Task", "summary"]

LOG = "log_"  # starts the names of columns of log densities, which are averaged as densities


@dataclass(frozen=True)
class Configuration:
    """A mass, and whether the noise of batches is taken off."""

    mass: Mass
    corrected: bool = True

    @property
    def name(self) -> str:
        """Such as "layer-wise gradient", or "identity, uncorrected"."""
        parts = ["layer-wise"] * self.mass.layer_wise + ["shared"] * self.mass.shared + [self.mass.kind]
        return " ".join(parts) + ", uncorrected" * (not self.corrected)


CONFIGURATIONS = (
    Configuration(Mass("identity"), corrected=False),
    Configuration(Mass("second-moment"), corrected=False),
    Configuration(Mass("identity")),
    Configuration(Mass("second-moment")),
    Configuration(Mass("gradient")),
    Configuration(Mass("first-moment")),
    Configuration(Mass("second-moment", layer_wise=True)),
    Configuration(Mass("adaptive")),
    Configuration(Mass("second-moment", shared=True)),
    Configuration(Mass("fisher")),
    Configuration(Mass("gradient", layer_wise=True)),
    Configuration(Mass("first-moment", layer_wise=True)),
)


class Budget(NamedTuple):
    """What every chain is given."""

    members: int
    batch_size: int
    steps: int
    thin: int
    sizes: tuple[float, ...]  # the grid of step sizes, for masses of mean 1
    together: int = 100  # configurations that step side by side, where that pays


@dataclass(frozen=True)
class Task:
    """One data set, one seed, one ensemble.

    Args:
        data: its name in the rows.
        problem, snapshots: as a fit of the ensemble leaves them.
        train: inputs and raw targets.
        look: what one set of weights says: [rows] "log_validation" and "log_test", and columns to be averaged.
        measure: the metrics of averaged columns, "lppd" among them.
    """

    data: str
    seed: int
    problem: NetworkProblem
    snapshots: list[Snapshot]
    train: tuple[Tensor, Tensor]
    look: Callable[[Tree], Mapping[str, Tensor]]
    measure: Callable[[Mapping[str, Tensor]], Mapping[str, float]]
    budget: Budget

    def batches(self, epoch_of: dict[int, Tensor], t: int) -> list[Batch]:
        """One batch a member for step t; the rows of an epoch that fill no batch are left out. `epoch_of` is a cache."""
        x, y = self.train
        size = min(self.budget.batch_size, len(y))
        epoch, place = divmod(t, len(y) // size)
        if epoch not in epoch_of:
            epoch_of.clear()
            order = [Random(self.seed).fold("data").fold(k).fold(epoch).generator() for k in range(self.budget.members)]
            epoch_of[epoch] = torch.stack([torch.randperm(len(y), generator=g) for g in order])
        chosen = epoch_of[epoch][:, place * size : (place + 1) * size]
        return [Batch(x[rows], y[rows], None, size) for rows in chosen]


# --- predictions of many chains ---------------------------------------------------------------------------------------


class Averages:
    """Running means of each chain's predictions over its draws: memory does not grow with the draws."""

    def __init__(self) -> None:
        self.draws = 0
        self._sums: dict[str, Tensor] = {}  # [chains, rows, ...]

    def add(self, each: Sequence[Mapping[str, Tensor]]) -> None:
        """Take in one draw of every chain."""
        self.draws += 1
        for key in each[0]:
            new = torch.stack([one[key] for one in each])
            if key.startswith(LOG):
                new = new.double()
                self._sums[key] = torch.logaddexp(self._sums[key], new) if key in self._sums else new
            else:
                self._sums[key] = self._sums[key].add_(new) if key in self._sums else new

    def mixture(self, chains: Sequence[int]) -> dict[str, Tensor]:
        """[rows, ...] of all draws of these chains: log mean densities, and means."""
        count = self.draws * len(chains)
        return {
            key: total[list(chains)].logsumexp(0) - math.log(count)
            if key.startswith(LOG)
            else total[list(chains)].sum(0) / count
            for key, total in self._sums.items()
        }

    def single(self, chains: Sequence[int]) -> float:
        """The mean over these chains of the test LPPD of one alone."""
        return float((self._sums["log_test"][list(chains)] - math.log(self.draws)).mean())


def summary(task: Task, averages: Averages, chains: Sequence[int]) -> dict[str, float | None]:
    """What a mixture is worth; None throughout where it has no draw."""
    if not chains or not averages.draws:
        return dict.fromkeys(("validation_lppd", *task.measure(_blank(task)), "single_lppd"))
    found = averages.mixture(chains)
    told = {"validation_lppd": float(found["log_validation"].mean()), **task.measure(found)}
    return {key: finite(value) for key, value in {**told, "single_lppd": averages.single(chains)}.items()}


def _blank(task: Task) -> dict[str, Tensor]:
    with torch.inference_mode(), task.problem.network.session(train=False):
        return {key: leaf.double() for key, leaf in task.look(task.snapshots[0].theta).items()}
