"""What the benches of Bayesian deep ensembles share: the rows of a comparison, and how claims read them.

    LPPD = mean over rows i of log mean over chains k and draws s of p(y_i | x_i, theta_ks)

All configurations of a seed start from the same snapshots and are given the same steps. Every one has its step size
picked from the same grid by the LPPD on validation rows, in either window; the whole sweep stays in the rows.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from posterity.bench.bde_chains import WINDOWS, Health, Run, explored
from posterity.bench.bde_task import Averages, Configuration, Task, summary
from posterity.bench.bench import Row
from posterity.problem.snapshot import Snapshot

__all__ = [
    "DEFAULT",
    "ENSEMBLE",
    "LONGER",
    "Figures",
    "compared",
    "defined",
    "ensemble_row",
    "key_of",
    "mean",
    "overall",
    "standard_error",
]

ENSEMBLE, LONGER = "ensemble", "ensemble, longer"  # the latter of as many gradients as ensemble and chains together
DEFAULT = "second-moment"
LOSS = 0.02  # nats below the ensemble from which on a step size does not count as usable


def ensemble_row(task: Task, name: str, snapshots: Sequence[Snapshot], steps: int, seconds: float) -> Row:
    """The row of a deep ensemble of `steps` steps a member."""
    averages = Averages()
    with torch.inference_mode(), task.problem.network.session(train=False):
        averages.add([task.look(one.theta) for one in snapshots])
    told = summary(task, averages, range(len(snapshots)))
    return _row(task, (name, None, None), None, told, Health(), {"steps": steps, "seconds": seconds}, {})


def compared(task: Task, configurations: Sequence[Configuration], automatic: Sequence[str]) -> list[Row]:
    """The rows of all configurations: the step size picked on validation; and "auto" for those that `automatic` names."""
    rows = []
    fixed = [one for one in configurations if one.mass.kind != "adaptive"]
    adaptive = [one for one in configurations if one.mass.kind == "adaptive"]
    for group in [*_parts(fixed, task.budget.together), adaptive]:
        began = time.process_time()
        runs = explored(task, group, task.budget.sizes)
        cost = _cost(task, began, group)
        for one, own in zip(group, runs):
            for window in WINDOWS if group is not adaptive else WINDOWS[1:]:  # its first half adapts
                rows.append(_picked(task, one, own, window, cost))
    for group in _parts([one for one in fixed if one.name in automatic], task.budget.together):
        began = time.process_time()
        runs = explored(task, group, None)
        cost = _cost(task, began, group)
        for one, (run,) in zip(group, runs):
            for window in WINDOWS:
                key = one.name, window, "auto"
                rows.append(_row(task, key, run.step_size, run.told[window], run.health[window], cost, {}))
    return rows


def _parts(group: list[Configuration], size: int) -> list[list[Configuration]]:
    return [group[i : i + size] for i in range(0, len(group), size)]


def _cost(task: Task, began: float, group: Sequence[Configuration]) -> dict[str, float]:
    """CPU seconds of one configuration with its whole grid."""
    return {"steps": task.budget.steps, "seconds": (time.process_time() - began) / max(1, len(group))}


def _picked(task: Task, one: Configuration, runs: Sequence[Run], window: str, cost: Mapping[str, float]) -> Row:
    values = [-math.inf if (v := run.told[window]["validation_lppd"]) is None else v for run in runs]
    best = runs[values.index(max(values))]
    sweep: dict[str, list[Any]] = {"step_size": [run.step_size for run in runs]}
    for name in ("validation_lppd", "lppd", "single_lppd"):
        sweep[name] = [run.told[window][name] for run in runs]
    for name in ("lost", "dead", "kinetic", "noise_ratio", "clamped"):
        sweep[name] = [getattr(run.health[window], name) for run in runs]
    key = one.name, window, "validation"
    return _row(task, key, best.step_size, best.told[window], best.health[window], cost, sweep)


def _row(
    task: Task, key: tuple[str, str | None, str | None], step_size: float | None, told: Mapping[str, float | None],
    health: Health, cost: Mapping[str, float], sweep: Mapping[str, Any],
) -> Row:  # fmt: skip
    method, window, picked = key
    own = {"data": task.data, "seed": task.seed, "method": method, "window": window, "picked": picked}
    return {**own, "step_size": step_size, **told, **health._asdict(), **cost, "sweep": dict(sweep)}


class Figures:
    """Rows by data set, seed, method and window, and the differences that claims are made of.

    A figure that does not exist (a configuration that was not run, or lost all of its chains) is NaN.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(r["data"], r["seed"], r["method"], r["window"], r["picked"]): r for r in rows}
        self.cells = list(dict.fromkeys((r["data"], r["seed"]) for r in rows))

    def of(
        self, cell: tuple[str, int], method: str, window: str = "half", picked: str = "validation", field: str = "lppd"
    ) -> float:
        """One figure of one row; an ensemble has no window."""
        alone = method in (ENSEMBLE, LONGER)
        key = (*cell, method, None, None) if alone else (*cell, method, window, picked)
        value = self._rows.get(key, {}).get(field)
        return math.nan if value is None else float(value)

    def gains(self, data: Sequence[str], method: str, over: str, window: str = "half", **where: str) -> list[float]:
        """method - over, both in one window (`where` as in `of`), one for each seed of these sets."""
        return [
            self.of(cell, method, window, **where) - self.of(cell, over, window, **where)
            for cell in self.cells
            if cell[0] in data
        ]

    def relative_gain(self, data: Sequence[str], method: str) -> float:
        """The gain over the ensemble as a share of the ensemble's |LPPD|, which may be near 0: the median."""
        own = [cell for cell in self.cells if cell[0] in data]
        bases = [self.of(cell, ENSEMBLE) for cell in own]
        return statistics.median([(self.of(cell, method) - base) / abs(base) for cell, base in zip(own, bases)])

    def zero_minus_half(self, data: Sequence[str], method: str) -> list[float]:
        """What it brings to leave the warm-up out, one for each seed of these sets."""
        return [self.of(cell, method, "zero") - self.of(cell, method) for cell in self.cells if cell[0] in data]

    def usable(self, method: str, window: str = "half") -> int:
        """Step sizes, over all sets and seeds, at which no chain is lost and the loss to the ensemble is at most `LOSS`."""
        count = 0
        for cell in self.cells:
            row = self._rows.get((*cell, method, window, "validation"))
            least = self.of(cell, ENSEMBLE) - LOSS
            if row is not None:
                pairs = zip(row["sweep"]["lppd"], row["sweep"]["lost"])
                count += sum(lppd is not None and lppd >= least and not lost for lppd, lost in pairs)
        return count


def mean(values: Sequence[float]) -> float:
    """NaN where there are none."""
    return statistics.fmean(values) if values else math.nan


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; NaN for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def overall(rows: Sequence[Row], fields: Sequence[str]) -> dict[str, float]:
    """For each data set, means over its seeds in the half-warm-up window: the gain of every configuration in LPPD over the
    ensemble, what that is for second-moment as a share and over the ensemble of equal gradients, and its gain in `fields`.
    """
    figures = Figures(rows)
    found = {}
    for data in dict.fromkeys(cell[0] for cell in figures.cells):
        for method in dict.fromkeys(row["method"] for row in rows if row["window"]):
            found[f"gain_{key_of(method)}_{data}"] = mean(figures.gains([data], method, ENSEMBLE))
        found[f"gain_auto_{data}"] = mean(figures.gains([data], DEFAULT, ENSEMBLE, picked="auto"))
        found[f"gain_over_longer_{data}"] = mean(figures.gains([data], DEFAULT, LONGER))
        found[f"relative_gain_{data}"] = figures.relative_gain([data], DEFAULT)
        for field in fields:
            found[f"{field}_gain_{data}"] = mean(figures.gains([data], DEFAULT, ENSEMBLE, field=field))
        for method in ("gradient", "first-moment", DEFAULT):
            found[f"zero_minus_half_{key_of(method)}_{data}"] = mean(figures.zero_minus_half([data], method))
    return defined(found)


def defined(found: Mapping[str, float]) -> dict[str, float]:
    """Without the claims that the rows cannot answer: a record holds no NaN."""
    return {name: value for name, value in found.items() if math.isfinite(value)}


def key_of(method: str) -> str:
    """A method's name within a claim's."""
    return method.replace(", ", "_").replace("-", "_").replace(" ", "_")
