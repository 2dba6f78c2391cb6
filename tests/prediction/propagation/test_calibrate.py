"""Calibration of propagation: scales per site that held-out rows ask for; a way back where the variance does not help."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.problem.network import Network
from posterity.random import Random

SITES = {"1#0", "2#0", "4#0"}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def labelled(rows: int = 157, seed: int = 3) -> tuple[Tensor, Tensor]:
    x = Random(seed).normal((rows, 5))
    return x, (x[:, 0] + 0.8 * Random(seed + 1).normal((rows,)) > 0).long() + (x[:, 1] > 0).long()


@cache
def point() -> po.BayesianModel:
    x, y = labelled(83, seed=11)
    return po.fit(network, (x, y), "categorical", po.MAP(), epochs=40, batch_size=16, seed=0, progress=False)


def model(std: float) -> po.BayesianModel:
    """The mean of a short fit, with a std of our own."""
    fitted = point()
    mean = dict(fitted.posterior.mean())
    posterior = Diagonal(mean, {name: torch.full_like(leaf, std) for name, leaf in mean.items()})
    return po.BayesianModel(fitted.problem, posterior, settings=fitted.settings)


def nll(model: po.BayesianModel, rows: tuple[Tensor, Tensor], **options: Any) -> float:
    return -float(model.predict(rows[0], **options).log_prob(rows[1]).mean())


def test_scales_of_all_sites_lower_the_held_out_nll() -> None:
    one, others = model(0.1), labelled(400, seed=21)
    before = nll(one, others, via="propagation")
    one.calibrate(labelled(), via="propagation")
    assert set(one.propagation.scales) == SITES
    assert one.propagation.helps
    assert nll(one, others, via="propagation") < before
    told = one.calibration
    assert told is not None
    assert told["via"] == "propagation"
    assert told["nll_after"] < told["nll_before"]
    assert told["nll_propagated"] <= told["nll_mean"]
    assert told["checked"] == 52  # a third of 157
    assert told["rows"] == 157


def test_one_scale_of_the_outputs() -> None:
    one = model(0.1).calibrate(labelled(), via="propagation", sites="outputs")
    assert set(one.propagation.scales) == {"outputs"}
    loose = model(0.1)
    loose.propagation = Propagation(scales={"outputs": 4.0})
    plain, wider = (m.predict(labelled()[0], via="propagation").epistemic for m in (model(0.1), loose))
    assert (wider > plain).all()


def test_where_the_variance_does_not_help_the_mean_network_answers() -> None:
    one = model(3.0)  # no network is left under so much noise
    with pytest.warns(po.PosterityWarning, match="rows left out of the fit the variance does not help"):
        one.calibrate(labelled(), via="propagation")
    assert not one.propagation.helps
    assert one.propagation.scales == {}
    x, _ = labelled()
    with pytest.warns(po.PosterityWarning, match="fitted to predictions via 'propagation', not via 'mean'"):
        mean = one.predict(x, via="mean")
    torch.testing.assert_close(one.predict(x, via="propagation").probs, mean.probs)
    assert one.predict(x, via="propagation").epistemic.max() == 0
    one.calibrate(labelled(), via="mean")
    assert one.calibration is not None
    assert one.calibration["via"] == "mean"


def test_activations_take_their_fast_form_where_it_suffices() -> None:
    assert model(0.05).calibrate(labelled(), via="propagation").propagation.fast == {
        "1#0",
        "4#0",
    }  # a norm has one form
    wide = model(0.1)
    wide.propagation = Propagation(Rules(activations="slope"))
    assert wide.calibrate(labelled(), via="propagation").propagation.fast == set()


def test_two_calibrations_agree_and_start_anew() -> None:
    one = model(0.1).calibrate(labelled(), via="propagation")
    first = one.propagation
    assert one.calibrate(labelled(), via="propagation").propagation == first


def test_rules_are_kept() -> None:
    one = model(0.1)
    one.propagation = Propagation(Rules(activations="slope", norms="mean"))
    one.calibrate(labelled(), via="propagation")
    assert one.propagation.rules == Rules(activations="slope", norms="mean")
    with pytest.raises(ValueError, match="activations must be one of"):
        Rules(activations="guess")  # type: ignore[arg-type]


def test_a_saved_run_keeps_its_calibration(tmp_path: Path) -> None:
    one = model(0.1).calibrate(labelled(), via="propagation")
    one.save(tmp_path / "run")
    other = po.load(tmp_path / "run", network())
    assert other.propagation == one.propagation
    assert other.calibration == one.calibration
    x, _ = labelled(7)
    assert torch.equal(other.predict(x, via="propagation").probs, one.predict(x, via="propagation").probs)


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [("gaussian", 1), ("heteroscedastic", 2), ("poisson", 1), ("student-t", 1)]
)
@pytest.mark.filterwarnings("ignore:on 20 rows left out")
def test_numbers_are_calibrated_too(likelihood: str, outputs: int) -> None:
    x = Random(5).normal((120, 5))
    y = (2 * x[:, 0]).exp().round().clamp(max=30) if likelihood == "poisson" else x[:, 0] + Random(6).normal((120,))
    with Random(0).forked():
        net = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, outputs))
    one = po.fit(net, (x[:60], y[:60]), likelihood, po.MeanFieldVI(), epochs=20, seed=0, progress=False)
    before = nll(one, (x[60:], y[60:]), via="propagation")
    one.calibrate((x[60:], y[60:]), via="propagation")
    assert nll(one, (x[60:], y[60:]), via="propagation") <= before + 1e-6
    if likelihood == "poisson":
        assert one.temperature == 1.0


def test_an_ensemble_of_points_gets_a_temperature() -> None:
    x, y = labelled()
    one = po.fit(network, (x, y), "categorical", po.DeepEnsemble(2), epochs=5, seed=0, progress=False)
    one.calibrate(labelled(seed=9), via="propagation")
    assert one.propagation.scales == {}
    assert one.propagation.helps


@pytest.mark.parametrize("via", ["mean", "propagation"])
def test_rows_of_one_class_calibrate_nothing(via: str) -> None:
    x, y = labelled()
    with pytest.raises(po.DataError, match="all 157 calibration targets are 1"):
        model(0.1).calibrate((x, torch.ones_like(y)), via=via)


def test_bad_calibrations_change_nothing() -> None:
    x, y = labelled()
    one = model(0.1)
    with pytest.raises(po.CompatibilityError, match="sites must be 'all' or 'outputs'"):
        one.calibrate((x, y), via="propagation", sites="every")  # type: ignore[arg-type]
    with pytest.raises(po.DataError, match="has 2 rows"):
        one.calibrate((x[:2], torch.tensor([0, 1])), via="propagation")
    with pytest.raises(po.DataError, match="no rows"):
        one.calibrate((x[:0], y[:0]), via="propagation")
    assert one.propagation == Propagation()
    assert one.calibration is None
    assert one.temperature == 1.0


def test_sites_have_the_same_keys_in_the_graph() -> None:
    from posterity.prediction.propagation.graph import graph_of
    from posterity.prediction.propagation.propagate import propagate, weight_values
    from posterity.prediction.propagation.run import Pass, pass_of

    one = model(0.1)
    settings = Propagation(scales={"1#0": 3.0, "2#0": 0.5, "outputs": 2.0}, fast=frozenset({"4#0"}))
    x, values = labelled(9)[0], weight_values(one.posterior)
    with torch.no_grad():
        found = propagate(one.problem, values, x, pass_of(settings))
        mean, var = graph_of(one.problem.network, values, x, pass_of(settings))(x)
        plain = propagate(one.problem, values, x, Pass())
    torch.testing.assert_close(mean, found.mean)
    torch.testing.assert_close(var, found.var)
    assert (var > plain.var).all()
    assert isinstance(one.problem.network, Network)
