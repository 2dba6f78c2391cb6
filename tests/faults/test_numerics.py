"""Numbers at the edge of what floats hold: nothing finite turns into NaN in silence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.predictive import reducer
from posterity.problem.likelihoods import Categorical, Heteroscedastic
from posterity.problem.magnitude import warn_of_magnitude
from posterity.random import Random

X = Random(0).fold("x").normal((40, 3))
Y = X[:, 0] + 0.1 * Random(1).normal((40,))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def metrics(predictions: Any, targets: Any, **options: Any) -> dict[str, float]:
    found = po.evaluate(predictions, targets, **options).rows[0]["metrics"]
    return {name: metric.value for name, metric in found.items()}


def test_a_probability_of_0_adds_nothing_to_an_entropy() -> None:
    """trl #7221, uncertainty-baselines #810"""
    reduced = reducer(Categorical())
    reduced.add(torch.tensor([[1.0, 0.0, 0.0]]).log())
    pred = reduced.result()
    assert (pred.entropy.item(), pred.aleatoric.item(), pred.epistemic.item()) == (0.0, 0.0, 0.0)
    found = metrics(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), [0, 1])
    assert found["nll"] == pytest.approx(math.log(2) / 2)
    assert all(math.isfinite(found[name]) for name in ("nll", "brier", "ece", "accuracy"))


def test_thirty_members_that_agree_disagree_on_nothing_in_any_of_a_thousand_rows() -> None:
    """Active-Learning-Bayesian-CNN #3: not -5e-7 in 403 of them."""
    logits, reduced = Random(2).normal((1000, 5)), reducer(Categorical())
    for _ in range(30):
        reduced.add(logits)
    assert not reduced.result().epistemic.any()


TINY = math.exp(-120)  # 8e-53, which float32 takes for 0
STARTS = {
    "mean-field": lambda: po.MeanFieldVI(init_std=TINY),
    "score-vi": lambda: po.ScoreVI(init_std=TINY),
    "score-vi-dense": lambda: po.ScoreVI("dense", init_std=TINY),
    "score-vi-low-rank": lambda: po.ScoreVI("low-rank-plus-diagonal", init_std=TINY),
    "advi": lambda: po.ADVI(init_std=TINY),
    "fisher-vi": lambda: po.FisherVI(init_std=TINY),
    "gsm": lambda: po.GSM(init_std=TINY),
    "rank-one": lambda: po.RankOneVI(init_std=TINY),
    "normal prior": lambda: po.Normal(TINY),
    "laplace prior": lambda: po.Laplace(TINY),
    "prior of a layer": lambda: po.Normal({"0.*": TINY, "*": 1.0}),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_std_that_floats_take_for_0_is_refused_by_name(name: str) -> None:
    """neural-lam #537"""
    with pytest.raises(ValueError, match=r"(init_std|scale) must be at least 1e-08, got 7\.6"):
        STARTS[name]()


SMALLEST = [
    po.MeanFieldVI(init_std=1e-8), po.ScoreVI(init_std=1e-8), po.ADVI(init_std=1e-8), po.FisherVI(init_std=1e-8),
    po.ScoreVI("low-rank-plus-diagonal", init_std=1e-8),
]  # fmt: skip


@pytest.mark.parametrize("method", SMALLEST, ids=lambda method: method.name)
def test_the_smallest_std_that_is_taken_is_trained(method: Any) -> None:
    model = po.fit(network, (X, Y), "gaussian", method, epochs=2, batch_size=20, seed=0, progress=False)
    assert [line["skipped"] for line in model.history] == [0, 0]
    assert all(leaf.isfinite().all() for leaf in model.posterior.tensors().values())
    assert (model.predict(X).std > 0).all()


@pytest.mark.parametrize("prior", [1e-8, 1e-4])
@pytest.mark.parametrize(
    "method", [po.MAP(), po.MeanFieldVI(), po.IVON(), po.ScoreVI()], ids=lambda method: method.name
)
def test_the_smallest_prior_that_is_taken_gives_numbers(method: Any, prior: float) -> None:
    model = po.fit(network, (X, Y), "gaussian", method, prior=prior, epochs=2, batch_size=20, seed=0, progress=False)
    assert model.predict(X).std.isfinite().all()


def test_a_std_of_0_and_a_log_std_of_minus_120_are_predicted_with() -> None:
    model = po.fit(
        lambda: nn.Linear(3, 2), (X, Y), "heteroscedastic", po.MeanFieldVI(), steps=1, seed=0, progress=False
    )
    mean = {name: torch.zeros_like(leaf) for name, leaf in model.posterior.mean().items()}
    mean["bias"] = torch.tensor([0.0, -120.0])
    still = Diagonal(mean, {name: torch.full_like(leaf, -120.0).exp() for name, leaf in mean.items()})
    pred = po.BayesianModel(model.problem, still, settings=model.settings).predict(X, draws=3)
    assert not pred.epistemic.any()
    assert (pred.std > 0).all()
    assert pred.log_prob(Y).isfinite().all()
    likelihood = Heteroscedastic(standardize=False)
    outputs = torch.tensor([[0.0, -120.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(likelihood.log_prob(outputs, torch.tensor([[1.0]]), {}).sum(), outputs)
    assert gradient.isfinite().all()


class Normalised(nn.Module):
    """Batch norm and a division by the norm of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.normalize(self.norm(self.first(x)), dim=1)) + F.normalize(x, dim=1)[:, :1]


@pytest.mark.filterwarnings("ignore:the input of the first batch has a root mean square")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_statistics_of_inputs_of_1e5_are_finite(precision: str) -> None:
    """pytorch #115500, #61954"""
    model = po.fit(
        Normalised, (1e5 * X, Y), "gaussian", po.MeanFieldVI(), epochs=3, batch_size=20, seed=0, precision=precision,
        progress=False,
    )  # fmt: skip
    assert [line["skipped"] for line in model.history] == [0, 0, 0]
    assert all(leaf.isfinite().all() and leaf.dtype != torch.bfloat16 for leaf in model.posterior.tensors().values())
    assert model.predict(1e5 * X).std.isfinite().all()


@pytest.mark.parametrize("method", [po.MeanFieldVI(), po.MAP(), po.DeepEnsemble(1)], ids=lambda method: method.name)
def test_one_draw_has_no_epistemic_std_and_no_nan(method: Any) -> None:
    model = po.fit(network, (X, Y), "gaussian", method, epochs=1, seed=0, progress=False)
    pred = model.predict(X, draws=1)
    assert pred.draws == 1
    assert not pred.epistemic.any()
    assert pred.std.equal(pred.aleatoric)
    found = metrics(model, (X, Y), draws=1)
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("scale", "told"), [(1e6, "1e\\+06"), (1e-6, "1e-06"), (1.0, None), (255.0, None), (0.0, None)]
)
def test_inputs_that_networks_do_not_start_for_are_named_with_their_size(scale: float, told: str | None) -> None:
    """botorch #198, Ax #588: one warning, with the number and the way out; integers are counts of nothing."""
    x = scale * torch.ones(7, 3)
    inputs = {"x": x, "ids": torch.full((7,), 10**8)}
    if told is None:
        warn_of_magnitude(inputs)
        return
    with pytest.warns(po.PosterityWarning, match=rf"input\['x'\] .* root mean square of {told}, .*\(x - mean\) / std"):
        warn_of_magnitude(inputs)


METHODS = [
    po.MAP(), po.MeanFieldVI(), po.IVON(), po.ScoreVI(), po.SGHMC(ensemble=po.MAP(), members=2, draws_per_chain=3, warmup=5),
    po.LastLayerLaplace(), po.SWAG(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the input of the first batch has a root mean square")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_inputs_of_1e6_and_targets_of_1e_minus_6_give_numbers_in_units_of_the_target(method: Any) -> None:
    """botorch #160, #198, #337, #567, Ax #588"""
    model = po.fit(network, (1e6 * X, 1e-6 * Y), "gaussian", method, epochs=5, batch_size=20, seed=0, progress=False)
    pred = model.predict(1e6 * X)
    assert (pred.mean - 1e-6 * Y).abs().mean() < 3e-6
    assert (pred.std > 1e-8).all()
    assert (pred.std < 3e-5).all()


def test_an_estimator_scales_inputs_and_targets_itself() -> None:
    from posterity.sklearn import PosterityRegressor

    x, y = X.double().numpy(), Y.double().numpy()
    plain, wild = (
        PosterityRegressor(epochs=5, random_state=0).fit(a * x, y / a).predict(a * x, return_std=True)
        for a in (1.0, 1e6)
    )
    for one, other in zip(plain, wild):
        assert 1e6 * other == pytest.approx(one, rel=1e-4, abs=1e-5)
