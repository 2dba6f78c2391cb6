"""Logistic regression against a long run of the no-U-turn sampler, kept in logistic_nuts.json.

40 rows, four weights, two of them correlated by -0.9: a posterior that is nearly normal (skewness at most 0.19). What a
family cannot say is part of the expectation: independent normals have stds of 1 / sqrt(P_ii), P the inverse covariance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.truth.seeds import ROTATION, stream
from torch import Tensor, nn

import posterity as po

FILE = json.loads((Path(__file__).parent / "logistic_nuts.json").read_text("utf-8"))
MEAN, COVARIANCE = (torch.tensor(FILE[name], dtype=torch.float64) for name in ("mean", "covariance"))
STD = COVARIANCE.diagonal().sqrt()
DRAWS = 4000  # stds are off by 1 / sqrt(2 * 4000) = 1.1 %, correlations by at most 1.6 %


class Expected(NamedTuple):
    """
    Args:
        spread: "joint" or "diagonal".
        mean: largest error in stds; std: of stds, as a share; correlation: of correlations.
    """

    spread: str
    mean: float
    std: float
    correlation: float = 0.1


# Normals that are fitted to a skewed density: the mode is 0.2 stds from the mean, and the curvature there is 5 % sharper.
# One run each, whose last steps are noisy: a limit is 1.5 times the worst of 8 seeds. The sampler has 400 draws' worth of
# independent ones: means to 5 % of a std, stds to 3.5 %.
DENSE, VARIATIONAL = Expected("joint", 0.06, 0.06), Expected("joint", 0.09, 0.06)
DIAGONAL, NOISY = Expected("diagonal", 0.15, 0.15), Expected("diagonal", 0.17, 0.22)
LOW_RANK = Expected("joint", 0.1, 0.31, 0.24)
SAMPLED, AT_THE_MODE = Expected("joint", 0.1, 0.08, 0.08), Expected("joint", 0.3, 0.1, 0.06)

FAST, SLOW = po.Cosine(0.1), po.Cosine(0.05)
LOW = po.Cosine(0.02)
WHITENED: dict[str, Any] = {"update": "whitened", "learning_rate": LOW, "std_learning_rate": LOW}
slow = pytest.mark.slow
CASES = [
    pytest.param(po.ScoreVI("dense", learning_rate=FAST), 2000, DENSE, id="score-vi-dense"),
    pytest.param(po.ScoreVI(**WHITENED), 4000, NOISY, id="score-vi"),
    pytest.param(po.LastLayerLaplace(base=po.MAP(learning_rate=FAST)), 500, AT_THE_MODE, id="laplace"),
    pytest.param(
        po.ScoreVI("low-rank-plus-diagonal", rank=2), 2000, LOW_RANK, id="score-vi-low-rank", marks=slow
    ),
    pytest.param(
        po.ADVI("full", learning_rate=SLOW, factor_learning_rate=po.Cosine(0.02)), 3000, VARIATIONAL, id="advi-full",
        marks=slow,
    ),
    pytest.param(
        po.MeanFieldVI(learning_rate=SLOW, std_learning_rate=SLOW), 2000, DIAGONAL, id="mean-field", marks=slow
    ),
    pytest.param(
        po.IVON(learning_rate=FAST, init_hessian=1.0, beta2=0.99), 2000, NOISY, id="ivon", marks=slow
    ),
    pytest.param(
        po.SGHMC(
            ensemble=po.MAP(learning_rate=FAST), members=4, warmup=500, draws_per_chain=1000, thin=5,
            noise_correction=False,
        ),
        300, SAMPLED, id="sghmc", marks=slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "steps", "expected"), CASES)
def test_the_posterior_is_that_of_a_long_run(method: po.Algorithm, steps: int, expected: Expected) -> None:
    x, y = torch.tensor(FILE["x"]), torch.tensor(FILE["y"])
    model = po.fit(
        lambda: nn.Linear(3, 1), (x, y), "bernoulli", method, po.Normal(FILE["prior_std"]), batch_size=len(x),
        epochs=steps, seed=ROTATION, progress=False,
    )  # fmt: skip
    draws = joined(model.posterior)
    covariance = (
        COVARIANCE if expected.spread == "joint" else torch.linalg.inv(COVARIANCE).diagonal().reciprocal().diag()
    )
    stds = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - MEAN) / STD).abs().max() < expected.mean
    assert (draws.std(0) / stds - 1).abs().max() < expected.std
    correlations = torch.corrcoef(draws.T) - covariance / torch.outer(stds, stds)
    assert correlations.abs().max() < expected.correlation


def joined(posterior: po.Posterior) -> Tensor:
    """[draws, 4] float64: the weights, then the bias."""
    draws = posterior.draws(posterior.finite or DRAWS, stream(0))
    return torch.stack([torch.cat([draw["weight"].flatten(), draw["bias"]]) for draw in draws]).double()


def test_the_long_run_went_well() -> None:
    assert FILE["divergent"] == 0
    assert max(FILE["r_hat"]) < 1.001
    assert (torch.tensor(FILE["mean_error"]) < 0.005 * STD).all()
