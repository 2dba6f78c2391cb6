"""Prediction by propagation: unmodified modules, any posterior, and what happens where no rule is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.eager import Propagated
from posterity.prediction.propagation.head import normal_points
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.value import MeanVar
from posterity.problem.network import Network
from posterity.random import Random

DRAWS = 96


class Attending(nn.Module):
    """The first token of a layer of attention, through a head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[:, 0])


class Own(nn.Module):
    """Self-attention of torch's multi-head layer, with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, body: nn.RNNBase) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(body.hidden_size * (1 + body.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
    return Attending(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


NETWORKS = {
    "perceptron": (perceptron, (5, 7)),
    "convolutional": (convolutional, (3, 2, 9, 8)),
    "encoder": (encoder, (3, 5, 16)),
    "multi-head": (lambda: Attending(Own()), (3, 5, 16)),
    "lstm": (lambda: Recurrent(nn.LSTM(4, 8, num_layers=2, batch_first=True, bidirectional=True)), (3, 5, 4)),
    "gru": (lambda: Recurrent(nn.GRU(4, 8, batch_first=True)), (3, 5, 4)),
}


def problem_of(module: nn.Module) -> po.NetworkProblem:
    return po.NetworkProblem(Network(module.eval()), po.Gaussian(std=1.0), po.Normal(1.0), data_size=10)


def posterior_of(problem: po.NetworkProblem, share: float) -> Diagonal:
    """Normals around the network's own weights, of a share of the spread of each tensor."""
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    return Diagonal(
        means, {n: torch.full_like(m, share * float(m.square().mean().sqrt() + 0.05)) for n, m in means.items()}
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_is_nearer_to_that_of_draws_than_the_mean_network(name: str) -> None:
    make, shape = NETWORKS[name]
    with Random(1).fold(name).forked():
        problem = problem_of(make())
    x, posterior = Random(2).fold(name).normal(shape), posterior_of(problem, 0.15)
    with torch.no_grad():
        found = propagate(problem, weight_values(posterior), x)
        draws = torch.stack([problem.outputs(theta, x) for theta in posterior.draws(DRAWS, Random(0))])
        plain = problem.outputs(posterior.mean(), x)
    assert isinstance(found, MeanVar)
    mean, std = draws.mean(0), draws.std(0)
    floor = 3 / DRAWS**0.5 * std.square().sum().sqrt()  # what the draws leave, three times
    assert (found.mean - mean).norm() <= (plain - mean).norm() + floor
    assert 0.3 <= float(found.var.sum() / draws.var(0).sum()) <= 1.6


@pytest.mark.parametrize("name", NETWORKS)
def test_without_variance_it_is_the_network(name: str) -> None:
    make, shape = NETWORKS[name]
    with Random(1).fold(name).forked():
        problem = problem_of(make())
    x, means = Random(2).fold(name).normal(shape), posterior_of(problem, 0.0).means
    with torch.no_grad():
        plain = problem.outputs(means, x)
        found = propagate(problem, weight_values(Diagonal(means, {})), x)
        zero = propagate(problem, weight_values(Diagonal(means, {n: torch.zeros_like(m) for n, m in means.items()})), x)
    assert torch.equal(found, plain)  # what is known exactly stays a tensor
    torch.testing.assert_close(zero.mean, plain, rtol=0, atol=1e-5)
    assert not zero.var.any()


def test_what_comes_before_the_first_random_weight_is_computed_as_usual() -> None:
    problem = problem_of(perceptron())
    means = posterior_of(problem, 0.0).means
    seen: list[type] = []
    handle = problem.network.module[4].register_forward_hook(lambda module, args, output: seen.append(type(output)))
    last = Diagonal(means, {"5.weight": torch.full((3, 32), 0.1)})
    found = propagate(problem, weight_values(last), torch.ones(2, 7))
    handle.remove()
    assert seen == [Tensor]
    features = problem.network.module[:5](torch.ones(2, 7))
    torch.testing.assert_close(found.var, 0.01 * features.square().sum(-1, keepdim=True).expand(2, 3))


def test_an_operation_without_a_rule_says_where_it_is() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).abs()

    problem = problem_of(nn.Sequential(nn.Linear(4, 4), Odd()))
    values = weight_values(posterior_of(problem, 0.1))
    with pytest.raises(
        po.CompatibilityError, match=r"fft_rfft.* in the module '1' \(.*test_propagation.py, line \d+\)"
    ):
        propagate(problem, values, torch.ones(2, 4))
    assert isinstance(
        problem.outputs(posterior_of(problem, 0.1).means, torch.ones(2, 4)), Tensor
    )  # nothing is left behind


def test_dropout_in_training_is_refused() -> None:
    problem = problem_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    values = weight_values(posterior_of(problem, 0.1))
    assert isinstance(propagate(problem, values, torch.ones(2, 4)), MeanVar)
    x = propagate(problem, values, torch.ones(2, 4))
    with pytest.raises(po.CompatibilityError, match="dropout"):
        F.dropout(Propagated(x), 0.5, training=True)


def test_sites_are_named_by_module_and_call_and_scale_the_variance() -> None:
    problem = problem_of(perceptron())
    values, x = weight_values(posterior_of(problem, 0.2)), torch.ones(2, 7)
    first = Pass()
    plain = propagate(problem, values, x, first)
    assert first.sites == ["1#0", "2#0", "4#0"]
    scaled = propagate(problem, values, x, Pass(scales={"4#0": torch.tensor(4.0)}))
    assert not torch.equal(scaled.var, plain.var)
    scale = torch.ones((), requires_grad=True)
    again = propagate(problem, values, x, Pass(scales={"1#0": scale}))
    assert torch.autograd.grad(again.var.sum(), scale)[0].isfinite()


METHODS = {
    "mean-field": po.MeanFieldVI(),
    "ivon": po.IVON(),
    "low-rank": po.LowRankVI({"0.weight": 4, "2.weight": 4}, vectors="normal"),
    "map": po.MAP(),
    "ensemble": po.DeepEnsemble(3),
    "mixture": po.Ensemble(po.MeanFieldVI(), 2),
}


def data() -> tuple[Tensor, Tensor]:
    x = Random(5).normal((128, 7))
    return x, (x[:, 0] + x[:, 1].sin() > 0).long()


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_are_near_those_of_draws(name: str) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))

    x, y = data()
    model = po.fit(net, (x, y % 3), "categorical", METHODS[name], epochs=10, batch_size=32, seed=0, progress=False)
    found = model.predict(x, via="propagation")
    draws = model.predict(x, draws=None if model.posterior.finite else 256)
    assert found.via == "propagation"
    distance = (found.probs - draws.probs).abs().sum(1).mean() / 2
    assert distance <= (1e-6 if model.posterior.finite else 0.02)
    again = model.predict(x[:3], via="propagation")
    torch.testing.assert_close(again.probs, found.probs[:3])  # rows do not depend on their batch


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", po.StudentT(df=4.0)])
def test_intervals_are_near_those_of_draws(likelihood: object) -> None:
    x, _ = data()
    outputs = 2 if likelihood == "heteroscedastic" else 1
    net = lambda: nn.Sequential(nn.Linear(7, 24), nn.GELU(), nn.Linear(24, outputs))  # noqa: E731
    y = x[:, 0] + 0.1 * x[:, 1]
    model = po.fit(net, (x, y), likelihood, po.MeanFieldVI(), epochs=10, batch_size=32, seed=0, progress=False)
    found, draws = model.predict(x, via="propagation"), model.predict(x, draws=256)
    assert (found.mean - draws.mean).norm() <= 0.1 * draws.std.norm()
    assert (found.std - draws.std).norm() <= 0.05 * draws.std.norm()


def test_correlated_weights_are_said_to_count_as_independent() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 2))
    model = po.fit(net, (x, y), "categorical", po.SWAG(), epochs=2, seed=0, progress=False)
    with pytest.warns(po.PosterityWarning, match="takes the weights as independent"):
        model.predict(x, via="propagation")


def test_masks_of_dropout_are_refused() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    model = po.fit(net, (x, y), "categorical", po.MCDropout(), epochs=1, seed=0, progress=False)
    with pytest.raises(po.CompatibilityError, match="in masks, not in the weights"):
        model.predict(x, via="propagation")


@pytest.mark.filterwarnings("ignore:on .* rows left out")
def test_a_temperature_found_by_propagation_is_used_by_it() -> None:
    x, y = data()
    net = lambda: nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
    model = po.fit(net, (x, y), "categorical", po.MeanFieldVI(), epochs=5, seed=0, progress=False)
    before = model.predict(x, via="propagation").probs
    model.calibrate((x, 1 - y), via="propagation")
    assert model.temperature > 1
    assert (model.predict(x, via="propagation").probs.amax(1) < before.amax(1)).all()


def test_an_unknown_way_is_refused() -> None:
    x, y = data()
    model = po.fit(nn.Linear(7, 2), (x, y), "categorical", po.MAP(), epochs=1, seed=0, progress=False)
    with pytest.raises(po.CompatibilityError, match="'draws', 'mean' or 'propagation'"):
        model.predict(x, via="sampling")


def test_the_points_are_balanced_and_stand_for_a_normal() -> None:
    points = normal_points(64, 10)
    torch.testing.assert_close(points.mean(0), torch.zeros(10, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(points.square().mean(0), torch.ones(10, dtype=torch.float64))
    mean, std = 2 * Random(0).normal((40, 10)).double(), 1.0
    noise = Random(1).normal((20_000, 1, 10)).double()
    truth = sum((mean + std * e).softmax(-1).mean(0) for e in noise.split(1000)) / 20
    found = (mean + std * points[:, None]).softmax(-1).mean(0)
    distance = (found - truth).abs().sum(-1).mean() / 2
    assert distance <= 0.01
    assert normal_points(64, 30_000).shape == (64, 30_000)
    assert not normal_points(1, 3).any()


class Sorting(nn.Module):
    """An operation that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(7, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sort(self.body(x), dim=-1).values[:, -4:])


def test_an_operation_without_a_rule_goes_by_draws_where_asked() -> None:
    x, y = data()
    model = po.fit(Sorting, (x, y), "categorical", po.MeanFieldVI(), epochs=10, seed=0, progress=False)
    with pytest.raises(po.CompatibilityError, match=r"no rule says what sort does.*unknown='draws'"):
        model.predict(x, via="propagation")
    mean = dict(model.posterior.mean())
    wide = Diagonal(mean, {name: torch.full_like(leaf, 0.3) for name, leaf in mean.items()})
    model = po.BayesianModel(model.problem, wide, settings=model.settings)
    model.propagation = po.Propagation(po.Rules(unknown="draws"))
    found, draws, plain = (
        model.predict(x, via=via, draws=n) for via, n in (("propagation", 64), ("draws", 512), ("mean", 1))
    )
    torch.testing.assert_close(model.predict(x[3:5], via="propagation").probs, found.probs[3:5])
    assert (found.probs - draws.probs).norm() < 0.5 * (plain.probs - draws.probs).norm()
