"""Checks of a fitted model: each finds the fault that it is for, and leaves a sound model alone."""

import pytest
import torch
from torch import nn

import posterity as po
from posterity.evaluation.diagnosis import diagnose
from posterity.posterior.diagonal import Diagonal


def data(rows=211, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rows, 3, generator=generator) - 1
    return x, 100 + 20 * x[:, 0] + 5 * torch.randn(rows, generator=generator)


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.fixture(scope="module")
def model():
    return po.fit(
        network, data(), "gaussian", po.MeanFieldVI(learning_rate=po.Cosine(3e-2)), po.Normal(1.0, fan_in=True),
        epochs=150, validation=data(53, 1), seed=0, batch_size=32, progress=False,
    )  # fmt: skip


def with_stds(model, factor):
    """The same model with all stds of its posterior times a factor."""
    posterior = Diagonal(model.posterior.means, {name: factor * std for name, std in model.posterior.stds.items()})
    return po.BayesianModel(model.problem, posterior, settings=model.settings, history=model.history)


def found(model, **options):
    return {each.check: each for each in diagnose(model, data(83, 2), **options)}


def test_a_sound_model_is_left_alone(model):
    findings = found(model, data_size=211)
    statuses = {name: each.status for name, each in findings.items()}
    assert set(statuses.values()) <= {"ok"}, [each for each in findings.values() if each.status != "ok"]
    assert all(each.message and not each.remedy for each in findings.values())


def test_a_posterior_without_spread(model):
    assert found(with_stds(model, 1e-4))["epistemic spread"].status == "fault"
    point = po.fit(network, data(), "gaussian", epochs=1, progress=False)
    finding = found(point)["epistemic spread"]
    assert finding.status == "warning"
    assert "deep-ensemble" in finding.remedy


def test_an_epistemic_std_that_is_the_same_everywhere(model):
    stds = {name: std if name == "2.bias" else 0 * std for name, std in model.posterior.stds.items()}
    flat = po.BayesianModel(model.problem, Diagonal(model.posterior.means, stds), settings=model.settings)
    assert found(flat)["epistemic spread"].status == "warning"


def test_draws_that_are_worse_than_their_mean(model):
    finding = found(with_stds(model, 30.0))["draws against the mean"]
    assert finding.status == "fault"
    assert finding.values["high"] < 0


def test_propagation_that_parts_from_draws(model):
    """Equal positions, averaged: propagation takes them as independent."""
    x = torch.randn(77, 2, 1, generator=torch.Generator().manual_seed(3)).expand(77, 2, 11)
    net = nn.Sequential(nn.Conv1d(2, 8, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 1))
    method = po.MeanFieldVI(learning_rate=po.Cosine(3e-2))
    pooled = po.fit(net, (x, x[:, 0, 0] + x[:, 1, 0]), "gaussian", method, epochs=3, seed=0, progress=False)
    stds = {name: 0.0 * std if name.startswith("3") else 0.3 + 0 * std for name, std in pooled.posterior.stds.items()}
    pooled.posterior = Diagonal(pooled.posterior.means, stds)  # the convolution alone is uncertain
    told = [each for each in diagnose(pooled, (x, x[:, 0, 0])) if each.check == "propagation"]
    assert [each.status for each in told] == ["warning"]
    values = told[0].values
    assert values["layer"] == "1"
    assert [row["path"] for row in values["layers"]] == ["0", "1", "2", "3", ""]
    # 1/11 of a variance that 64 draws know to 18 % of each of 24 weights
    assert values["var_ratio"] == pytest.approx(1 / 11, rel=0.4)
    assert "'1' (AdaptiveAvgPool1d)" in told[0].message
    assert told[0].remedy == "calibrate(held_out, via='propagation'), Rules(covariance=True) or via='draws'"

    pooled.propagation = po.Propagation(scales={"1#0": 3.0})
    calibrated = next(each for each in diagnose(pooled, (x, x[:, 0, 0])) if each.check == "propagation")
    assert calibrated.status == "ok"
    assert calibrated.values == values  # of the rules, not of what the calibration made of them
    pooled.propagation = po.Propagation(po.Rules(covariance=True))
    covaried = next(each for each in diagnose(pooled, (x, x[:, 0, 0])) if each.check == "propagation")
    assert covaried.status == "ok"
    assert covaried.values["layer"] is None


def test_what_cannot_be_propagated_is_skipped_with_its_reason(model):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()[:, :1]

    odd = po.fit(nn.Sequential(nn.Linear(3, 5), Odd()), data(), "gaussian", po.IVON(), epochs=1, progress=False)
    finding = found(odd)["propagation"]
    assert finding.status == "skipped"
    assert "no rule says what fft_rfft does to means and variances in the module '1'" in finding.message
    point = po.fit(network, data(), "gaussian", epochs=1, progress=False)
    assert found(point)["propagation"].status == "skipped"
    correlated = po.fit(network, data(), "gaussian", po.LastLayerLaplace(), epochs=5, progress=False)
    assert found(correlated)["propagation"].status in ("ok", "warning")  # and no warning beside the finding


@pytest.mark.parametrize(("std", "status"), [(5.0, "ok"), (9.0, "warning"), (1.0, "fault"), (50.0, "fault")])
def test_noise_that_was_not_fitted(std, status):
    fixed = po.fit(network, data(), po.Gaussian(std=std), epochs=200, batch_size=32, progress=False)
    finding = found(fixed)["noise"]
    assert finding.status == status, finding
    if status != "ok":
        assert "std=" in finding.remedy


def test_n_that_is_not_what_was_there(model):
    finding = found(model, data_size=422)["N"]
    assert finding.status == "fault"
    assert finding.values == {"N": 211, "data_weight": 1.0, "effective": 211.0, "expected": 422}
    weighted = po.fit(network, data(), "gaussian", epochs=1, data_weight=10, progress=False)
    assert found(weighted)["N"].status == "warning"


def test_a_posterior_that_is_its_prior(model):
    stds = {name: torch.full_like(std, model.problem.prior.stds[name]) for name, std in model.posterior.stds.items()}
    same = po.BayesianModel(model.problem, Diagonal(model.posterior.means, stds), settings=model.settings)
    assert found(same)["posterior against prior"].status == "warning"


@pytest.mark.parametrize(
    ("nlls", "status"), [([3.0, 2.0, 1.9, 1.899], "ok"), ([3.0, 2.0, 1.0], "warning"), ([3.0, 1.0, 2.0], "warning")]
)
def test_histories(model, nlls, status):
    history = [{"val_nll": nll} for nll in nlls]
    told = po.BayesianModel(model.problem, model.posterior, settings=model.settings, history=history)
    assert found(told)["training"].status == status


def test_classes_have_no_noise():
    x = torch.randn(77, 3, generator=torch.Generator().manual_seed(3))
    y = (x[:, 0] > 0).long()
    model = po.fit(lambda: nn.Linear(3, 2), (x, y), method=po.DeepEnsemble(3), epochs=3, progress=False)
    findings = {each.check: each for each in diagnose(model, (x, y))}
    assert findings["noise"].status == "skipped"
    assert findings["draws against the mean"].status == "skipped"
    assert "mutual information" in findings["epistemic spread"].message
