"""What the covariance of variance propagation is worth: stds of the outputs beside those of 1000 draws.

Networks on scikit-learn's digits (8 x 8 pixels from 0 to 16, normal noise of std 2): 1200 rows fit, 200 are predicted.
cnn         convolutions of 16 and 32 channels with ReLU, the mean over all 64 positions, a linear layer; IVON
low_rank    64-128-128-10 with ReLU, factors of rank 8; LowRankVI
encoder     two layers of attention over the 8 rows of pixels, width 32, the mean over tokens; IVON

std_ratio      mean over rows and outputs of the propagated std over that of the draws; _spread its std over them
correlation    of the log stds
variation      total variation of the class probabilities from the mean of the draws, mean over rows
time           CPU time of a pass over all rows over that of the mean network's; a draw costs 1 and its weights
draws          how many have as large an error of the std: 1 / (2 e^2), e the root mean square of ratio - 1 without the
               share of the 1000 draws
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from posterity.bench.bde import mean
from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.inference.algorithm import Algorithm
from posterity.inference.ivon import IVON
from posterity.inference.low_rank import LowRankVI
from posterity.inference.schedule import Cosine
from posterity.prediction.propagation.head import outputs_at_points
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Rules
from posterity.problem.batches import Batch
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["LIMITS", "NETWORKS", "cells", "claims"]

LIMITS = {
    "cnn_std_ratio": Limit(0.9, 1.1),
    "low_rank_std_ratio": Limit(0.9, 1.1),
}

NAMES = ("std_ratio", "std_ratio_spread", "variation", "time", "draws")

SEEDS, DRAWS = (0, 1, 2), 1000
FITTED, ROWS, NOISE = 1200, 200, 2.0


class Encoder(nn.Module):
    """A row of pixels is a token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True, dropout=0.0)
        self.embedding, self.place = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(x.reshape(-1, 8, 8)) + self.place).mean(1))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Algorithm], int]] = {  # with the epochs of each
    "cnn": (cnn, lambda: IVON(learning_rate=Cosine(0.3)), 60),
    "low_rank": (perceptron, lambda: LowRankVI(8), 60),
    "encoder": (Encoder, lambda: IVON(learning_rate=Cosine(0.03)), 180),
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A cell per network and seed."""
    draws, seeds = (50, SEEDS[:1]) if quick else (DRAWS, SEEDS)
    return {
        f"{name}, seed {seed}": partial(_measured, name, seed, 2 if quick else epochs, draws)
        for name, (_, _, epochs) in NETWORKS.items()
        for seed in seeds
    }


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """[1797, 64] standardised pixels with noise, and labels, in a fixed random order."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=Random(0).fold("order").generator())
    x = torch.tensor(pixels, dtype=torch.float32)
    x = (x + NOISE * Random(0).fold("noise").normal(x.shape) - 5.0) / 6.0
    return x[order], torch.tensor(labels)[order]


def _measured(name: str, seed: int, epochs: int, draws: int) -> list[Row]:
    make, method, _ = NETWORKS[name]
    x, y = _digits()
    with Random(seed).fold(name).forked():
        network = make()
    data = x[:FITTED], y[:FITTED]
    model = fit(network, data, "categorical", method(), epochs=epochs, batch_size=32, seed=seed, progress=False)
    rows, labels = x[FITTED : FITTED + ROWS], y[FITTED : FITTED + ROWS]
    problem, posterior = model.problem, model.posterior
    with torch.inference_mode(), problem.network.session(train=False):
        drawn = torch.stack([problem.outputs(theta, rows) for theta in posterior.draws(draws, Random(seed))]).double()
        weights = posterior.mean()
        plain = problem.outputs(weights, rows)
        seconds = _seconds(lambda: problem.outputs(weights, rows), 20)
        true, probs = drawn.std(0), drawn.softmax(-1).mean(0)
        values = weight_values(posterior)
        found: list[Row] = []
        for via in ("diagonal", "covariance"):
            one = partial(Pass, Rules(covariance=via == "covariance"))
            said = propagate(problem, values, Batch(rows, rows=ROWS), one())
            points = torch.stack([point.double().softmax(-1) for point in outputs_at_points(said, problem.likelihood)])
            own = _seconds(partial(_pass, problem, values, rows, one), 3)
            found.append({
                "network": name, "seed": seed, "via": via, **_compared(said, true, drawn.mean(0), draws),
                "variation": float((points.mean(0) - probs).abs().sum(-1).mean() / 2), "time": own / seconds,
                "accuracy": float((points.mean(0).argmax(-1) == labels).double().mean()),
                "nll": _nll(points.mean(0), labels),
            })  # fmt: skip
        gap = (plain.double() - drawn.mean(0)).div(true).square().mean().sqrt()
        some = {k: float((drawn[:k].softmax(-1).mean(0) - probs).abs().sum(-1).mean() / 2) for k in (16, 64)}
        found.append(
            {"network": name, "seed": seed, "via": "draws", "nll": _nll(probs, labels), "mean_gap": float(gap)}
        )
        found[-1] |= {f"variation_{k}": value for k, value in some.items()}
    return found


def _pass(problem: Any, values: Any, rows: Tensor, one: Callable[[], Pass]) -> Any:
    return propagate(problem, values, rows, one())


def _compared(said: Any, true: Tensor, average: Tensor, draws: int) -> dict[str, float | None]:
    std = said.var.double().sqrt()
    ratio = std / true
    logs = torch.stack([std.flatten(), true.flatten()]).log()
    error = float((ratio - 1).square().mean()) - 1 / (2 * draws)
    return {
        "std_ratio": float(ratio.mean()), "std_ratio_spread": float(ratio.std()),
        "correlation": float(torch.corrcoef(logs)[0, 1]), "draws": finite(1 / (2 * error) if error > 0 else math.inf),
        "mean_gap": float((said.mean.double() - average).div(true).square().mean().sqrt()),
    }  # fmt: skip


def _seconds(function: Callable[[], Any], repeats: int) -> float:
    """CPU time of one call, the least of so many."""
    function()
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def _nll(probs: Tensor, labels: Tensor) -> float:
    return -float(probs.gather(1, labels[:, None]).clamp_min(1e-12).log().mean())


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds; those of the diagonal end with `_diagonal`, and 64 draws' total variation is beside."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(row["network"] for row in rows):
        for via, suffix in (("covariance", ""), ("diagonal", "_diagonal"), ("draws", "")):
            own = [row for row in rows if (row["network"], row["via"]) == (name, via)]
            for key in NAMES if via != "draws" else ("variation_64",):
                values = [row[key] for row in own if row[key] is not None]
                found[f"{name}_{key}{suffix}"] = mean(values)
    return found
