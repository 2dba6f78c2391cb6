"""Koopa with intervals: MAP, ADVI, score-based VI and a deep ensemble on three sets of series.

Errors and NLL are in standardised units, as the literature gives them: mse and mae over all windows, steps and channels, nll
of a window over its number of values, coverages of central intervals of single values. `_tempered` is with a temperature
fitted on the validation windows. Every method has its learning rate picked by the NLL of the validation windows, from a grid
of three; the members of the ensemble that of one of them. A flow over the last layer would have 1,560 or 3,120 dimensions,
more than splines take: it is over 20 random directions in all weights.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from posterity.bench.bde import defined, key_of, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.forecast_data import SETS, Parts, parts
from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.map import MAP
from posterity.inference.schedule import Cosine
from posterity.inference.score import ScoreVI
from posterity.model import BayesianModel
from posterity.models.koopa import dominant_frequencies, koopa
from posterity.prediction.predictive import GaussianMixture
from posterity.problem.priors import Normal
from posterity.training.fit import fit

__all__ = ["FIELDS", "LIMITS", "METHODS", "cells", "claims"]

LIMITS: dict[str, Limit] = {}

SEEDS, BATCH, DRAWS, MEMBERS = (0, 1, 2), 32, 16, 5
EPOCHS = {"etth2": 10, "illness": 60, "exchange": 10}  # illness has a tenth of the windows
QUICK = 40  # windows of each part
RATES = (1e-3, 3e-3, 1e-2)
LEVELS = (0.5, 0.9, 0.95)
COVERAGES = tuple(f"coverage_{level:g}" for level in LEVELS)
FIELDS = ("mse", "mae", "nll", "nll_tempered", *COVERAGES, *(f"{name}_tempered" for name in COVERAGES), "crps")


def _map(rate: float) -> MAP:
    return MAP(learning_rate=Cosine(rate))


METHODS: dict[str, Callable[[float], Algorithm]] = {
    "map": _map,
    "advi": lambda rate: ADVI(learning_rate=Cosine(rate)),
    "score-vi": lambda rate: ScoreVI(learning_rate=Cosine(rate)),
    "score-vi-flow": lambda rate: ScoreVI("flow", over="subspace", base=_map(rate), draws=4),
    "deep-ensemble": _map,
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per set, method and seed."""
    every = itertools.product(SETS, METHODS, SEEDS[:2] if quick else SEEDS)
    return {f"{name}, {method}, seed {seed}": partial(_cell, name, method, seed, quick) for name, method, seed in every}


def _cell(name: str, method: str, seed: int, quick: bool) -> list[Row]:
    data = Parts(*map(_few, parts(name))) if quick else parts(name)
    build = METHODS[method]
    epochs = 1 if quick else EPOCHS[name]
    began = time.process_time()
    tried = {rate: _fitted(data, build(rate), seed, epochs, quick) for rate in (RATES[:1] if quick else RATES)}
    losses = {rate: _nll(model, data.validation) for rate, model in tried.items()}
    rate = min(losses, key=lambda one: losses[one] if math.isfinite(losses[one]) else math.inf)
    model = tried[rate]
    if method == "deep-ensemble":
        members = 2 if quick else MEMBERS
        model = _fitted(data, replace(build(rate), members=members), seed, epochs, quick)
    seconds = time.process_time() - began
    found = measured(model, *data.test)
    model.calibrate(data.validation, draws=_draws(model))
    tempered = measured(model, *data.test)
    kept = ("nll", *COVERAGES)
    return [
        {
            "data": name, "method": method, "seed": seed, "learning_rate": rate,
            "validation_nll": {f"{one:g}": finite(loss) for one, loss in losses.items()},
            **found, **{f"{key}_tempered": tempered[key] for key in kept}, "temperature": model.temperature,
            "seconds": seconds,
        }
    ]  # fmt: skip


def _fitted(data: Parts, method: Algorithm, seed: int, epochs: int, quick: bool) -> BayesianModel:
    past, ahead = data.train
    lookback, horizon, channels = past.shape[1], ahead.shape[1], past.shape[2]
    build = partial(
        koopa, channels, lookback, horizon, frequencies=dominant_frequencies(past), blocks=1 if quick else 3,
        coordinates=16 if quick else 64,
    )  # fmt: skip
    return fit(
        build, data.train, "gaussian", method, Normal(2.0, fan_in=True), epochs=epochs, batch_size=BATCH,
        validation=data.validation, seed=seed, progress=False,
    )  # fmt: skip


def _few(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    every = -(-len(rows[0]) // QUICK)
    return rows[0][::every], rows[1][::every]


def _draws(model: BayesianModel) -> int | None:
    """Of a posterior that has as many as are asked for; all of a finite one."""
    return None if model.settings["method"] in ("map", "deep-ensemble", "ensemble") else DRAWS


def _nll(model: BayesianModel, rows: tuple[Tensor, Tensor]) -> float:
    """Of a window, over its number of values."""
    total = 0.0
    for pred, y in model.predict_with_targets(rows, draws=_draws(model), batch_size=256):
        assert isinstance(pred, GaussianMixture)
        total -= float(pred.log_prob(y).double().sum())
    return total / rows[1].numel()


def measured(model: BayesianModel, past: Tensor, ahead: Tensor) -> dict[str, float | None]:
    """mse, mae, nll, crps and coverages of windows; a value is inside a central interval where |2 F(y) - 1| <= level."""
    sums: dict[str, float] = dict.fromkeys(("mse", "mae", "nll", "crps", *COVERAGES), 0.0)
    for pred, y in model.predict_with_targets((past, ahead), draws=_draws(model), batch_size=256):
        assert isinstance(pred, GaussianMixture)
        error, off = (pred.mean - y).double(), (2 * pred.cdf(y).double() - 1).abs()
        sums["mse"] += float(error.square().sum())
        sums["mae"] += float(error.abs().sum())
        sums["nll"] -= float(pred.log_prob(y).double().sum())
        sums["crps"] += float(pred.crps(y).double().sum())
        for name, level in zip(COVERAGES, LEVELS):
            sums[name] += float((off <= level).sum())
    return {name: finite(total / ahead.numel()) for name, total in sums.items()}


def claims(rows: Sequence[Row]) -> dict[str, float]:
    """Means over seeds; what score-based VI gains over MAP, ADVI and the ensemble, in NLL and in MSE, with standard errors.

    A gain is the other's figure minus its own: above 0 it is better.
    """
    values = {(row["data"], row["method"], row["seed"]): row for row in rows}
    found: dict[str, float] = {}
    for name, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        own = [row for (data, which, _), row in values.items() if (data, which) == (name, method)]
        for field in ("mse", "mae", "nll", "nll_tempered", "coverage_0.9"):
            known = [row[field] for row in own if row[field] is not None]
            found[f"{name}_{key_of(method)}_{field}"] = statistics.fmean(known) if len(known) == len(own) else math.nan
        if method == "score-vi":
            for other, field in itertools.product(("map", "advi", "deep-ensemble"), ("nll", "mse")):
                pairs = [(values.get((name, other, row["seed"]), {}).get(field), row[field]) for row in own]
                gains = [math.nan if None in pair else pair[0] - pair[1] for pair in pairs]
                key = f"{name}_{field}_gain_over_{key_of(other)}"
                found |= {key: mean(gains), f"{key}_error": standard_error(gains)}
    return defined(found)
