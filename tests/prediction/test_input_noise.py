"""Inputs with noise: closed forms of a linear network, both ways on a perceptron, and what is refused."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.mixture import Mixture
from posterity.posterior.point import Point
from posterity.prediction.draws import batches_of
from posterity.prediction.noisy import Noisy, noisy
from posterity.prediction.predictive import concat
from posterity.problem.batches import Batch, Reader
from posterity.problem.network import Network
from posterity.random import Random

ROWS, INPUTS = 11, 4


def normal(*shape: int, at: str = "") -> Tensor:
    return Random(0).fold(f"{shape} {at}").normal(shape)


def model_of(module: nn.Module, std: float | None = None, likelihood: Any = None) -> po.BayesianModel:
    """A point, or independent normals, over the weights as they are."""
    problem = po.NetworkProblem(
        Network(module.eval()), likelihood or po.Gaussian(std=0.1), po.Normal(1.0), data_size=10
    )
    means = problem.start()
    own = {name: leaf for name, leaf in means.items() if not name.startswith("likelihood.")}
    posterior = Point(means) if std is None else Diagonal(means, {n: torch.full_like(v, std) for n, v in own.items()})
    return po.BayesianModel(problem, posterior, settings={"seed": 3})


@cache
def linear() -> nn.Linear:
    with Random(1).forked():
        return nn.Linear(INPUTS, 1)


STDS: dict[str, Any] = {
    "number": 0.3,
    "of features": normal(INPUTS, at="std").abs(),
    "of rows": normal(ROWS, 1, at="std").abs(),
    "of all": normal(ROWS, INPUTS, at="std").abs(),
    "array": normal(ROWS, INPUTS, at="std").abs().double().numpy(),
    "list": [0.1, 0.0, 0.4, 0.2],
}


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("name", STDS)
def test_a_linear_network_has_the_closed_form(name: str, batch_size: int | None) -> None:
    x, std = normal(ROWS, INPUTS), STDS[name]
    pred = model_of(linear()).predict(x, via="propagation", input_std=std, batch_size=batch_size)
    var = torch.as_tensor(std).float().expand(ROWS, INPUTS).square() @ linear().weight.detach().square().T
    torch.testing.assert_close(pred.mean, linear()(x).detach()[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pred.epistemic, var.sqrt()[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pred.std, (var + 0.01).sqrt()[:, 0], rtol=1e-5, atol=1e-6)


def test_it_adds_to_what_the_weights_bring() -> None:
    x, (v, s) = normal(ROWS, INPUTS), (0.09, 0.04)
    pred = model_of(linear(), std=math.sqrt(s)).predict(x, via="propagation", input_std=math.sqrt(v))
    w = linear().weight.detach()
    var = v * w.square().sum() + s * (x.square() + v).sum(1) + s  # the last of the bias
    torch.testing.assert_close(pred.epistemic.square(), var, rtol=1e-5, atol=1e-6)


def perceptron(inputs: int, hidden: int) -> nn.Module:
    with Random(2).forked():
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))


@pytest.mark.parametrize("std", [None, 0.03])
def test_both_ways_agree_on_a_perceptron_of_many_inputs(std: float | None) -> None:
    model, x = model_of(perceptron(40, 7), std), normal(ROWS, 40)
    noise = 0.2 * (1 + torch.arange(ROWS) % 3).reshape(-1, 1)
    found = model.predict(x, via="propagation", input_std=noise)
    draws = model.predict(x, via="draws", draws=4096, input_std=noise)
    assert draws.draws == 4096
    # 4096 draws leave 0.016 stds of the mean and 0.011 of the std; features share inputs, and count as independent
    assert float(((found.mean - draws.mean) / draws.epistemic).abs().max()) < 0.06
    assert float((found.epistemic / draws.epistemic).log().abs().max()) < 0.15
    mean = model.predict(x, via="mean").mean
    assert float(((mean - draws.mean) / draws.epistemic).abs().max()) > 0.1  # what propagation puts right


def test_features_of_few_inputs_move_together_which_it_does_not_see() -> None:
    model, x = model_of(perceptron(INPUTS, 32)), normal(ROWS, INPUTS)
    found, draws = (
        model.predict(x, via=via, draws=n, input_std=0.2) for via, n in (("propagation", 64), ("draws", 1024))
    )
    ratio = found.epistemic / draws.epistemic
    assert bool(((ratio > 0.5) & (ratio < 1.0)).all())
    assert float(((found.mean - draws.mean) / draws.epistemic).abs().max()) < 0.1


def test_draws_of_a_linear_network_have_its_std() -> None:
    x = normal(ROWS, INPUTS)
    draws = model_of(linear()).predict(
        x, draws=1024, input_std=STDS["of all"]
    )  # a point draws where the inputs are noisy
    assert draws.via == "draws"
    exact = model_of(linear()).predict(x, via="propagation", input_std=STDS["of all"])
    # the std of 1024 draws errs by 1 / sqrt(2 * 1024) = 0.022 of itself: 5 of it
    torch.testing.assert_close(draws.epistemic, exact.epistemic, rtol=0.11, atol=0.0)


def test_a_row_does_not_depend_on_its_batch_and_calls_agree() -> None:
    model, x, std = model_of(linear(), 0.1), normal(ROWS, INPUTS), STDS["of all"]
    for via in ("draws", "propagation"):
        whole = model.predict(x, via=via, input_std=std)
        for other, rows in (
            (model.predict(x, via=via, input_std=std, batch_size=4), slice(None)),
            (model.predict(x[5:], via=via, input_std=std[5:]), slice(5, None)),
        ):
            torch.testing.assert_close(other.mean, whole.mean[rows])
            torch.testing.assert_close(other.epistemic, whole.epistemic[rows])
    other = model.predict(x, via="draws", input_std=std, seed=4)
    assert not torch.equal(other.mean, model.predict(x, via="draws", input_std=std).mean)


def test_an_ensemble_draws_a_noise_for_each_of_its_rounds() -> None:
    model = model_of(linear())
    points = [Point({n: leaf + 0.1 * k for n, leaf in model.posterior.mean().items()}) for k in range(3)]
    model = po.BayesianModel(model.problem, Mixture(points), settings={"seed": 3})
    x = normal(ROWS, INPUTS)
    assert model.predict(x, input_std=0.1).draws == 33  # 32, in rounds of 3
    assert model.predict(x, draws=7, input_std=0.1).draws == 9
    assert model.predict(x, draws=2, input_std=0.1).draws == 2
    assert model.predict(x).draws == 3


def test_no_noise_is_no_noise() -> None:
    model, x = model_of(linear(), 0.1), normal(ROWS, INPUTS)
    for via in ("draws", "propagation"):
        torch.testing.assert_close(model.predict(x, via=via, input_std=0.0).std, model.predict(x, via=via).std)


def test_classes_and_labelled_data() -> None:
    with Random(2).forked():
        net = nn.Sequential(nn.Linear(INPUTS, 16), nn.ReLU(), nn.Linear(16, 3))
    model, x, y = model_of(net, 0.01, po.Categorical()), normal(ROWS, INPUTS), torch.arange(ROWS) % 3
    found, draws = (
        torch.cat(
            [pred.probs for pred, _ in model.predict_with_targets((x, y), via=via, draws=n, input_std=STDS["of rows"])]
        )
        for via, n in (("propagation", 64), ("draws", 512))
    )
    plain = model.predict(x, via="propagation").probs
    # hidden features that share their inputs count as independent
    assert float((found - draws).abs().mean()) < 0.5 * float((plain - draws).abs().mean())


def test_a_loader_takes_what_its_rows_share() -> None:
    model, x = model_of(linear()), normal(ROWS, INPUTS)
    data = TensorDataset(x, x[:, 0])
    wanted = model.predict(x, via="propagation", input_std=STDS["of features"])
    for given in (data, DataLoader(data, batch_size=4)):
        parts = [p for p, _ in model.predict_with_targets(given, via="propagation", input_std=STDS["of features"])]
        torch.testing.assert_close(concat(parts).std, wanted.std)
        with pytest.raises(ShapeError, match="what all rows share"):
            list(model.predict_with_targets(given, via="propagation", input_std=STDS["of rows"]))


@pytest.mark.parametrize(
    ("std", "match"),
    [(-0.1, ">= 0"), (math.nan, "finite"), ([0.1, math.inf, 0.1, 0.1], "1 of 4 places"), ("much", "cannot be read")],
)
def test_a_std_that_is_none_is_refused(std: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        model_of(linear()).predict(normal(ROWS, INPUTS), via="propagation", input_std=std)


@pytest.mark.parametrize("shape", [(ROWS,), (3, 1), (ROWS + 1, 1), (ROWS, INPUTS, 1), (2, ROWS, INPUTS), (5,)])
def test_a_std_that_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    for via in ("draws", "propagation"):
        with pytest.raises(ShapeError, match=rf"one std per row is \[{ROWS}, 1\], one per feature \[{INPUTS}\]"):
            model_of(linear()).predict(normal(ROWS, INPUTS), via=via, input_std=torch.ones(shape), batch_size=3)


def test_inputs_that_have_no_such_noise_are_refused() -> None:
    for inputs in (torch.zeros(3, 2, dtype=torch.int64), (normal(3, 2), normal(3, 2)), {"a": normal(3, 2)}):
        with pytest.raises(DataError, match="one floating-point tensor"):
            list(noisy(batches_of(inputs, Reader(), None), 0.1, inputs))


def test_what_says_nothing_of_noise_refuses() -> None:
    x = normal(ROWS, INPUTS)
    with pytest.raises(CompatibilityError, match=r"via='propagation' or via='draws'"):
        model_of(linear()).predict(x, via="mean", input_std=0.1)


def test_with_a_covariance_features_that_share_noisy_inputs_move_together() -> None:
    """A deep linear network, whose closed form independent features miss; and one with a bend, beside 4096 draws."""
    with Random(4).forked():
        straight = nn.Sequential(nn.Linear(INPUTS, 16), nn.Linear(16, 1))
        bent = nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 1))
    x, std = normal(ROWS, INPUTS), STDS["of all"]
    found = {}
    for covariance in (False, True):
        model = model_of(straight)
        model.propagation = po.Propagation(po.Rules(covariance=covariance))
        found[covariance] = model.predict(x, via="propagation", input_std=std).epistemic.squeeze()
    slope = (straight[1].weight @ straight[0].weight).detach().double()
    wanted = (std.double().square() @ slope.square().T).sqrt().squeeze()
    torch.testing.assert_close(found[True].double(), wanted, rtol=1e-4, atol=1e-6)
    assert float((found[False] / wanted - 1).abs().max()) > 0.1
    model = model_of(bent, 0.05)
    model.propagation = po.Propagation(po.Rules(covariance=True))
    drawn = model.predict(x, via="draws", draws=4096, input_std=0.2).epistemic
    ratio = model.predict(x, via="propagation", input_std=0.2).epistemic / drawn
    assert float((ratio - 1).abs().max()) < 0.05 + 3 / math.sqrt(2 * 4096)


def test_stds_follow_their_rows() -> None:
    x, std = np.asarray(normal(ROWS, INPUTS)), np.arange(ROWS, dtype=np.float64)[:, None]
    found: list[Batch] = list(noisy(batches_of(x, Reader(), 4), std, x))
    assert all(isinstance(batch.inputs, Noisy) for batch in found)
    torch.testing.assert_close(torch.cat([batch.inputs.mean for batch in found]), torch.from_numpy(x))
    torch.testing.assert_close(
        torch.cat([batch.inputs.std for batch in found]), torch.from_numpy(std).float().expand(ROWS, INPUTS)
    )
