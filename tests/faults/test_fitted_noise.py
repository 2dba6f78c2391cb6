"""What a fit finds, counts and tells: N, the noise of the targets, the parts of its bound, and what class weights do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import posterity as po
from posterity.evaluation.metric import Metric
from posterity.random import Random

FAST: dict[str, Any] = {"learning_rate": po.Cosine(2e-2)}
METHODS = [
    po.MAP(**FAST),
    po.DeepEnsemble(3, **FAST),
    po.MeanFieldVI(),
    po.IVON(),
    po.ScoreVI(),
    po.LastLayerLaplace(base=po.MAP(**FAST)),
    po.SWAG(base=po.MAP(**FAST), collections=10),
]


def regression(x: Tensor, y: Tensor, method: po.Algorithm, epochs: int) -> po.BayesianModel:
    return po.fit(
        lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), (x, y), "gaussian", method,
        epochs=epochs, batch_size=50, seed=0, progress=False,
    )  # fmt: skip


def metrics(model: po.BayesianModel, x: Tensor, y: Tensor) -> dict[str, Metric]:
    return po.evaluate(model, (x, y)).rows[0]["metrics"]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.title)
def test_intervals_hold_targets_of_pure_noise(method: po.Algorithm) -> None:
    """blitz #50: a predictive variance so small that the truth was never inside."""
    x, y = Random(0).normal((200, 1)), Random(1).normal((200,))
    found = metrics(regression(x, y, method, epochs=50), x, y)["interval_coverage"]
    assert found.n == 200
    assert 0.8 <= found.value <= 0.97


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.title)
def test_the_noise_around_a_sine_is_found_in_units_of_the_target(method: po.Algorithm) -> None:
    """Laplace #222, #142, lightning-uq-box #130"""
    x = torch.linspace(-3, 3, 150)[:, None]
    y = torch.sin(x[:, 0]) + 0.3 * Random(2).normal((150,))
    aleatoric = regression(x, y, method, epochs=120).predict(x).aleatoric
    assert 0.2 < float(aleatoric.min()) <= float(aleatoric.max()) < 0.45


X, Y = torch.linspace(-2, 2, 100)[:, None].repeat(1, 3), torch.arange(100) % 3


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"sampler": SubsetRandomSampler(range(40))}, 40),
        ({"sampler": SubsetRandomSampler(range(40)), "drop_last": True}, 32),
        ({"drop_last": True}, 96),
        ({"sampler": WeightedRandomSampler([1.0] * 99 + [50.0], num_samples=48)}, 48),
    ],
    ids=["a sampler of 40", "and drop_last", "drop_last", "a weighted sampler of 48"],
)
def test_n_is_the_rows_of_an_epoch(options: dict[str, Any], rows: int) -> None:
    """pytorch/examples #1396, udacity #336: not the length of the data set."""
    data = DataLoader(TensorDataset(X, Y), batch_size=16, **options)
    assert po.fit(nn.Linear(3, 3), data, epochs=1, progress=False).problem.data_size == rows
    assert po.fit(nn.Linear(3, 3), data, epochs=1, data_size=77, progress=False).problem.data_size == 77


def bound(network: nn.Module) -> po.BayesianModel:
    """Five steps of variational inference on 100 rows."""
    method = po.MeanFieldVI(learning_rate=0.05, std_learning_rate=0.05, init_std=0.1)
    return po.fit(
        network, (X, Y), "categorical", method, po.Normal(0.5), epochs=5, batch_size=100, seed=0, progress=False
    )


def given() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    for name, weight in network.named_parameters():
        weight.data = 0.5 * Random(3).fold(name).normal(tuple(weight.shape))
    return network


def test_the_likelihood_and_the_divergence_are_told_apart() -> None:
    """blitz #78, #94"""
    for row in bound(given()).history:
        assert row.keys() >= {"nll", "kl", "elbo", "std", "gradient_norm"}
        assert row["elbo"] == pytest.approx(-100 * row["nll"] - row["kl"], rel=1e-12)


TRACE = [
    -182.0670,
    -168.5042,
    -166.5473,
    -162.5582,
    -154.2124,
]  # by torch 2.13; another one may round otherwise, no more


def test_the_bound_of_five_steps_is_what_it_was() -> None:
    """torchtree #4: it went down after an upgrade of torch."""
    assert [row["elbo"] for row in bound(given()).history] == pytest.approx(TRACE, rel=1e-4)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_class_weights_are_another_likelihood_and_are_judged_by_the_rows_as_they_are(class_weight: Any) -> None:
    """pytorch #104776: 99 rows to 1 of either class, in four groups."""
    groups = torch.arange(800) % 4
    x, y = torch.eye(4)[groups], (torch.arange(800) % 100 == 0).long()
    model = po.fit(
        lambda: nn.Linear(4, 2), (x, y), "categorical", po.MAP(learning_rate=po.Cosine(0.1)),
        epochs=60, batch_size=100, class_weight=class_weight, seed=0, progress=False,
    )  # fmt: skip
    rare, ece = model.predict(x).probs[:, 1].mean(), metrics(model, x, y)["ece"].value
    if class_weight is None:
        assert float(rare) == pytest.approx(0.01, abs=0.005)
        assert ece < 0.02
    else:
        weights = dict(model.problem.likelihood.class_weight)
        assert weights == pytest.approx({0: 800 / (2 * 792), 1: 800 / (2 * 8)})
        assert float(rare) > 0.2
        assert ece > 0.2
