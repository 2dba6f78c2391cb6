"""A low-rank network on Fashion-MNIST, and Kuzushiji as what is foreign, beside mean-field and an ensemble.

784-1200-1200-10 with ReLU, factors of ranks 25, 25 and 10, Adam at batch 128, data_weight 1, 50 draws, pixels / 126. Each
method has one of two step sizes, picked by the validation NLL of a short run on seed 0. The deterministic network of seed 0
is the first member of the ensemble, which only this seed has.

OOD AUROC over draws s, p_k their mean probabilities:
    mi     H[p] - mean_s H[p_s]            c        sum_k var_s p_sk / (2 p_k), its second order
    var    sum_k var_s p_sk                max      1 - max_k p_k, which a point has too

Published for five seeds of 50 epochs (Toure and Stephens, 2026, arXiv 2602.00387): accuracy 88.69 %, NLL 0.3186, ECE 0.0114
(one seed); AUROC by mi 0.724 +- 0.009, c 0.735 +- 0.009, var 0.710 +- 0.010, max 0.665 +- 0.013. The limits are those of a
run on the 60000 rows of Debian's package dataset-fashion-mnist; without it 10000 rows serve, and `fashion_rows` says so.
"""

from __future__ import annotations

import gzip
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posterity.bench.archives import archive
from posterity.bench.bde import defined, key_of, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.low_rank_methods import MEMBERS, PRIOR
from posterity.errors import PosterityWarning
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import auroc
from posterity.evaluation.proper import nll
from posterity.inference.algorithm import Algorithm
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.ranks import Ranks
from posterity.inference.schedule import Cosine
from posterity.model import BayesianModel
from posterity.prediction.classes import CategoricalPredictive
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims", "scores"]

LIMITS = {
    "fashion_rows": Limit(low=50_000),
    "fashion_nll_minus_mean_field": Limit(high=0.0),
    "fashion_ece_minus_mean_field": Limit(high=0.0),
    "fashion_auroc_mi": Limit(low=0.706),
}

SEEDS, EPOCHS, BATCH, DRAWS = (0, 1, 2), 12, 128, 50
WIDTHS = (784, 1200, 1200, 10)
RANKS: Ranks = {"0.weight": 25, "2.weight": 25, "4.weight": 10}
RATES, SHORT = (3e-4, 1e-3), 3  # epochs of the runs that pick between them
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SCALE = 126.0
SCORES = ("mi", "c", "var", "max")
FIELDS = ("accuracy", "nll", "ece", *(f"auroc_{name}" for name in SCORES))

METHODS: dict[str, Callable[[float], Algorithm]] = {
    "deterministic": lambda rate: MAP(learning_rate=Cosine(rate)),
    "mean-field": lambda rate: MeanFieldVI(learning_rate=Cosine(rate)),
    "low-rank": lambda rate: LowRankVI(RANKS, learning_rate=Cosine(rate)),
}
ENSEMBLE = "deep-ensemble"

Labelled = tuple[Tensor, Tensor]  # [rows, 784] float32, [rows] int64


def network() -> nn.Module:
    """The perceptron."""
    layers = [part for m, n in itertools.pairwise(WIDTHS) for part in (nn.Linear(m, n), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """The pick of the step sizes, then one cell per seed."""
    seeds = SEEDS[:2] if quick else SEEDS
    return {"rates": partial(_tried, quick)} | {f"seed {seed}": partial(_cell, seed, quick) for seed in seeds}


@cache
def _tried(quick: bool) -> list[Row]:
    """A row per method and step size."""
    data = _quick(clothes(0)) if quick else clothes(0)
    rows = []
    for name in METHODS:
        for rate in RATES:
            began = time.process_time()
            model = _fitted(name, rate, data, 0, 1 if quick else SHORT)
            found = _predicted(model, data.validation[0], 4 if quick else 16).log_prob(data.validation[1])
            own = {"method": name, "seed": 0, "rate": rate, "validation_nll": finite(nll(found).value)}
            rows.append({**own, "seconds": time.process_time() - began})
    return rows


def _picked(name: str, quick: bool) -> float:
    own = {row["rate"]: row["validation_nll"] for row in _tried(quick) if row["method"] == name}
    return min(own, key=lambda rate: math.inf if own[rate] is None else own[rate])


def _cell(seed: int, quick: bool) -> list[Row]:
    data = _quick(clothes(seed)) if quick else clothes(seed)
    draws = 4 if quick else DRAWS
    rows = []
    for name in METHODS:
        rate = _picked(name, quick)
        members = MEMBERS if name == "deterministic" and seed == SEEDS[0] else 1
        began = time.process_time()
        model = _fitted(name, rate, data, seed, 1 if quick else EPOCHS, members)
        seconds = (time.process_time() - began) / members
        own = {"seed": seed, "rate": rate, "rows": len(data.train[1])}
        one = {"parameters": model.posterior.size // members, "seconds": seconds}
        rows.append({"method": name, **own, **_measured(model, data, draws if members == 1 else 1), **one})
        if members > 1:
            whole = {"parameters": model.posterior.size, "seconds": members * seconds}
            rows.append({"method": ENSEMBLE, **own, **_measured(model, data, None), **whole})
    return rows


def _fitted(name: str, rate: float, data: _Clothes, seed: int, epochs: int, members: int = 1) -> BayesianModel:
    method = METHODS[name](rate)
    if members > 1:
        method = DeepEnsemble(members, learning_rate=Cosine(rate))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rank 10 of", PosterityWarning)  # of 1200 x 10 it does not pay, as published
        return fit(
            network, data.train, "categorical", method, PRIOR,
            epochs=epochs, batch_size=BATCH, validation=data.validation, side_by_side="loop", seed=seed, progress=False,
        )  # fmt: skip


def _predicted(model: BayesianModel, x: Tensor, draws: int | None) -> CategoricalPredictive:
    """With each draw's own probabilities; of the members of an ensemble the first `draws`."""
    draws = 1 if model.posterior.finite == 1 else draws
    pred = model.predict(x, via="draws", draws=draws, keep="draws")
    assert isinstance(pred, CategoricalPredictive)
    return pred


def _measured(model: BayesianModel, data: _Clothes, draws: int | None) -> Row:
    began = time.process_time()
    own, foreign = (_predicted(model, x, draws) for x in (data.test[0], data.foreign))
    seconds = time.process_time() - began
    y = data.test[1]
    found = {
        "accuracy": (own.index == y).double().mean().item(),
        "nll": nll(own.log_prob(y)).value,
        "ece": ece(own.confidence, own.index == y).value,
    }
    pairs = {name: (value, scores(foreign)[name]) for name, value in scores(own).items()}
    told: dict[str, float | None] = {f"auroc_{name}": finite(auroc(*pair).value) for name, pair in pairs.items()}
    return {**found, **{name: told.get(name) for name in FIELDS[3:]}, "predict_seconds": seconds}


def scores(pred: CategoricalPredictive) -> dict[str, Tensor]:
    """[rows] of each score that exists, larger for stranger rows; a point has the last only.

    The variance is over the draws at hand, divided by their number: the second order of mi is that of the same draws.
    """
    found = {"max": 1 - pred.confidence.double()}
    if pred.draws == 1:
        return found
    assert pred.per_draw is not None
    probs = pred.per_draw.double()
    var, average = probs.var(0, correction=0), probs.mean(0)
    parts = torch.where(var > 0, var / (2 * average), 0.0)  # a class that no draw gives a chance adds nothing
    return {"mi": pred.epistemic.double(), "c": parts.sum(1), "var": var.sum(1), **found}


# --- data -------------------------------------------------------------------------------------------------------------


class _Clothes(NamedTuple):
    train: Labelled
    validation: Labelled
    test: Labelled
    foreign: Tensor


def clothes(seed: int, folder: Path = DEBIAN) -> _Clothes:
    """5000 rows of validation (of 10000 rows 1000) drawn by seed, the rest to train on; 10000 test and foreign rows.

    Raises:
        DataError: no POSTERITY_DATA, which the foreign rows come from.
    """
    foreign = _pixels(archive("open/images", "kmnist_test_unlabelled")["x"])
    if (folder / "train-images-idx3-ubyte.gz").is_file():
        own, test = (_packed(folder, part) for part in ("train", "t10k"))
    else:
        own, test = (_labelled(archive("open/images", f"fashion_mnist_{part}")) for part in ("train10k", "test"))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(own[1])))
    held, rest = order.split([len(order) // 12, len(order) - len(order) // 12])
    return _Clothes((own[0][rest], own[1][rest]), (own[0][held], own[1][held]), test, foreign)


def _quick(data: _Clothes) -> _Clothes:
    train, validation, test = ((x[:256], y[:256]) for x, y in data[:3])
    return _Clothes(train, validation, test, data.foreign[:128])


def _labelled(content: Mapping[str, Any]) -> Labelled:
    return _pixels(content["x"]), torch.from_numpy(content["y"].astype(np.int64))


def _pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)) / SCALE


@cache
def _packed(folder: Path, part: str) -> Labelled:
    images, labels = (unpacked(folder / f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    return _labelled({"x": images, "y": labels})


def unpacked(path: Path) -> np.ndarray:
    """The uint8 array of a gzipped idx file: its last magic byte counts the axes, whose lengths follow, big-endian."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape.astype(int))


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds, with standard errors; differences are low-rank less mean-field, paired by seed."""
    measured = [row for row in rows if "nll" in row]
    by = {(row["method"], row["seed"]): row for row in measured}
    seeds = sorted({row["seed"] for row in measured})
    found: dict[str, float] = {"fashion_rows": min(row["rows"] for row in measured)}
    for field in ("nll", "ece"):
        pairs = [by["low-rank", seed][field] - by["mean-field", seed][field] for seed in seeds]
        name = f"fashion_{field}_minus_mean_field"
        found |= {name: mean(pairs), f"{name}_error": standard_error(pairs)}
    found["fashion_auroc_mi"] = mean([by["low-rank", seed]["auroc_mi"] for seed in seeds])
    for method in (*METHODS, ENSEMBLE):
        own = [row for row in measured if row["method"] == method]
        for field in (*FIELDS, "parameters", "seconds"):
            values = [row[field] for row in own if row[field] is not None]
            name = f"fashion_{key_of(method)}_{field}"
            found[name] = mean(values)
            if field in FIELDS:
                found[f"{name}_error"] = standard_error(values)
    return defined(found)
