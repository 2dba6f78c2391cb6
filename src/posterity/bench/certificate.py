"""What PAC-Bayes bounds promise of the error on new rows, for low-rank and mean-field posteriors under three priors.

    zero        centred at zero, std sqrt(2 / fan-in)
    start       centred at the random weights that the fit starts at, a quarter of that std
    held-out    centred at a fit to half A of the rows, std 0.1 / sqrt(fan-in); fitted and certified on half B

The std is that of a weight's entry; a factor's follows from its rank. The task: whether PM2.5 at a station in the city of
Beijing is above 100 ug/m3, from the weather now and 3, 6, 12 and 24 hours before, the hour and the day of the year. Each
hour of three years is one row, at one of two stations. Hours that follow each other are alike, and N rows are fewer
independent ones: the bounds compare methods, and are not to be relied on. `later_error` is of the year after.

delta = 0.05, a multilayer perceptron 64-64, every weight with a spread. Errors are those of the Gibbs classifier.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.air import CITY, FILE, GAP, carried
from posterity.bench.bde import defined, key_of, mean
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.data import data_folder
from posterity.evaluation.certificate import certify
from posterity.evaluation.gibbs import gibbs_errors
from posterity.inference.algorithm import Algorithm
from posterity.inference.low_rank import LowRankVI
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.schedule import Cosine
from posterity.model import BayesianModel
from posterity.models.tabular import mlp
from posterity.prediction.draws import batches_of
from posterity.problem.priors import Normal
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims"]

LIMITS = {"kl_inverse_minus_mcallester": Limit(high=0.0)}

SEEDS, EPOCHS, BATCH, DRAWS = (0, 1, 2), 20, 128, 2000
TEST_DRAWS = 200
WIDTH, DEPTH = 64, 2
THRESHOLD = 100.0  # ug/m3
LAGS = (0, 3, 6, 12, 24)  # hours
WEATHER = ("TEMP", "PRES", "DEWP", "RAIN", "WSPM")
TEST, ASIDE = 2000, 1000  # rows that are not trained on: to test, and to standardise the inputs by
END = np.datetime64("2016-03-01T00")  # of the three years

METHODS: dict[str, Callable[[], Algorithm]] = {
    "low-rank-2": lambda: LowRankVI(2, learning_rate=Cosine(2e-3), vectors="normal"),
    "low-rank-8": lambda: LowRankVI(8, learning_rate=Cosine(2e-3), vectors="normal"),
    "mean-field": lambda: MeanFieldVI(learning_rate=Cosine(2e-3)),
}
PRIORS = {
    "zero": Normal({"*.bias": 0.2, "*": math.sqrt(2.0)}, fan_in=True),
    "start": Normal({"*.bias": 0.05, "*": math.sqrt(2.0) / 4}, fan_in=True, center="start"),
    "held-out": Normal({"*.bias": 0.05, "*": 0.1}, fan_in=True, center="start"),
}
FIELDS = ("bound", "mcallester", "kl", "gibbs_error", "test_error", "later_error")

Labelled = tuple[Tensor, Tensor]  # [rows, inputs] float32, [rows] int64: 1 = above the threshold


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per seed."""
    return {f"seed {seed}": partial(_cell, seed, quick) for seed in (SEEDS[:1] if quick else SEEDS)}


def _cell(seed: int, quick: bool) -> list[Row]:
    data = smog(seed)
    if quick:
        train, test, later = ((x[:512], y[:512]) for x, y in data)
        data = Smog(train, test, later)
    epochs, draws = (2, 50) if quick else (EPOCHS, DRAWS)
    half = len(data.train[1]) // 2
    rows = []
    for name in METHODS:
        for prior in PRIORS:
            began = time.process_time()
            own, start = data.train, None
            if prior == "held-out":
                first, own = ((x[part], y[part]) for x, y in [data.train] for part in (slice(half), slice(half, None)))
                start = _fitted(name, "zero", first, seed, epochs)
            model = _fitted(name, prior, own, seed, epochs, start)
            fitted = time.process_time() - began
            rows.append({"method": name, "prior": prior, "seed": seed, **_certified(model, own, data, draws)})
            rows[-1] |= {"seconds": fitted, "certify_seconds": time.process_time() - began - fitted}
    return rows


def _fitted(
    name: str, prior: str, rows: Labelled, seed: int, epochs: int, start: BayesianModel | None = None
) -> BayesianModel:
    return fit(
        lambda: mlp(rows[0].shape[1], 2, width=WIDTH, depth=DEPTH),
        rows,
        "categorical",
        METHODS[name](),
        PRIORS[prior],
        epochs=epochs,
        batch_size=BATCH,
        start=start,
        seed=seed,
        progress=False,
    )


def _certified(model: BayesianModel, own: Labelled, data: Smog, draws: int) -> Row:
    found = certify(model, own, draws=draws, seed=0)
    told = found.to_json()
    fields = ("verdict", "bound", "mcallester", "kl", "gibbs_error", "gibbs_bound", "majority_error", "rows", "draws")
    return {
        **{name: told[name] for name in (*fields, "parameters")},
        "test_error": _gibbs(model, data.test, min(draws, TEST_DRAWS)),
        "later_error": _gibbs(model, data.later, min(draws, TEST_DRAWS)),
    }


def _gibbs(model: BayesianModel, rows: Labelled, draws: int) -> float:
    batches = batches_of(rows, model.problem.reader, None, targets=True)
    wrong, classes = gibbs_errors(model.problem, model.posterior, batches, draws, Random(0).fold("test"))
    return float(wrong.sum()) / (draws * int(classes.sum()))


# --- data -------------------------------------------------------------------------------------------------------------


class Smog(NamedTuple):
    """Args:
    train, test: hours of the three years, drawn by seed.
    later: the hours of the year after.
    """

    train: Labelled
    test: Labelled
    later: Labelled


def smog(seed: int) -> Smog:
    """Every hour at one station, which is drawn by seed; means and stds are those of rows that serve nothing else."""
    x, y, time = _hours()
    random = np.random.default_rng(seed)
    station = random.integers(len(CITY), size=len(time))
    x, y = x[station, np.arange(len(time))], y[station, np.arange(len(time))]
    whole = ~np.isnan(x).any(1) & ~np.isnan(y)
    order = random.permutation(np.flatnonzero(whole & (time < END)))
    aside, test, train = np.split(order, [ASIDE, ASIDE + TEST])
    center, std = x[aside].mean(0), x[aside].std(0)
    z, above = (x - center) / np.where(std > 0, std, 1.0), y > THRESHOLD

    def rows(at: np.ndarray) -> Labelled:
        return torch.from_numpy(z[at].astype(np.float32)), torch.from_numpy(above[at].astype(np.int64))

    return Smog(rows(train), rows(test), rows(np.flatnonzero(whole & (time >= END))))


@cache
def _hours() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [stations, hours, inputs], with NaN where they reach back too far; PM2.5 [stations, hours]; the hours."""
    with np.load(data_folder("open/timeseries", FILE) / FILE, allow_pickle=False) as content:
        names, stations = content["columns"].tolist(), content["stations"].tolist()
        city = [stations.index(name) for name in CITY]
        raw, wind, time = content["X"][city].astype(np.float64), content["wd"][city], content["time"]
    days = (time - time.astype("datetime64[Y]")) / np.timedelta64(1, "D")
    clock = np.hstack([_circle(days, 1.0), _circle(days, 365.25)])
    weather = raw[:, :, [names.index(name) for name in WEATHER]]
    angle = _circle(np.where(wind < 0, np.nan, wind), 16.0)
    known = [carried(np.hstack(parts), GAP) for parts in zip(weather, angle)]
    inputs = [np.hstack([*(_before(one, lag) for lag in LAGS), clock]) for one in known]
    return np.stack(inputs), raw[:, :, names.index("PM2.5")], time


def _before(x: np.ndarray, hours: int) -> np.ndarray:
    """[hours, columns], each row what was known so many hours before; NaN at the beginning."""
    return np.concatenate([np.full((hours, x.shape[1]), np.nan), x[: len(x) - hours]])


def _circle(x: np.ndarray, period: float) -> np.ndarray:
    """[...] to [..., 2]: sine and cosine."""
    turn = 2 * np.pi * x / period
    return np.stack([np.sin(turn), np.cos(turn)], -1)


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds; of `kl_inverse_minus_mcallester` the largest of all rows, of `share_informative` all rows.

    `bound_minus_test_error_smallest` below 0 is a bound that did not hold on the rows that were not trained on.
    """
    found = {
        "kl_inverse_minus_mcallester": max(row["bound"] - row["mcallester"] for row in rows),
        "bound_minus_test_error_smallest": min(row["bound"] - row["test_error"] for row in rows),
        "share_informative": mean([float(row["verdict"] == "informative") for row in rows]),
        "majority_error": mean([row["majority_error"] for row in rows]),
    }
    for method in METHODS:
        for prior in PRIORS:
            own = [row for row in rows if (row["method"], row["prior"]) == (method, prior)]
            name = f"{key_of(method)}_{key_of(prior)}"
            found |= {f"{name}_{field}": mean([row[field] for row in own]) for field in FIELDS}
    return defined(found)
