"""The bench of forecasts: its splits, what its claims are made of, and two cells of it from end to end."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

from posterity.bench import forecast
from posterity.bench.forecast_data import SETS, parts

needs_data = pytest.mark.skipif(not os.environ.get("POSTERITY_DATA"), reason="POSTERITY_DATA names no folder")


def row(method: str, seed: int, **values: Any) -> dict[str, Any]:
    return {"data": "illness", "method": method, "seed": seed, **dict.fromkeys(forecast.FIELDS, 0.5), **values}


def test_gains_are_paired_by_seed_and_better_above_0() -> None:
    own, other = {0: 1.0, 1: 1.2, 2: 1.7}, {0: 1.3, 1: 1.3, 2: 1.9}
    rows = [row("score-vi", seed, nll=nll) for seed, nll in own.items()]
    rows += [row(method, seed, nll=nll) for method in ("map", "advi", "deep-ensemble") for seed, nll in other.items()]
    found = forecast.claims(rows)
    assert found["illness_score_vi_nll"] == pytest.approx(1.3)
    assert found["illness_nll_gain_over_advi"] == pytest.approx(0.2)
    assert found["illness_nll_gain_over_advi_error"] == pytest.approx(0.1 / math.sqrt(3))
    assert found["illness_mse_gain_over_map"] == 0


def test_what_is_not_finite_is_no_claim() -> None:
    found = forecast.claims([row("score-vi", 0, nll=None)])
    assert "illness_score_vi_nll" not in found
    assert "illness_nll_gain_over_map" not in found
    assert found["illness_score_vi_mse"] == 0.5


def test_a_normal_forecast_has_the_figures_of_a_normal() -> None:
    """Targets N(0, 1) and a network that says 0: mse 1, mae 0.80, crps 0.564, and coverages at their levels."""
    import posterity as po

    y = torch.randn(3000, 5, 2, generator=torch.Generator().manual_seed(0))
    layer = torch.nn.Linear(2, 10)
    torch.nn.init.zeros_(layer.bias)
    network = torch.nn.Sequential(torch.nn.Flatten(), layer, torch.nn.Unflatten(1, (5, 2)))
    x = torch.zeros(3000, 1, 2)
    model = po.fit(network, (x, y), "gaussian", po.MAP(), epochs=2, batch_size=1000, progress=False)
    found = forecast.measured(model, x, y)
    # 30,000 values: standard errors are at most 0.008; 6 steps of training move mean and std by less than 0.05
    expected = {"mse": 1, "mae": 0.798, "nll": 1.419, "crps": 0.564, "coverage_0.5": 0.5, "coverage_0.9": 0.9}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=0.05), name


@needs_data
@pytest.mark.parametrize("name", ["illness"])
def test_windows_do_not_reach_over_their_part(name: str) -> None:
    data, one = parts(name), SETS[name]
    train = round(0.7 * 966)
    assert len(data.train[0]) == train - 3 * one.horizon + 1
    # the first validation window looks back on the last training times, and its target is the first validation time
    assert torch.equal(data.validation[0][0, -one.horizon :], data.train[1][-1])
    whole = torch.cat([data.train[0][0], data.train[1][:, -1]])  # every training time but the first targets'
    assert whole.mean(0).abs().max() < 0.1
    for past, ahead in data:
        assert past.shape[1:] == (2 * one.horizon, 7)
        assert torch.equal(past[one.horizon, -one.horizon :], ahead[0])


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("method", list(forecast.METHODS))
def test_a_cell_has_every_figure(method: str) -> None:
    (found,) = forecast.cells(True, False)[f"illness, {method}, seed 1"]()
    assert all(math.isfinite(found[name]) for name in forecast.FIELDS)
    assert (found["method"], found["seed"]) == (method, 1)
