"""Low-rank networks in intensive care: deaths in hospital, and patients of a kind that was never seen.

PhysioNet 2012 without the cardiac surgery unit, whose stays are the foreign ones; MIMIC-III's demonstration set is the
shifted target; and eICU's, tested on hospitals that were not trained on (`icu.py`). A network of two hidden layers of 128,
factors of rank 15. AUROC is that of death; OOD AUROC by mutual information and by entropy, the latter also for the
deterministic network, whose mutual information is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from posterity.bench import icu
from posterity.bench.bde import defined, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.low_rank_classes import classes, foreign
from posterity.bench.low_rank_methods import DRAWS, Figures, Predict, Task, compared, grid
from posterity.models.tabular import mlp
from posterity.prediction.classes import CategoricalPredictive

__all__ = ["LIMITS", "cells", "claims", "measured"]

LIMITS = {
    "icu_ood_auroc_mi_gain": Limit(low=-0.01),
    "icu_nll_minus_deterministic": Limit(high=0.02),
}

SEEDS = (0, 1, 2, 3, 4)
TRIALS = grid((1.0, 3.0, 10.0), (1e-3, 4e-3))
WIDTH, DEPTH, RANK = 128, 2, 15
EPOCHS, BATCH = 20, 64
DATA = {"physionet": icu.physionet, "eicu": icu.eicu}
FIELDS = ("auroc", "nll", "ece", "aupr_errors", "risk_80")
FOREIGN = ("ood_auroc_mi_csru", "ood_auroc_entropy_csru")


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per data set and seed."""
    seeds = SEEDS[:2] if quick else SEEDS
    return {f"{data}, seed {seed}": partial(_cell, data, seed, quick) for data in DATA for seed in seeds}


def _cell(data: str, seed: int, quick: bool) -> list[Row]:
    return measured(DATA[data](seed), data, seed, quick)


def measured(stays: icu.Stays, data: str = "mimic", seed: int = 0, quick: bool = False) -> list[Row]:
    """All methods on one task, a row per method and block; also for stays of your own (`mimic.mimic`)."""
    if quick:
        train, validation, test = ((x[:192], y[:192]) for x, y in (stays.train, stays.validation, stays.test))
        stays = stays._replace(train=train, validation=validation, test=test)
    inputs = stays.train[0].shape[1]
    return compared(
        Task(
            data=data,
            seed=seed,
            network=lambda rate: mlp(inputs, 2, width=WIDTH, depth=DEPTH, dropout=rate),
            likelihood="categorical",
            train=stays.train,
            validation=stays.validation,
            measure=partial(_measure, stays),
            trials=TRIALS[:1] if quick else TRIALS,
            rank=RANK,
            epochs=1 if quick else EPOCHS,
            batch_size=BATCH,
            draws=4 if quick else DRAWS,
        )
    )


def _measure(stays: icu.Stays, predict: Predict) -> dict[str, float | None]:
    pred = predict(stays.test[0])
    assert isinstance(pred, CategoricalPredictive)
    found = classes(pred, stays.test[1]) | foreign(pred, predict, stays.foreign)
    for name, (x, y) in stays.shifted.items():
        shifted = predict(x)
        assert isinstance(shifted, CategoricalPredictive)
        told = classes(shifted, y)
        found |= {f"{field}_{name}": told[field] for field in ("auroc", "nll", "ece")}
    return found


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds in the tuned block, with standard errors; differences are paired by seed.

    `icu_ood_auroc_mi_gain` is low-rank over mean-field; `equal_` is before what belongs to the other block.
    """
    figures = Figures(rows)
    gain = figures.difference("physionet", "low-rank", "mean-field", FOREIGN[0])
    found = {
        "icu_ood_auroc_mi": figures.mean("physionet", "low-rank", FOREIGN[0]),
        "icu_ood_auroc_mi_gain": mean(gain),
        "icu_ood_auroc_mi_gain_error": standard_error(gain),
    }
    for over in ("deterministic", "mean-field", "low-rank-point", "deep-ensemble"):
        found |= figures.against("physionet", "icu", over, ("nll", "auroc", "ece"))
        found |= figures.against("eicu", "eicu", over, ("nll", "auroc", "ece"))
    found |= figures.against("physionet", "equal_icu", "deterministic", ("nll", "auroc"), "equal")
    found |= figures.against("physionet", "equal_icu", "mean-field", ("nll", "auroc", FOREIGN[0]), "equal")
    found |= figures.told("physionet", "icu", (*FIELDS, *FOREIGN, "auroc_mimic"))
    found |= figures.told("eicu", "eicu", FIELDS[:3])
    return defined(found)
