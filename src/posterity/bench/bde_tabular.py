"""Bayesian deep ensembles on tables: what chains from the members of a converged ensemble add, and which mass they want.

Rows are permuted by seed, 60/10/10/20 for training, for stopping, for picking step sizes and for the test; of bike sharing
and protein the first 1500 rows of the latter three. A d-16-16-2 rectified network says mean and log std; prior N(0, 1); 8
members by Adam's moments to the end of a cosine from 1e-2, each at its best step on the second part. (Step sizes picked on
the rows that stopped the members would be too small.) LPPD and RMSE are in standard deviations of the training targets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.bde import (
    DEFAULT,
    ENSEMBLE,
    LONGER,
    Figures,
    compared,
    defined,
    ensemble_row,
    key_of,
    mean,
    standard_error,
)
from posterity.bench.bde_task import CONFIGURATIONS, Budget, Configuration, Task
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.data import data_folder
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.schedule import Cosine
from posterity.model import BayesianModel
from posterity.models.tabular import mlp
from posterity.problem.likelihoods import Heteroscedastic
from posterity.problem.problem import NetworkProblem
from posterity.training.fit import fit
from posterity.tree import LIKELIHOOD, Tree, pick

__all__ = ["LIMITS", "cells", "claims"]

LIMITS = {
    "small_data_gain": Limit(low=0.05),
    "large_data_loss": Limit(high=0.005),
    "width_gain": Limit(low=0.0),
}


class _Set(NamedTuple):
    file: str
    steps: int  # of the ensemble
    budget: Budget
    seeds: int
    configurations: tuple[Configuration, ...] = CONFIGURATIONS


SMALL, LARGE = (1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3), (3e-5, 1e-4, 2e-4, 4e-4, 8e-4)
SETS = {
    "airfoil": _Set("uci_airfoil", 5000, Budget(8, 64, 3000, 60, SMALL), 5),
    "concrete": _Set("uci_concrete", 5000, Budget(8, 64, 3000, 60, SMALL), 5),
    "energy": _Set("uci_energy", 5000, Budget(8, 64, 3000, 60, SMALL), 5),
    "bike": _Set("uci_bikesharing_hour", 12000, Budget(8, 128, 2400, 60, LARGE), 2, CONFIGURATIONS[:9]),
    "protein": _Set("uci_protein-tertiary-structure", 12000, Budget(8, 128, 2000, 50, LARGE), 2, CONFIGURATIONS[:9]),
}
AUTOMATIC = ("identity", "second-moment", "gradient", "layer-wise second-moment")  # also with step_size="auto"
MOST = 1500  # rows of validation and test


class _Table(NamedTuple):
    train: tuple[Tensor, Tensor]
    stopping: tuple[Tensor, Tensor]  # picks the snapshots
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per data set and seed."""
    return {
        f"{name}, seed {seed}": partial(_cell, name, seed, quick)
        for name, one in SETS.items()
        for seed in range(1 if quick else one.seeds)
    }


def _cell(name: str, seed: int, quick: bool) -> list[Row]:
    one, table = SETS[name], _table(SETS[name].file, seed)
    budget = one.budget._replace(steps=10, thin=5, sizes=one.budget.sizes[:1]) if quick else one.budget
    rows, task = [], None
    for method, steps in ((ENSEMBLE, one.steps), (LONGER, one.steps + budget.steps)):
        steps = 20 if quick else steps
        began = time.process_time()
        model = _ensemble(table, budget, steps, seed)
        seconds = time.process_time() - began
        task = task or _task(name, seed, table, model, budget)
        rows.append(ensemble_row(task, method, model.snapshots, steps, seconds))
    assert task is not None
    return rows + compared(task, one.configurations, AUTOMATIC)


def _ensemble(table: _Table, budget: Budget, steps: int, seed: int) -> BayesianModel:
    inputs = table.train[0].shape[1]
    return fit(
        lambda: mlp(inputs, 2, width=16, depth=2),
        table.train,
        Heteroscedastic(),
        DeepEnsemble(budget.members, learning_rate=Cosine(1e-2)),
        steps=steps,
        batch_size=budget.batch_size,
        validation=table.stopping,
        seed=seed,
        progress=False,
    )


def _task(name: str, seed: int, table: _Table, model: BayesianModel, budget: Budget) -> Task:
    problem = model.problem
    x = torch.cat([table.validation[0], table.test[0]])
    z = _standard(problem, torch.cat([table.validation[1], table.test[1]]))
    return Task(
        name, seed, problem, model.snapshots, table.train, partial(_look, problem, x, z, len(table.validation[1])),
        partial(_measure, z[len(table.validation[1]) :].double()), budget,
    )  # fmt: skip


def _standard(problem: NetworkProblem, y: Tensor) -> Tensor:
    assert isinstance(problem.likelihood, Heteroscedastic)
    return problem.likelihood.standardized(y, y.shape).float()


def _look(problem: NetworkProblem, x: Tensor, z: Tensor, validation: int, theta: Tree) -> dict[str, Tensor]:
    """Of one draw: the log densities of both sets, and mean and distribution function at the target of the test rows."""
    likelihood = problem.likelihood
    assert isinstance(likelihood, Heteroscedastic)
    location, log_scale = likelihood.location_and_log_scale(problem.outputs(theta, x), pick(theta, LIKELIHOOD))
    location, log_scale = location.reshape(-1), log_scale.reshape(-1)
    log_prob = likelihood.log_density(z, location, log_scale)
    at = slice(validation, None)
    cdf = torch.special.ndtr((z[at] - location[at]) * torch.exp(-log_scale[at]))
    return {"log_validation": log_prob[:validation], "log_test": log_prob[at], "mean": location[at], "cdf": cdf}


def _measure(z: Tensor, found: Mapping[str, Tensor]) -> dict[str, float]:
    """LPPD, RMSE, and the share of the rows in the central interval of level 0.9 of the mixture."""
    return {
        "lppd": float(found["log_test"].mean()),
        "rmse": float((found["mean"] - z).square().mean().sqrt()),
        "coverage": float(((found["cdf"] - 0.5).abs() <= 0.45).double().mean()),
    }


@cache
def _table(file: str, seed: int) -> _Table:
    path = data_folder("open/tabular", f"{file}.npz") / f"{file}.npz"
    with np.load(path, allow_pickle=False) as content:
        x, y = content["X"], content["y"]
    order = np.random.default_rng(seed).permutation(len(y))
    train, stopping, validation, test = np.split(order, [int(share * len(y)) for share in (0.6, 0.7, 0.8)])
    centre, spread = x[train].mean(0), x[train].std(0)
    x = (x - centre) / np.where(spread > 0.0, spread, 1.0)

    def rows(index: np.ndarray) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(x[index]).float(), torch.from_numpy(y[index].astype(np.float64)).float()

    return _Table(rows(train), rows(stopping[:MOST]), rows(validation[:MOST]), rows(test[:MOST]))


SMALL_DATA, LARGE_DATA = ("airfoil", "concrete"), ("bike", "protein")
GEOMETRY = ("gradient", "first-moment", "second-moment")


def claims(rows: list[Row]) -> dict[str, float]:
    """Differences of test LPPD in nats, in the half-warm-up window unless said; means over sets and seeds.

    `relative_gain` is the gain as a share of the ensemble's |LPPD|, the median over all sets: the paper has 0.1 and more.
    `geometry_part` is second-moment against identity, both corrected; `correction_part` the correction alone.
    """
    figures = Figures(rows)
    small = figures.gains(SMALL_DATA, DEFAULT, ENSEMBLE)
    found = {
        "small_data_gain": mean(small),
        "small_data_gain_error": standard_error(small),
        "small_data_gain_auto": mean(figures.gains(SMALL_DATA, DEFAULT, ENSEMBLE, picked="auto")),
        "large_data_loss": -min(figures.gains(LARGE_DATA, DEFAULT, ENSEMBLE), default=math.nan),
        "width_second_moment": float(figures.usable(DEFAULT)),
        "width_identity": float(figures.usable("identity")),
    }
    found["width_gain"] = found["width_second_moment"] - found["width_identity"]
    for method in (*GEOMETRY[:2], "fisher", "adaptive", "shared second-moment", "layer-wise second-moment"):
        found[f"width_{key_of(method)}"] = float(figures.usable(method))
    for method in ("second-moment", "identity"):
        found[f"width_{key_of(method)}_uncorrected"] = float(figures.usable(f"{method}, uncorrected"))
    for name, data in (("small", SMALL_DATA), ("large", LARGE_DATA), ("energy", ("energy",))):
        found[f"gain_over_longer_{name}"] = mean(figures.gains(data, DEFAULT, LONGER))
        found[f"single_gain_{name}"] = mean(figures.gains(data, DEFAULT, ENSEMBLE, field="single_lppd"))
        found[f"geometry_part_{name}"] = mean(figures.gains(data, DEFAULT, "identity"))
        found[f"correction_part_{name}"] = mean(figures.gains(data, DEFAULT, f"{DEFAULT}, uncorrected"))
        found[f"adaptive_minus_second_moment_{name}"] = mean(figures.gains(data, "adaptive", DEFAULT))
        for method in GEOMETRY:
            found[f"zero_minus_half_{key_of(method)}_{name}"] = mean(figures.zero_minus_half(data, method))
    found["relative_gain"] = figures.relative_gain(list(SETS), DEFAULT)
    return defined(found)
