"""A loop of one's own finds the posterior that `po.fit` finds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.interfaces.driven import Driven

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def train(driven: Driven, x: torch.Tensor = X) -> po.BayesianModel:
    driven.begin(po.Plan(8, 6, 3), rows=24)
    for _ in range(2):
        for rows in torch.arange(24).split(8):
            driven.draw()
            driven.loss(driven.network(x[rows]), Y[rows]).backward()
            driven.optimizer.step()
        driven.end_epoch()
    return driven.model()


@pytest.mark.parametrize(
    "method", [po.IVON(), po.ScoreVI("diagonal", lag=2), po.OptimizerLaplace()], ids=lambda m: m.name
)
def test_a_plain_loop_agrees_with_fit_to_the_bit(method: Any) -> None:
    model = train(Driven(net(), method, seed=3))
    reference = po.fit(net(), DataLoader(TensorDataset(X, Y), 8), method=method, epochs=2, seed=3)
    assert model.predict(X).probs.equal(reference.predict(X).probs)
    assert list(model.history) == list(reference.history)


def test_a_step_that_is_not_finite_leaves_everything_as_it_was() -> None:
    x = X.clone()
    x[8:16] = 1e38
    driven = Driven(net(), po.IVON(), seed=3)
    model = train(driven, x)
    assert [line["skipped"] for line in model.history] == [1, 1]
    assert all(value.isfinite().all() for value in driven.network.state_dict().values())
    assert model.predict(X).probs.isfinite().all()


def test_a_step_without_a_draw_or_a_loss_is_an_error() -> None:
    driven = Driven(net(), po.IVON())
    with pytest.raises(po.CompatibilityError, match="begin"):
        driven.draw()
    driven.begin(po.Plan(8, 6, 3), rows=24)
    with pytest.raises(po.CompatibilityError, match="no draw"):
        driven.loss(driven.network(X), Y)
    driven.draw()
    with pytest.raises(po.CompatibilityError, match=r"driven\.loss"):
        driven.optimizer.step()


def test_a_stream_needs_its_number_of_rows() -> None:
    with pytest.raises(po.DataError, match="data_size="):
        Driven(net(), po.IVON()).begin(po.Plan(8, 6, 3), rows=None)


def test_the_state_of_another_optimizer_is_refused() -> None:
    driven = Driven(net(), po.IVON())
    other = torch.optim.SGD(driven.network.parameters(), 0.1).state_dict()
    with pytest.raises(po.StorageError, match="another optimizer"):
        driven.optimizer.load_state_dict(other)
