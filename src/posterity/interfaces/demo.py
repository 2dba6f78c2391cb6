"""`posterity demo`: every method on real handwritten digits that come with scikit-learn.

Trained on the classes 0 to 7; the foreign sets are the classes 8 and 9 ("strange") and uniform pixel noise. Each method's
data_weight is picked on validation data from one grid, and its last fit is evaluated on test rows that nothing has seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import PosterityWarning

__all__ = ["METHODS", "Demo", "Digits", "digits", "network", "run"]

GRID = (1.0, 10.0, 100.0)  # data_weight
PRIOR = 1.0
BATCH = 128


@dataclass(frozen=True)
class Demo:
    """How one method is shown.

    Args:
        method: the algorithm.
        epochs: of its training.
        ways: how to predict with it; a row of the table each.
        pick: pick data_weight on validation from `GRID`; or the name of the method whose pick serves.
    """

    method: po.Algorithm
    epochs: int
    ways: tuple[str, ...]
    pick: bool | str = True


# Picked by validation NLL on the splits 101 to 103, which nothing else uses.
_MAP = po.MAP(learning_rate=po.Cosine(5e-3))

METHODS: dict[str, Demo] = {
    "map": Demo(_MAP, 40, ("mean",)),
    "deep-ensemble": Demo(po.Ensemble(_MAP, 5), 40, ("draws",), pick="map"),
    "mean-field": Demo(po.MeanFieldVI(learning_rate=po.Cosine(4e-2)), 40, ("draws", "mean", "propagation")),
    "score-vi": Demo(
        po.ScoreVI(learning_rate=po.Cosine(4e-2), std_learning_rate=po.Cosine(3e-2)),
        40,
        ("draws", "mean", "propagation"),
    ),
    "low-rank": Demo(po.LowRankVI(rank=8, learning_rate=po.Cosine(1e-2)), 40, ("draws", "mean", "propagation")),
    "ivon": Demo(po.IVON(learning_rate=po.Cosine(0.5)), 50, ("draws", "mean", "propagation")),
    "sghmc": Demo(
        po.SGHMC(members=5, ensemble=_MAP, warmup=200, draws_per_chain=10, thin=20), 40, ("draws",), pick="map"
    ),
    "laplace": Demo(po.LastLayerLaplace(base=_MAP), 40, ("draws", "mean"), pick="map"),
}


class Digits(NamedTuple):
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    strange: Tensor  # classes 8 and 9
    noise: Tensor  # uniform pixels


def digits(seed: int = 0) -> Digits:
    """8x8 digits in [0, 1], split 55/20/25 by `seed`.

    Raises:
        ImportError: scikit-learn, which brings the data, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the demo's data come with scikit-learn: pip install 'posterity[demo]'") from error
    data = load_digits()
    x, y = torch.from_numpy(data.data / 16.0).float(), torch.from_numpy(data.target).long()
    known = y < 8
    strange, x, y = x[~known], x[known], y[known]
    random = po.Random(seed).fold("digits")
    order = torch.randperm(len(x), generator=random.fold("split").generator())
    cuts = [round(0.55 * len(x)), round(0.2 * len(x))]
    parts = order.split([*cuts, len(x) - sum(cuts)])
    noise = torch.rand(strange.shape, generator=random.fold("noise").generator())
    train, validation, test = ((x[part], y[part]) for part in parts)
    return Digits(train, validation, test, strange, noise)


def network() -> nn.Module:
    """64-128-128-8 with ReLU: 26 thousand weights."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))


def run(
    seed: int = 0, methods: dict[str, Demo] | None = None, tell: Callable[[str], None] = lambda line: None
) -> po.Evaluation:
    """Fit, pick and evaluate every method; `tell` hears of each as it is done."""
    data = digits(seed)
    methods = methods or METHODS
    picked: dict[str, float] = {}
    models: dict[str, po.BayesianModel] = {}
    for name, demo in methods.items():
        models[name], picked[name] = _fit(name, demo, data, seed, picked)
        tell(f"{name}: fitted, data_weight {picked[name]:g}")
    result = po.compare(
        models, data.test, ood={"strange": data.strange, "noise": data.noise},
        via={name: demo.ways for name, demo in methods.items()}, validation=data.validation,
        show=data.test[0].reshape(-1, 8, 8),
    )  # fmt: skip
    result.settings.update(_settings(data, seed, picked))
    return result


def _fit(name: str, demo: Demo, data: Digits, seed: int, picked: dict[str, float]) -> tuple[po.BayesianModel, float]:
    grid = (picked[demo.pick],) if isinstance(demo.pick, str) and demo.pick in picked else GRID
    best: tuple[float, po.BayesianModel, float] | None = None
    for weight in grid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosterityWarning)
            model = po.fit(
                network, data.train, "categorical", demo.method, PRIOR, epochs=demo.epochs,
                validation=data.validation, data_weight=weight, seed=seed, batch_size=BATCH, progress=False,
            )  # fmt: skip
        x, y = data.validation
        nll = -float(model.predict(x, via=demo.ways[0]).log_prob(y).mean())
        if best is None or nll < best[0]:
            best = nll, model, weight
    assert best is not None
    return best[1], best[2]


def _settings(data: Digits, seed: int, picked: dict[str, float]) -> dict[str, Any]:
    return {
        "data": "scikit-learn digits, classes 0-7; strange: classes 8-9; noise: uniform pixels",
        "rows": {"train": len(data.train[1]), "validation": len(data.validation[1]), "test": len(data.test[1]),
                 "strange": len(data.strange), "noise": len(data.noise)},
        "network": "MLP 64-128-128-8",
        "prior": f"normal, std {PRIOR}",
        "data_weight_grid": list(GRID),
        "data_weight": picked,
        "seed": seed,
    }  # fmt: skip
