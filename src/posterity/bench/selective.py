"""Answering selectively: one calibrated pass beside the mean network, temperature scaling, draws and streamlining.

    mean, temperature                       the network of the mean weights, as it is and with a temperature
    draws-4, -8, -32, draws-32-temperature  draws of the weights
    streamlining, streamlining-scaled       slopes for activations and norms; then one scale of the outputs' variance
    propagation                             moments and expected norms, without calibration
    calibrated                              with a scale per site
    calibrated-slopes, calibrated-norms     its ablations: slopes for activations; norms at the mean

All temperatures and scales of a task are fitted on the same rows, 900 (of the residual network 450). Differences are from
`temperature`, with a 95 % interval of the paired rows. `seconds` is a pass over the test rows, `times_mean` that over the
mean network's.

mean_gap: root mean square over rows and outputs of (logit - mean of 256 draws) / std of the draws, of the propagated mean;
mean_gap_network the same of the mean network; their floor is 1/16, and their ratio has it taken out in quadrature.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.bench.bde import defined, key_of, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.selective_tasks import TASKS, Rows, Task
from posterity.errors import PosterityWarning
from posterity.evaluation import differences
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import auroc
from posterity.evaluation.metric import Metric
from posterity.evaluation.selective import aurc, coverage_at_risk
from posterity.inference.ivon import IVON
from posterity.inference.schedule import Cosine
from posterity.model import BayesianModel
from posterity.prediction.classes import CategoricalPredictive
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.value import split
from posterity.problem.data import take
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims"]

LIMITS = {
    "mean_gap_ratio_worst": Limit(high=0.6),
    "nll_minus_temperature": Limit(high=0.003),
    "aurc_minus_temperature": Limit(high=0.003),
}

SEEDS, DRAWS, LOOKED = (0, 1, 2), 256, 200
RISKS = (0.005, 0.01, 0.05)
SLOWEST = "cifar-resnet20"
SLOPES, AT_MEAN = Rules(activations="slope"), Rules(norms="mean")
DELTA = Rules(attention="mean", activations="slope", norms="mean")

Calibrate = dict[str, Any]
METHODS: dict[str, tuple[dict[str, Any], Rules, Calibrate | None]] = {
    "mean": ({"via": "mean"}, Rules(), None),
    "temperature": ({"via": "mean"}, Rules(), {}),
    "draws-4": ({"via": "draws", "draws": 4}, Rules(), None),
    "draws-8": ({"via": "draws", "draws": 8}, Rules(), None),
    "draws-32": ({"via": "draws", "draws": 32}, Rules(), None),
    "draws-32-temperature": ({"via": "draws", "draws": 32}, Rules(), {}),
    "streamlining": ({"via": "propagation"}, DELTA, None),
    "streamlining-scaled": ({"via": "propagation"}, DELTA, {"sites": "outputs"}),
    "propagation": ({"via": "propagation"}, Rules(), None),
    "calibrated": ({"via": "propagation"}, Rules(), {}),
    "calibrated-slopes": ({"via": "propagation"}, SLOPES, {}),
    "calibrated-norms": ({"via": "propagation"}, AT_MEAN, {}),
}
BASELINE, OURS = "temperature", "calibrated"


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per task and seed."""
    if quick:
        return {name: partial(_cell, name, 0, True) for name in ("mnist-cnn", "questions-vilt")}
    pairs = sorted(itertools.product(TASKS, SEEDS), key=lambda pair: (pair[0] == SLOWEST, pair[1]))
    return {f"{name}, seed {seed}": partial(_cell, name, seed, False) for name, seed in pairs}


def _cell(name: str, seed: int, quick: bool) -> list[Row]:
    task, rows = TASKS[name], TASKS[name].rows(seed)
    if quick:
        rows = _few(rows)
    model, seconds = _fitted(task, rows, seed, quick)
    gaps = _mean_gaps(model, rows.test[0], 16 if quick else DRAWS)
    found: list[Row] = []
    columns: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for method, (options, rules, calibrate) in METHODS.items():
        one = copy.copy(model)
        one.propagation = Propagation(rules)
        about: Row = {"task": name, "seed": seed, "method": method}
        if calibrate is not None:
            began = time.process_time()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "on .* rows left out", PosterityWarning)
                one.calibrate(rows.calibration, **options, **calibrate)
            told = one.calibration or {}
            about |= {"calibration_seconds": time.process_time() - began, "helps": one.propagation.helps}
            about |= {"sites": told.get("sites"), "steps": told.get("steps"), "temperature": one.temperature}
        measured, columns[method] = _measured(one, rows, options)
        found.append(about | measured)
    for row in found:
        row |= _against(columns[row["method"]], columns[BASELINE])
        row["times_mean"] = row["seconds"] / found[0]["seconds"]
    found[0] |= {"training_seconds": seconds}
    next(row for row in found if row["method"] == "propagation").update(gaps)
    return found


def _fitted(task: Task, rows: Rows, seed: int, quick: bool) -> tuple[BayesianModel, float]:
    began = time.process_time()
    method = IVON(learning_rate=Cosine(task.rate), init_hessian=task.init_hessian)
    model = fit(
        task.network, rows.train, "categorical", method, epochs=1 if quick else task.epochs, batch_size=task.batch,
        data_weight=task.weight, output=task.output, seed=seed, progress=False,
    )  # fmt: skip
    return model, time.process_time() - began


def _few(rows: Rows) -> Rows:
    train, held, test = ((take(x, slice(0, 120)), y[:120]) for x, y in rows[:3])
    return Rows(train, held, test, {name: take(x, slice(0, 40)) for name, x in rows.foreign.items()})


def _measured(
    model: BayesianModel, rows: Rows, options: Mapping[str, Any]
) -> tuple[Row, tuple[Tensor, Tensor, Tensor]]:
    """Metrics; and of each test row its NLL, confidence, and whether it is right."""
    began = time.process_time()
    pred = model.predict(rows.test[0], **options)
    seconds = time.process_time() - began
    assert isinstance(pred, CategoricalPredictive)
    y = rows.test[1]
    nlls, correct, confidence = -pred.log_prob(y).double(), pred.index == y, pred.confidence
    found: Row = {
        "accuracy": correct.double().mean().item(),
        "nll": nlls.mean().item(),
        "ece": ece(confidence, correct).value,
        "aurc": aurc(confidence, correct).value,
        **{f"coverage_at_risk_{risk}": coverage_at_risk(confidence, correct, risk).value for risk in RISKS},
    }
    strange = {name: model.predict(x, **options) for name, x in rows.foreign.items()}
    entropies, epistemics = [], []
    for one in strange.values():
        assert isinstance(one, CategoricalPredictive)
        entropies.append(auroc(pred.entropy, one.entropy).value)
        epistemics.append(auroc(pred.epistemic, one.epistemic).value)
    found |= {"ood_auroc_entropy": mean(entropies), "ood_auroc_epistemic": mean(epistemics), "seconds": seconds}
    return {key: finite(value) for key, value in found.items()}, (nlls, confidence.double(), correct)


def _against(own: Sequence[Tensor], other: Sequence[Tensor]) -> Row:
    """The paired differences in NLL and AURC, each with its interval."""
    of_nll = differences.paired_difference(differences.mean, [(own[0],)], [(other[0],)])
    of_aurc = differences.paired_difference(differences.aurc, [tuple(own[1:])], [tuple(other[1:])])
    return {**_told("nll_minus_temperature", of_nll), **_told("aurc_minus_temperature", of_aurc)}


def _told(name: str, found: Metric) -> Row:
    return {name: finite(found.value), f"{name}_low": finite(found.low), f"{name}_high": finite(found.high)}


@torch.no_grad()
def _mean_gaps(model: BayesianModel, inputs: Any, draws: int) -> Row:
    problem, posterior = model.problem, model.posterior
    looked = take(inputs, slice(0, LOOKED))
    with problem.network.session(train=False):
        drawn = torch.stack(
            [problem.outputs(theta, looked) for theta in posterior.draws(draws, Random(1).fold("gap"))]
        ).double()
        centre, std = drawn.mean(0), drawn.std(0).clamp_min(1e-12)
        own, _ = split(propagate(problem, weight_values(posterior), looked))
        network = problem.outputs(posterior.mean(), looked)
    gap, plain = (((value - centre) / std).square().mean().sqrt().item() for value in (own, network))
    return {"mean_gap": gap, "mean_gap_network": plain, "floor": 1 / math.sqrt(draws)}


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: list[Row]) -> dict[str, float]:
    """Averages over tasks of the means over seeds; the worst ratio of the gaps; per task the differences."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    found: dict[str, float] = {}

    def averaged(method: str, field: str) -> float:
        return mean([_over_seeds(rows, task, method, field) for task in tasks])

    for field in ("nll_minus_temperature", "aurc_minus_temperature"):
        found[field] = averaged(OURS, field)
    ratios = []
    for task in tasks:
        gap, network, floor = (_over_seeds(rows, task, "propagation", name) for name in _GAPS)
        found[f"{key_of(task)}_mean_gap"], found[f"{key_of(task)}_mean_gap_network"] = gap, network
        if network > 3 * floor:
            ratios.append(math.sqrt(max(gap**2 - floor**2, 0.0) / (network**2 - floor**2)))
            found[f"{key_of(task)}_mean_gap_ratio"] = ratios[-1]
    found["mean_gap_ratio_worst"] = max(ratios, default=math.nan)
    for method in METHODS:
        for field in _SHOWN:
            found[f"{key_of(method)}_{field}"] = averaged(method, field)
    for task in tasks:
        for method in METHODS:
            own = [row for row in rows if row["task"] == task and row["method"] == method]
            for field in ("nll", "aurc"):
                found[f"{key_of(task)}_{key_of(method)}_{field}"] = mean([row[field] for row in own])
                found[f"{key_of(task)}_{key_of(method)}_{field}_error"] = standard_error([row[field] for row in own])
    return defined(found)


_GAPS = ("mean_gap", "mean_gap_network", "floor")
_SHOWN = (
    "accuracy", "nll", "ece", "aurc", *(f"coverage_at_risk_{risk}" for risk in RISKS), "ood_auroc_entropy",
    "ood_auroc_epistemic", "times_mean",
)  # fmt: skip


def _over_seeds(rows: Sequence[Row], task: str, method: str, field: str) -> float:
    own = [row[field] for row in rows if row["task"] == task and row["method"] == method and row.get(field) is not None]
    return mean(own) if own else math.nan
