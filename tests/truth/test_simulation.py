"""Simulation-based calibration (Talts et al., 2018): weights drawn from the prior rank uniformly among posterior draws.

500 weights vectors from the prior, each with data of its own; 99 posterior draws each; the rank of the truth, from 0 to 99,
falls in 20 classes of 5, 25 expected in each. The replications are the outputs of one linear layer, so that one fit has them
all: given the same features, they are independent. A test of chi-square per weight, at a level of 0.01 over all weights and
methods of this file; seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from tests.truth.seeds import ROTATION, stream
from torch import Tensor, nn

import posterity as po

REPLICATIONS, DRAWS, CLASSES = 500, 99, 20
ROWS, FEATURES, NOISE, PRIOR = 8, 3, 0.8, 1.3
WEIGHTS = FEATURES + 1


def features(orthogonal: bool) -> Tensor:
    """[rows, features]; orthogonal ones, of each other and of a constant, leave independent normals nothing to miss."""
    x = stream(1).normal((ROWS, FEATURES))
    if orthogonal:
        basis, _ = torch.linalg.qr(torch.cat([torch.ones(ROWS, 1), x], 1))
        return basis[:, 1:] * 2.0
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    return x


def ranks(method: po.Algorithm, steps: int, orthogonal: bool, outputs: int) -> Tensor:
    """[replications, weights] how many of the draws are below the truth."""
    x, found = features(orthogonal), []
    for part in range(REPLICATIONS // outputs):
        truth = PRIOR * stream(2).fold(part).normal((outputs, WEIGHTS))
        y = x @ truth[:, :-1].T + truth[:, -1] + NOISE * stream(3).fold(part).normal((ROWS, outputs))
        model = po.fit(
            lambda: nn.Linear(FEATURES, outputs), (x, y), po.Gaussian(std=NOISE, standardize=False), method,
            po.Normal(PRIOR), batch_size=ROWS, epochs=steps, seed=part + ROTATION, progress=False,
        )  # fmt: skip
        draws = list(model.posterior.draws(DRAWS, stream(4)))
        joined = torch.stack([torch.cat([draw["weight"], draw["bias"][:, None]], 1) for draw in draws])
        found.append((joined < truth).sum(0))
    return torch.cat(found)


ADAM: dict[str, Any] = {"learning_rate": po.Cosine(0.1), "std_learning_rate": po.Cosine(0.1), "init_std": 0.3}
CHAIN: dict[str, Any] = {
    "ensemble": po.MAP(learning_rate=po.Cosine(0.1)), "members": 1, "warmup": 300, "draws_per_chain": DRAWS,
    "noise_correction": False,
}  # fmt: skip
slow = pytest.mark.slow
# SGLD forgets in some ten times the steps of SGHMC: with thin=30 its draws hang together, and ranks pile up at both ends
CASES = [
    pytest.param(po.LastLayerLaplace(base=po.MAP(learning_rate=po.Cosine(0.1))), 300, False, 100, id="laplace"),
    pytest.param(po.MeanFieldVI(**ADAM), 1000, True, 500, id="mean-field, orthogonal features"),
    pytest.param(po.ScoreVI(update="whitened", **ADAM), 1500, True, 500, id="score-vi, orthogonal features"),
    pytest.param(po.SGHMC(thin=30, **CHAIN), 300, False, 500, id="sghmc", marks=slow),
    pytest.param(po.SGLD(thin=300, **CHAIN), 300, False, 500, id="sgld", marks=slow),
    pytest.param(
        po.ScoreVI("dense", learning_rate=po.Cosine(0.1)), 1500, False, 25, id="score-vi-dense", marks=slow
    ),
]  # fmt: skip
LEVEL = 0.01 / (len(CASES) * WEIGHTS)


@pytest.mark.parametrize(("method", "steps", "orthogonal", "outputs"), CASES)
def test_the_truth_ranks_uniformly(method: po.Algorithm, steps: int, orthogonal: bool, outputs: int) -> None:
    found = ranks(method, steps, orthogonal, outputs)
    for weight in range(WEIGHTS):
        counts = torch.bincount(found[:, weight] * CLASSES // (DRAWS + 1), minlength=CLASSES)
        assert stats.chisquare(counts.numpy()).pvalue > LEVEL, counts.tolist()


def test_ranks_tell_stds_that_are_a_fifth_too_small() -> None:
    """What the test is able to see: independent normals on correlated features."""
    found = ranks(po.MeanFieldVI(**ADAM), 1000, False, 500)
    counts = torch.bincount(found[:, 0] * CLASSES // (DRAWS + 1), minlength=CLASSES)
    assert stats.chisquare(counts.numpy()).pvalue < LEVEL
    assert counts[[0, -1]].sum() > 2 * REPLICATIONS / CLASSES
