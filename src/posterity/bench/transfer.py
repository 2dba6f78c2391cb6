"""Heads on what pretrained networks say: seven ways to know how sure they are, on four small sets.

The backbone stays as it is; a linear layer on its standardised features is inferred. Every method has its learning rate and
the scale of its prior picked from a grid of two by two, by the NLL of validation rows; the members of the ensemble those of
one of them. AUROC is that of the foreign rows by the entropy, and by the mutual information. `seconds` are those of CPU time
of the fit that was picked, without the features.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from posterity.bench.bde import defined, key_of, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.low_rank_classes import foreign
from posterity.bench.transfer_data import SETS, Parts, parts
from posterity.evaluation.calibration import ece
from posterity.evaluation.proper import nll
from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.ivon import IVON
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.schedule import Cosine
from posterity.inference.score import ScoreVI
from posterity.model import BayesianModel
from posterity.prediction.classes import CategoricalPredictive
from posterity.problem.priors import Normal
from posterity.training.fit import fit

__all__ = ["FIELDS", "LIMITS", "METHODS", "cells", "claims"]

LIMITS: dict[str, Limit] = {}

SEEDS, BATCH, STEPS, DRAWS, MEMBERS = (0, 1, 2), 64, 1000, 32, 5
PRIORS = (2.0, 8.0)  # std of a weight times the root of the width
QUICK = 40  # rows
FIELDS = ("error", "nll", "ece", "ood_auroc_entropy", "ood_auroc_mi", "seconds")


def _map(rate: float) -> MAP:
    return MAP(learning_rate=Cosine(rate))


METHODS: dict[str, tuple[Callable[[float], Algorithm], tuple[float, ...]]] = {
    "map": (_map, (2e-3, 1e-2)),
    "advi": (lambda rate: ADVI(learning_rate=Cosine(rate)), (3e-3, 1e-2)),
    "score-vi": (lambda rate: ScoreVI(learning_rate=Cosine(rate)), (3e-3, 1e-2)),
    "ivon": (lambda rate: IVON(learning_rate=Cosine(rate), init_hessian=1.0, clip=0.03), (0.1, 0.3)),
    "low-rank": (lambda rate: LowRankVI(learning_rate=Cosine(rate)), (2e-3, 1e-2)),
    "laplace": (lambda rate: LastLayerLaplace(structure="kronecker", base=_map(rate)), (2e-3, 1e-2)),
    "ensemble": (_map, (2e-3, 1e-2)),
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per set: its features are computed once."""
    return {name: partial(_cell, name, quick) for name in SETS}


def _cell(name: str, quick: bool) -> list[Row]:
    found = []
    for seed, method in itertools.product(SEEDS[:2] if quick else SEEDS, METHODS):
        found.append(_row(name, parts(name, seed, QUICK if quick else None), method, seed, quick))
    return found


def _row(name: str, data: Parts, method: str, seed: int, quick: bool) -> Row:
    build, rates = METHODS[method]
    tries = list(itertools.product(rates, PRIORS))[: 1 if quick else None]
    losses, best, seconds = {}, None, 0.0
    for rate, scale in tries:
        began = time.process_time()
        model = _fitted(data, build(rate), scale, seed, quick)
        took, loss = time.process_time() - began, _nll(model, data.validation)
        losses[rate, scale] = loss
        if best is None or loss < min((one for key, one in losses.items() if key != (rate, scale)), default=math.inf):
            best, seconds, picked = model, took, (rate, scale)
    assert best is not None
    if method == "ensemble":
        began = time.process_time()
        members = 2 if quick else MEMBERS
        best = _fitted(data, replace(build(picked[0]), members=members), picked[1], seed, quick)
        seconds = time.process_time() - began
    return {
        "data": name, "method": method, "seed": seed, "learning_rate": picked[0], "prior": picked[1],
        "validation_nll": [finite(loss) for loss in losses.values()], **measured(best, data), "seconds": seconds,
    }  # fmt: skip


def _fitted(data: Parts, method: Algorithm, scale: float, seed: int, quick: bool) -> BayesianModel:
    x, y = data.train
    epochs = 1 if quick else max(20, math.ceil(STEPS / math.ceil(len(y) / BATCH)))
    return fit(
        lambda: nn.Sequential(nn.Linear(x.shape[1], data.classes)), (x, y), "categorical", method,
        Normal(scale, fan_in=True), epochs=epochs, batch_size=BATCH, seed=seed, progress=False,
    )  # fmt: skip


def _said(model: BayesianModel, x: Tensor) -> CategoricalPredictive:
    pred = model.predict(x, draws=DRAWS if model.posterior.finite is None else None)
    assert isinstance(pred, CategoricalPredictive)
    return pred


def _nll(model: BayesianModel, rows: tuple[Tensor, Tensor]) -> float:
    loss = nll(_said(model, rows[0]).log_prob(rows[1])).value
    return loss if math.isfinite(loss) else math.inf


def measured(model: BayesianModel, data: Parts) -> dict[str, float | None]:
    """error, nll and ece on the test rows; AUROC of the foreign ones, by mutual information None for a point."""
    x, y = data.test
    pred = _said(model, x)
    correct = pred.index == y
    found = {
        "error": finite(1 - correct.double().mean().item()),
        "nll": finite(nll(pred.log_prob(y)).value),
        "ece": finite(ece(pred.confidence, correct).value),
    }
    told = foreign(pred, lambda one: _said(model, torch.as_tensor(one)), {"foreign": data.foreign})
    return found | {key.removesuffix("_foreign"): value for key, value in told.items()}


def claims(rows: Sequence[Row]) -> dict[str, float]:
    """Means over seeds, and what each method gains over MAP and over the ensemble in NLL, with standard errors.

    A gain is the other's NLL minus its own, paired by seed: above 0 it is better.
    """
    values = {(row["data"], row["method"], row["seed"]): row for row in rows}
    found: dict[str, float] = {}
    for name, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        own = [row for (data, which, _), row in values.items() if (data, which) == (name, method)]
        for field in FIELDS:
            known = [row[field] for row in own if row[field] is not None]
            found[f"{name}_{key_of(method)}_{field}"] = statistics.fmean(known) if len(known) == len(own) else math.nan
        for other in ("map", "ensemble"):
            pairs = [(values.get((name, other, row["seed"]), {}).get("nll"), row["nll"]) for row in own]
            key = f"{name}_{key_of(method)}_nll_gain_over_{other}"
            if method != other and not any(None in pair for pair in pairs):
                gains = [theirs - own_nll for theirs, own_nll in pairs]
                found |= {key: mean(gains), f"{key}_error": standard_error(gains)}
    return defined(found)
