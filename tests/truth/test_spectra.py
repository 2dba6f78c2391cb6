"""A normal of rank 3 plus a diagonal in 50 dimensions: stds and every correlation, its sign included.

A score covariance that is not inverted, or a regulariser on the wrong scale, damps or turns correlations and leaves means
and stds nearly right (blackjax, pull request 949): the correlations are what to look at.
"""

from __future__ import annotations

import pytest
import torch
from tests.truth.seeds import stream
from torch import Tensor

import posterity as po

SIZE, RANK, DRAWS = 50, 3, 4000  # correlations are off by at most 1 / sqrt(4000) = 1.6 %, stds by 1.1 %
FACTOR = po.Random(0).normal((SIZE, RANK)).double()
COVARIANCE = FACTOR @ FACTOR.T + torch.diag(0.2 + po.Random(1).normal((SIZE,)).double().square())
MEAN = po.Random(2).normal((SIZE,)).double()
STD = COVARIANCE.diagonal().sqrt()
CORRELATION = COVARIANCE / torch.outer(STD, STD)


def density() -> po.Density:
    precision, mean = torch.linalg.inv(COVARIANCE).float(), MEAN.float()

    def log_density(theta: dict[str, Tensor]) -> Tensor:
        away = theta["x"] - mean
        return -0.5 * ((away @ precision) * away).sum(-1)

    return po.Density(log_density, {"x": torch.zeros(SIZE)}, batched=True)


FAST, SLOW = po.Cosine(0.1), po.Cosine(0.03)
ADVI = po.ADVI("full", learning_rate=SLOW, factor_learning_rate=po.Cosine(0.01))
slow = pytest.mark.slow
CASES = [
    pytest.param(po.ScoreVI("low-rank-plus-diagonal", rank=RANK, learning_rate=FAST), 3000, 0.08, id="score-vi-low-rank"),
    pytest.param(po.ScoreVI("dense", learning_rate=FAST), 2000, 0.08, id="score-vi-dense"),
    pytest.param(po.BaM(draws=100), 40, 0.08, id="bam"),
    pytest.param(ADVI, 15000, 0.1, id="advi-full", marks=slow),
    pytest.param(
        po.SGHMC(
            ensemble=po.MAP(learning_rate=FAST), mass="identity", members=8, warmup=1000, draws_per_chain=500, thin=20,
            noise_correction=False,
        ), 500, 0.1, id="sghmc", marks=slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "steps", "tolerance"), CASES)
def test_every_correlation_is_found(method: po.Algorithm, steps: int, tolerance: float) -> None:
    posterior = po.infer(density(), method, steps)
    draws = torch.stack([draw["x"] for draw in posterior.draws(posterior.finite or DRAWS, stream(0))]).double()
    found = torch.corrcoef(draws.T)
    assert ((draws.mean(0) - MEAN) / STD).abs().max() < tolerance
    assert (draws.std(0) / STD - 1).abs().max() < tolerance
    assert (found - CORRELATION).abs().max() < tolerance
    clear = CORRELATION.abs() > tolerance
    assert (found.sign() == CORRELATION.sign())[clear].all()
