"""The sixteen densities against their reference draws.

Where draws come from p, Stein's identities hold: E[grad log p] = 0 and E[(x - m) grad log p^T] = -I. In the coordinates
that whiten the draws both are of unit scale for every posterior, however correlated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

from posterity.bench.posteriordb import CHAINS, Posterior16, load, names
from posterity.bench.transforms import forward
from posterity.errors import DataError
from posterity.random import Random

needs_data = pytest.mark.skipif(
    "POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA names no folder with open/posteriordb"
)

DIMS = {
    "arK-arK": 7,
    "arma-arma11": 4,
    "bball_drive_event_0-hmm_drive_0": 6,
    "earnings-logearn_interaction": 5,
    "eight_schools-eight_schools_noncentered": 10,
    "garch-garch11": 4,
    "gp_pois_regr-gp_pois_regr": 13,
    "gp_pois_regr-gp_regr": 3,
    "hmm_example-hmm_example": 4,
    "kidiq-kidscore_interaction": 5,
    "kidiq-kidscore_momiq": 3,
    "kilpisjarvi_mod-kilpisjarvi": 3,
    "low_dim_gauss_mix-low_dim_gauss_mix": 5,
    "mesquite-logmesquite": 8,
    "nes2000-nes": 10,
    "sblrc-blr": 6,
}

# Batch means of 50 blocks in the order of the chains are nearly independent, whatever the draws' autocorrelation, so z is
# Student's t with 49 degrees of freedom. There are 800 of them over all posteriors, and P(|t_49| > 5.5) = 1.4e-6: by chance
# one test in a thousand would fail, once, since the draws are fixed.
BLOCKS, LIMIT = 50, 5.5


def worst(log_prob: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Largest |z| over both identities, and the largest standard error."""
    scores = []
    for part in x.split(250):
        leaf = part.clone().requires_grad_()
        scores.append(torch.autograd.grad(log_prob(leaf).sum(), leaf)[0])
    factor = torch.linalg.cholesky(torch.cov(x.mT))
    white = torch.linalg.solve_triangular(factor, (x - x.mean(0)).mT, upper=False).mT
    score = torch.cat(scores) @ factor
    outer = white.unsqueeze(-1) * score.unsqueeze(-2) + torch.eye(x.shape[1], dtype=x.dtype)
    values = torch.cat([score, outer.flatten(1)], 1).unflatten(0, (BLOCKS, -1)).mean(1)
    errors = values.std(0) / BLOCKS**0.5
    return (values.mean(0) / errors).abs().max().item(), errors.max().item()


def thinned(posterior: Posterior16) -> Tensor:
    return posterior.reference[::2]  # half of ten thousand, still in the order of the chains


@needs_data
@pytest.mark.parametrize("name", names())
def test_the_draws_come_from_the_density(name: str) -> None:
    posterior = load(name)
    z, error = worst(posterior.log_prob, thinned(posterior))
    assert z < LIMIT
    # the identities are about numbers of size one: 5.5 errors of less than this are a finding
    assert error < 0.15


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        "eight_schools-eight_schools_noncentered",
        "gp_pois_regr-gp_regr",
        "hmm_example-hmm_example",
        "mesquite-logmesquite",
    ],
)
def test_without_the_jacobian_they_do_not(name: str) -> None:
    posterior = load(name)

    def bare(x: Tensor) -> Tensor:
        return posterior.model.log_prob(forward(posterior.model.layout, x)[0])

    assert worst(bare, thinned(posterior))[0] > 1.5 * LIMIT


@needs_data
@pytest.mark.parametrize("name", names())
def test_constrain_gives_the_published_draws(name: str) -> None:
    posterior = load(name)
    assert posterior.reference.shape == (CHAINS * 1000, DIMS[name])
    assert posterior.reference.dtype == torch.float64
    assert posterior.dim == DIMS[name]
    assert bool(posterior.reference.isfinite().all())
    found = posterior.constrain(posterior.reference)
    assert found.shape == (CHAINS * 1000, len(posterior.columns))
    # a simplex row of float32 numbers sums to one within 1.2e-7; the rest goes there and back in float64
    torch.testing.assert_close(found, posterior.constrained, rtol=1e-6, atol=3e-7)


@needs_data
@pytest.mark.parametrize("name", names())
def test_the_density_is_the_one_of_log_prob(name: str) -> None:
    posterior = load(name)
    x = posterior.reference[::1999]
    leaf = x.clone().requires_grad_()
    values = posterior.log_prob(leaf)
    (gradients,) = torch.autograd.grad(values.sum(), leaf)
    for row, value, gradient in zip(x, values, gradients):
        found, score, info = posterior.density.nll({"x": row}, None, Random(0))
        # the order of sums differs between one and many; the Poisson process solves a kernel of condition 1e11
        torch.testing.assert_close(found, -value.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(score["x"], -gradient, rtol=1e-5, atol=1e-5)
        assert bool(info.finite)
    start = posterior.density.start()["x"]
    assert start.shape == (posterior.dim,)
    assert bool(posterior.density.nll({"x": start}, None, Random(0))[2].finite)


def by_torch(name: str, data: dict[str, Any], p: dict[str, Tensor]) -> Tensor:
    """log density of the constrained parameters, where the data say too little of the priors for draws to tell."""
    y = torch.tensor(data["kid_score" if "kid" in name else "y"], dtype=torch.float64)
    normal, cauchy = distributions.Normal(0.0, 10.0), distributions.HalfCauchy(y.new_tensor(2.5))
    if name == "low_dim_gauss_mix-low_dim_gauss_mix":
        weights = distributions.Categorical(torch.cat([p["theta"], 1 - p["theta"]]))
        mixed = distributions.MixtureSameFamily(weights, distributions.Normal(p["mu"], p["sigma"]))
        prior = distributions.Normal(0.0, 2.0).log_prob(torch.cat([p["mu"], p["sigma"]])).sum()
        return mixed.log_prob(y).sum() + prior + distributions.Beta(5.0, 5.0).log_prob(p["theta"]).sum()
    if name == "kidiq-kidscore_momiq":
        mean = p["beta"][0] + p["beta"][1] * torch.tensor(data["mom_iq"], dtype=torch.float64)
        return distributions.Normal(mean, p["sigma"]).log_prob(y).sum() + cauchy.log_prob(p["sigma"]).sum()
    if name == "sblrc-blr":
        mean = torch.tensor(data["X"], dtype=torch.float64) @ p["beta"]
        prior = normal.log_prob(torch.cat([p["beta"], p["sigma"]])).sum()
        return distributions.Normal(mean, p["sigma"]).log_prob(y).sum() + prior
    coefficients = torch.cat([p["alpha"], p["beta"]]) if "alpha" in p else p["beta"]
    lagged = torch.stack([y[5 - k : len(y) - k] for k in range(1, 6)], 1)
    likelihood = distributions.Normal(coefficients[0] + lagged @ coefficients[1:], p["sigma"]).log_prob(y[5:]).sum()
    return likelihood + normal.log_prob(coefficients).sum() + cauchy.log_prob(p["sigma"]).sum()


@needs_data
@pytest.mark.parametrize(
    "name", ["arK-arK", "kidiq-kidscore_momiq", "low_dim_gauss_mix-low_dim_gauss_mix", "sblrc-blr"]
)
def test_a_density_with_weak_priors_is_the_one_of_torch(name: str) -> None:
    posterior = load(name)
    folder = Path(os.environ["POSTERITY_DATA"]) / "open" / "posteriordb" / name
    data = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    # the second is far out, where the priors show
    scales = torch.tensor([[1.0], [0.6], [1.1]])
    rows = [forward(posterior.model.layout, x)[0] for x in scales * posterior.reference[:3]]
    found = [posterior.model.log_prob(p).item() for p in rows]
    wanted = [by_torch(name, data, p).item() for p in rows]
    # up to a constant; a thousand terms of float64, of one sign
    assert found[1] - found[0] == pytest.approx(wanted[1] - wanted[0], rel=1e-10)
    assert found[2] - found[0] == pytest.approx(wanted[2] - wanted[0], rel=1e-10)


@needs_data
def test_a_regression_is_least_squares_at_its_mode() -> None:
    """Under a flat prior on beta the score by beta vanishes at the least-squares fit, whatever sigma."""
    posterior = load("kidiq-kidscore_momiq")
    x = torch.tensor([25.799778, 0.6099746, 2.9], dtype=torch.float64)  # the fit, to the digits given
    _, score, _ = posterior.density.nll({"x": x}, None, Random(0))
    # X^T X is [[434, 43400], [43400, 4.4e6]] and sigma^2 330: the digits left out move the score by 4e-6 and 4e-4
    assert score["x"][0].abs() < 1e-5
    assert score["x"][1].abs() < 1e-3


def test_names_are_sixteen() -> None:
    assert names() == list(DIMS)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(DataError, match=r"no reference posterior 'kidiq'.*kidiq-kidscore_momiq"):
        load("kidiq")


def test_without_the_variable_load_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTERITY_DATA", raising=False)
    with pytest.raises(DataError, match="POSTERITY_DATA, which is not set"):
        load("arK-arK")


def test_a_folder_without_the_posterior_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"arK-arK lacks data.json and draws.npz"):
        load("arK-arK")
