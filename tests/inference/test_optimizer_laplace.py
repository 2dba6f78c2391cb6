"""The optimizer's statistics as a posterior, and the scale of a posterior."""

import pytest
import torch
from torch import nn

import posterity as po
from posterity.errors import CompatibilityError
from posterity.random import Random

ROWS, FEATURES = 41, 3
X = Random(1).normal((ROWS, FEATURES))
Y = X[:, 0] - X[:, 1] + 0.5 * Random(2).normal((ROWS,))


def net() -> nn.Module:
    with Random(0).forked():
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def test_stds_are_the_formula() -> None:
    model = po.fit(
        net(), (X, Y), "gaussian", po.OptimizerLaplace(scale=0.5), 0.7, epochs=3, batch_size=11, data_weight=2.0
    )
    (snapshot,) = model.snapshots
    for name, moment in model.posterior.moments().items():
        own = 1.0 if name.startswith("likelihood.") else 0.7  # the likelihood's parameters have a prior of their own
        precision = 2.0 * ROWS * float(snapshot.batch_size) * snapshot.second[name] + 1 / own**2
        assert torch.allclose(moment.std, 0.5 / precision.sqrt(), rtol=1e-5)
        assert torch.equal(moment.mean, snapshot.theta[name])


def test_a_scale_is_picked_by_validation_nll() -> None:
    model = po.fit(net(), (X, Y), "gaussian", po.OptimizerLaplace(members=2), epochs=30)
    held_out = (X[::2], Y[::2])
    picked = po.pick_scale(model, held_out, [0.1, 30.0])  # thirty times the prior's std says nothing
    assert picked.settings["scale"] == 0.1
    assert model.settings.get("scale") is None
    assert picked.predict(X).mean.shape == (ROWS,)


def test_what_cannot_be_scaled_is_said() -> None:
    model = po.fit(net(), (X, Y), "gaussian", po.MAP(), epochs=1)
    with pytest.raises(CompatibilityError, match="posterior is 'point'"):
        po.pick_scale(model, (X, Y))
    with pytest.raises(ValueError, match="scales must be > 0"):
        po.pick_scale(model, (X, Y), [])
