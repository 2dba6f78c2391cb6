"""The runs that the safety bench damages: one of every kind of posterior, small, with all that a folder can hold.

`tests/golden` holds folders of the same kinds, as each format wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from posterity.inference.algorithm import Algorithm
from posterity.inference.ensemble import DeepEnsemble, Ensemble
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mc_dropout import MCDropout
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.rank_one import RankOneVI
from posterity.inference.score import ScoreVI
from posterity.inference.sghmc import SGHMC
from posterity.inference.swag import SWAG
from posterity.model import BayesianModel, load
from posterity.random import Random
from posterity.testing.resume import all_draws
from posterity.training.fit import fit

__all__ = ["KINDS", "data", "fingerprint", "fitted", "inputs", "loaded", "network"]

KINDS: dict[str, Algorithm] = {
    "map": MAP(),
    "deep-ensemble": DeepEnsemble(2),
    "mean-field": MeanFieldVI(),
    "mean-field-ensemble": Ensemble(MeanFieldVI(), 2),
    "score-vi-dense": ScoreVI("dense"),
    "score-vi-low-rank": ScoreVI("low-rank-plus-diagonal", rank=2),
    "score-vi-mixture": ScoreVI("mixture", components=2, draws=4),
    "score-vi-flow": ScoreVI("flow", transforms=1, hidden=(3,), bins=3, draws=3, over="last-layer"),
    "laplace": LastLayerLaplace(),
    "laplace-kronecker": LastLayerLaplace(structure="kronecker"),
    "sghmc": SGHMC(members=2, warmup=5, draws_per_chain=2, thin=2),
    "swag": SWAG(),
    "low-rank": LowRankVI(rank={"0.weight": 1, "*": "normal"}),
    "low-rank-change": LowRankVI(rank={"0.weight": 1, "*": "normal"}, change=True),
    "rank-one": RankOneVI(),
    "mc-dropout": MCDropout(),
}


def network(kind: str) -> Callable[[], nn.Module]:
    """A builder of the network that a run of this kind is over."""
    dropout = [nn.Dropout(0.2)] if kind == "mc-dropout" else []
    return lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *dropout, nn.Linear(5, 2))


def inputs() -> Tensor:
    """[30, 3] rows."""
    return Random(0).normal((30, 3))


def data() -> tuple[Tensor, Tensor]:
    """Rows and their classes."""
    x = inputs()
    return x, (x[:, 0] > 0).long()


def fitted(kind: str, **options: Any) -> BayesianModel:
    """A run of this kind; `options` as of `fit`."""
    told = {"epochs": 3, "batch_size": 10, "seed": 0, "progress": False, **options}
    return fit(network(kind), data(), "categorical", KINDS[kind], **told)


def loaded(folder: Path, kind: str) -> str:
    """The fingerprint of a run that is loaded from its folder."""
    return fingerprint(load(folder, network(kind)()))


def fingerprint(model: BayesianModel) -> str:
    """A hash of every bit that a model holds and of what it says of seven rows."""
    pred = model.predict(inputs()[:7])
    snapshots = [snapshot.flat() for snapshot in model.snapshots]
    held = [model.posterior.tensors(), *all_draws(model.posterior), model.problem.network.constants, *snapshots]
    said = {name: leaf for name in pred.row_axis if isinstance(leaf := getattr(pred, name), Tensor)}
    found = hashlib.sha256()
    for name, leaf in ((name, leaf) for tree in (*held, said) for name, leaf in tree.items()):
        found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(leaf.detach().contiguous().numpy().tobytes())
    about = [model.settings, list(model.history), model.temperature, model.calibration, model.propagation.to_json()]
    found.update(json.dumps([*about, model.posterior.meta()], sort_keys=True, default=str).encode())
    return found.hexdigest()
