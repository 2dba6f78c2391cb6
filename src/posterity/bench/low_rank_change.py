"""Bayesian low-rank adaptation: what a change W0 + A B^T of pretrained weights says, beside what leaves them as they were.

    intents    150 kinds of requests, 20 texts each; queries and values of the last two layers of a sentence encoder change,
               and its linear head is inferred ("normal"); foreign are requests of no kind (`minilm.py`)
    tales      a language model of children's stories reads Lamb's Tales from Shakespeare; all projections of its layers
               change (`stories.py`)

    frozen             the head alone, at its mode; of tales the model as it is
    laplace            the Kronecker-factored Laplace approximation of that head
    low-rank-change    draws of the change, of rank 8
    lora-ensemble      five changes without a spread (`relative_std=0`) from other factors and in another order of rows

Each has the data_weight of three with the smallest validation NLL; the ensemble of intents has that of the frozen row, that
of tales has that of the draws. All changes start at the frozen row, train for the same epochs and have the same prior.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.bench import minilm, stories
from posterity.bench.bde import defined, key_of, mean
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.bench.low_rank_classes import foreign
from posterity.bench.low_rank_methods import MEMBERS
from posterity.evaluation.calibration import ece
from posterity.evaluation.proper import nll
from posterity.inference.algorithm import Algorithm
from posterity.inference.ensemble import Ensemble
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.ranks import Rank
from posterity.inference.schedule import Cosine
from posterity.model import BayesianModel
from posterity.prediction.classes import CategoricalPredictive
from posterity.problem.priors import Normal
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims"]

LIMITS: dict[str, Limit] = {}
SEEDS, RANK, DRAWS = (0, 1), 8, 16
WEIGHTS = (1.0, 10.0, 100.0)  # data_weight
CHANGE, ENSEMBLE = "low-rank-change", "lora-ensemble"
PRIOR = Normal({"head.*": 0.1, "*": 0.02})  # of the head's weights; of an entry of the change
TALES_PRIOR = Normal(0.05)
FIELDS = (
    "accuracy", "nll", "ece", "ood_auroc_mi_oos", "ood_auroc_entropy_oos", "perplexity", "data_weight", "parameters",
    "seconds",
)  # fmt: skip


Say = Callable[[Any], CategoricalPredictive]  # inputs -> what is said about them


def _change(ranks: Mapping[str, Rank], rate: float, **options: Any) -> LowRankVI:
    return LowRankVI(ranks, change=True, learning_rate=Cosine(rate), **options)


def _methods(ranks: Mapping[str, Rank], rate: float) -> dict[str, Algorithm]:
    lora = _change(ranks, rate, relative_std=0.0)
    return {CHANGE: _change(ranks, rate), ENSEMBLE: Ensemble(lora, MEMBERS)}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per data set and seed."""
    works: dict[str, Callable[[int, bool], list[Row]]] = {"intents": _intents, "tales": _tales}
    return {
        f"{name}, seed {seed}": partial(work, seed, quick)
        for name, work in works.items()
        for seed in (SEEDS[:1] if quick else SEEDS)
    }


class _Fit(NamedTuple):
    model: BayesianModel
    weight: float  # data_weight
    seconds: float  # of CPU time


def _swept(fitted: Callable[[float], BayesianModel], weights: Sequence[float]) -> list[_Fit]:
    fits = []
    for weight in weights:
        began = time.process_time()
        fits.append(_Fit(fitted(weight), weight, time.process_time() - began))
    return fits


def _best(fits: Sequence[_Fit], validated: Callable[[BayesianModel], float]) -> tuple[_Fit, dict[str, Any]]:
    """That of the smallest validation NLL, and all of these."""
    values = [validated(one.model) for one in fits]
    best = min(range(len(fits)), key=lambda i: values[i] if math.isfinite(values[i]) else math.inf)
    return fits[best], {
        "data_weight": [one.weight for one in fits],
        "validation_nll": [finite(value) for value in values],
    }


def _row(data: str, method: str, seed: int, best: tuple[_Fit, Any], told: Mapping[str, float | None]) -> Row:
    """`parameters` are the numbers that the posterior holds, without the weights that it leaves as they were."""
    fitted, sweep = best
    own = {"data": data, "method": method, "seed": seed, "data_weight": fitted.weight, **told}
    return {**own, "parameters": fitted.model.posterior.size, "seconds": fitted.seconds, "sweep": sweep}


# --- intents ----------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    sizes: minilm.Sizes = minilm.Sizes()
    head_epochs: int = 60
    epochs: int = 3
    draws: int = DRAWS
    weights: tuple[float, ...] = WEIGHTS


INTENT_RANKS: dict[str, Rank] = {"*query.weight": RANK, "*value.weight": RANK, "head.weight": "normal"}
QUICK_PLAN = _Plan(minilm.Sizes(1, 1, 1, 32), 2, 1, 2, WEIGHTS[:1])


def _intents(seed: int, quick: bool) -> list[Row]:
    plan = QUICK_PLAN if quick else _Plan()
    data = minilm.requests(seed, plan.sizes)
    features = minilm.pooled(data)
    common: dict[str, Any] = {"likelihood": "categorical", "prior": PRIOR, "seed": seed, "progress": False}

    def headed(weight: float) -> BayesianModel:
        method = LastLayerLaplace(structure="kronecker", base=MAP(learning_rate=Cosine(5e-3)))
        return fit(
            lambda: minilm.Head(features.train[0].shape[1]), features.train, method=method,
            epochs=plan.head_epochs, data_weight=weight, validation=features.validation, **common,
        )  # fmt: skip

    heads = _swept(headed, plan.weights)
    rows, starts = [], []
    for name, via in (("frozen", "mean"), ("laplace", "draws")):
        say = partial(_predicted, via=via, draws=plan.draws)
        best = _best(heads, partial(_nll, say, features.validation))
        rows.append(_row("intents", name, seed, best, _said(say(best[0].model), features)))
        starts.append(best[0])
    tail = minilm.Tail()
    start = {name: weight.detach() for name, weight in tail.named_parameters()} | starts[0].model.posterior.mean()
    say = partial(_predicted, via="draws", draws=plan.draws)
    for name, method in _methods(INTENT_RANKS, 1e-3).items():

        def changed(weight: float, method: Algorithm = method) -> BayesianModel:
            return fit(tail, data.train, method=method, epochs=plan.epochs, data_weight=weight, start=start, **common)

        fits = _swept(changed, plan.weights if name == CHANGE else [starts[0].weight])
        best = _best(fits, partial(_nll, say, data.validation))
        rows.append(_row("intents", name, seed, best, _said(say(best[0].model), data)))
    return rows


def _predicted(model: BayesianModel, via: str, draws: int) -> Say:
    many = None if via == "mean" or model.posterior.finite else draws

    def predicted(x: Any) -> CategoricalPredictive:
        pred = model.predict(x, via=via, draws=many, batch_size=128)
        assert isinstance(pred, CategoricalPredictive)
        return pred

    return predicted


def _nll(say: Callable[[BayesianModel], Say], rows: tuple[Any, Tensor], model: BayesianModel) -> float:
    return nll(say(model)(rows[0]).log_prob(rows[1])).value


def _said(predict: Say, data: minilm.Requests) -> dict[str, float | None]:
    x, y = data.test
    pred = predict(x)
    correct = pred.index == y
    return {
        "accuracy": correct.double().mean().item(),
        "nll": nll(pred.log_prob(y)).value,
        "ece": ece(pred.confidence, correct).value,
        **foreign(pred, predict, {"oos": data.outside}),
    }


# --- tales ------------------------------------------------------------------------------------------------------------

TALE_RANKS: dict[str, Rank] = {"*_proj.weight": RANK}


def _tales(seed: int, quick: bool) -> list[Row]:
    data = stories.tales(seed, stories.Sizes(16, 8) if quick else stories.Sizes())
    model = stories.storyteller()
    began = time.process_time()
    before = _before(model, data.test)
    own = {"data": "tales", "method": "frozen", "seed": seed, "data_weight": None, "nll": before}
    cost = {"parameters": 0, "seconds": time.process_time() - began, "sweep": None}
    rows = [{**own, "perplexity": math.exp(before), **cost}]
    start = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    draws = 3 if quick else DRAWS
    weight = WEIGHTS[0]
    for name, method in _methods(TALE_RANKS, 2e-3).items():

        def changed(weight: float, method: Algorithm = method) -> BayesianModel:
            return fit(
                model, (data.train, data.train), "tokens", method, TALES_PRIOR, output="logits", start=start,
                epochs=1 if quick else 6, batch_size=8, data_weight=weight, seed=seed, progress=False,
            )  # fmt: skip

        fits = _swept(changed, WEIGHTS[: 1 if quick else None] if name == CHANGE else [weight])
        best = _best(fits, partial(_per_token, data.validation, draws))
        weight = best[0].weight
        value = _per_token(data.test, draws, best[0].model)
        rows.append(_row("tales", name, seed, best, {"nll": value, "perplexity": math.exp(value)}))
    return rows


@torch.inference_mode()
def _before(model: nn.Module, pieces: Tensor) -> float:
    """Nats a token of the model as it is."""
    logits = model(pieces).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten()).item()


def _per_token(pieces: Tensor, draws: int, model: BayesianModel) -> float:
    """Nats a token of the mixture over draws."""
    many = None if model.posterior.finite else draws
    pred = model.predict(pieces, via="draws", draws=many, batch_size=16)
    assert isinstance(pred, CategoricalPredictive)
    return -pred.log_prob(pieces).double().mean().item() / (pieces.shape[1] - 1)


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds; `..._nll_minus_frozen` above 0 is a change for the worse."""
    found: dict[str, float] = {}
    for data in ("intents", "tales"):
        own = [row for row in rows if row["data"] == data]
        for method in dict.fromkeys(row["method"] for row in own):
            of = [row for row in own if row["method"] == method]
            for field in FIELDS:
                values = [row[field] for row in of if row.get(field) is not None]
                found[f"{data}_{key_of(method)}_{field}"] = mean(values)
        for method in (CHANGE, ENSEMBLE):
            names = [f"{data}_{key_of(one)}_nll" for one in (method, "frozen")]
            found[f"{data}_{key_of(method)}_nll_minus_frozen"] = found[names[0]] - found[names[1]]
    return defined(found)
