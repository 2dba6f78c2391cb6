"""What is said about rows: spreads that grow, add up and keep their units, and intervals that count what they hold."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import posterity as po
from posterity.evaluation.diagnosis import diagnose
from posterity.evaluation.intervals import interval_coverage
from posterity.evaluation.predictions import as_predictive
from posterity.problem.likelihoods import Gaussian
from posterity.random import Random

X, NOISE = Random(0).fold("x").normal((400, 1)), Random(0).fold("noise").normal((400,))


def line(y: Tensor, x: Tensor = X, likelihood: object = "gaussian") -> po.BayesianModel:
    """A linear network and the exact posterior of its weights."""
    return po.fit(
        lambda: nn.Linear(1, 1), (x, y), likelihood, po.LastLayerLaplace(), epochs=30, seed=0, progress=False
    )  # fmt: skip


def test_the_epistemic_std_grows_away_from_the_data() -> None:
    """Laplace #100, #142"""
    x = torch.linspace(0, 8, 150)[:, None]
    y = torch.sin(x[:, 0]) + 0.3 * Random(1).normal((150,))
    model = po.fit(
        lambda: nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)), (x / 4 - 1, y), "gaussian",
        po.LastLayerLaplace(), epochs=60, batch_size=50, seed=0, progress=False,
    )  # fmt: skip
    inside = model.predict(torch.linspace(0, 8, 20)[:, None] / 4 - 1).epistemic
    below, above = model.predict(torch.tensor([[-5.0], [13.0]]) / 4 - 1).epistemic
    assert min(below, above) > 2 * inside.mean()
    finding = diagnose(model, (torch.linspace(-5, 13, 60)[:, None] / 4 - 1, torch.zeros(60)))[0]
    assert finding.check == "epistemic spread"
    assert finding.values["relative_spread"] > 0.3


def test_pure_noise_is_aleatoric_and_part_of_the_std() -> None:
    """lightning-uq-box #40"""
    pred = line(NOISE).predict(X)
    assert 0.9 < pred.std.mean() < 1.15
    assert pred.epistemic.mean() < 0.12
    torch.testing.assert_close(pred.std**2, pred.epistemic**2 + pred.aleatoric**2, rtol=1e-4, atol=0)


def test_a_std_is_scaled_and_never_moved() -> None:
    """gpytorch #2476, deepchem #1377, chemprop #1108"""
    plain, scaled = line(NOISE).predict(X), line(1000 + 10 * NOISE).predict(X)
    assert 9 < scaled.std.mean() < 11.5
    for name in ("std", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(scaled, name), 10 * getattr(plain, name), rtol=1e-3, atol=0)
    torch.testing.assert_close(scaled.mean, 1000 + 10 * plain.mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(scaled.var, 100 * plain.var, rtol=2e-3, atol=0)


def test_std_is_a_std_and_var_a_variance() -> None:
    """skpro #455, #755"""
    pred = as_predictive({"mean": torch.zeros(1), "std": torch.full((1,), 3.0)})
    assert (pred.std.item(), pred.var.item()) == (3, 9)
    lower, upper = pred.interval(0.9)
    assert (lower.item(), upper.item()) == pytest.approx(stats.norm(0, 3).interval(0.9), rel=1e-6)


def test_what_was_scaled_can_be_read_and_turned_off() -> None:
    """botorch #2547, #2812"""
    y = 1000 + 10 * NOISE
    said = line(y).problem.likelihood
    assert said.scaling.mean.item() == pytest.approx(y.double().mean().item())
    assert said.scaling.std.item() == pytest.approx(y.double().std(correction=0).item())
    assert "mean=" in repr(said.scaling)
    off = line(NOISE, likelihood=Gaussian(standardize=False)).problem.likelihood.scaling
    assert (off.mean.item(), off.std.item()) == (0, 1)


def test_missing_targets_are_named_row_by_row() -> None:
    """etna #899, #375: no interval is made of rows that are not there."""
    x, y = torch.linspace(0, 1, 50)[:, None], torch.arange(50.0)
    model = line(y, x)
    y[[3, 7, 49]] = math.nan
    given = {"mean": torch.zeros(50), "lower": -torch.ones(50), "upper": torch.ones(50)}
    for ask in (lambda: line(y, x), lambda: po.evaluate(model, (x, y)), lambda: po.evaluate(given, y)):
        with pytest.raises(po.DataError, match=r"NaN or infinity in the targets in 3 rows \(rows 3, 7, 49\)"):
            ask()


@pytest.mark.parametrize("inside", [40, 36, 30])
def test_a_coverage_of_40_rows_has_its_count_and_exact_interval(inside: int) -> None:
    """skforecast #885"""
    target = torch.cat([torch.zeros(inside), torch.full((40 - inside,), 2.0)])
    found = interval_coverage(-torch.ones(40), torch.ones(40), target)
    exact = stats.binomtest(inside, 40).proportion_ci(0.95, "exact")
    assert (found.value, found.n) == (pytest.approx(inside / 40), 40)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_posterior_too_large_is_refused_with_its_size_before_it_is_made() -> None:
    """Laplace #138, #281, #81"""
    x = Random(2).normal((20, 128))
    likelihood = po.Categorical(classes=tuple(range(3100)))
    with pytest.raises(po.CompatibilityError, match=r"399900 weights.*1191\.5 GiB.*structure='kronecker'"):
        po.fit(nn.Linear(128, 3100), (x, torch.arange(20)), likelihood, po.LastLayerLaplace(), epochs=1, seed=0)


def test_coverage_is_told_apart_by_group() -> None:
    """fortuna #8, #168"""
    quiet = torch.arange(400) % 2 == 0
    y = torch.where(quiet, 0.1, 2.0) * NOISE
    result = po.evaluate({"mean": torch.zeros(400), "std": y.std().expand(400)}, y, groups=quiet.tolist())
    groups = result.rows[0]["details"]["groups"]
    held = {
        group: value
        for group, metric, value in zip(groups["group"], groups["metric"], groups["value"])
        if metric == "interval_coverage"
    }
    assert held["True"] == 1
    assert held["False"] < 0.9
