"""The Fisher divergence: its gradient against autograd through the score, its fixed point, accumulated batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.inference.fisher import FisherVI
from posterity.problem.batches import Batch
from posterity.problem.priors import Normal
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import Tree

SIZE, WEIGHT, PRIOR_STD, DRAWS = 13, 2.0, 0.7, 3
START = {"a": torch.tensor([0.3, -0.2, 0.5]).double(), "b": torch.tensor([[0.1], [0.9]]).double()}
CENTER = {"a": torch.tensor([0.1, 0.2, -0.3]).double(), "b": torch.tensor([[0.0], [0.4]]).double()}


def mean_loss(theta: Tree) -> Tensor:
    a, b = theta["a"], theta["b"]
    return (torch.sin(a[0] * a[1]) + a[2] ** 2 * b[0, 0] + 0.5 * (b**2).sum() + torch.cosh(a * b[1, 0]).sum()) / 3.0


class Recorded(po.Density):
    """A problem with N, w and a prior, which remembers the weights that it was asked about."""

    def __init__(self) -> None:
        super().__init__(lambda theta: -mean_loss(theta), START)
        self.data_size, self.data_weight = SIZE, WEIGHT
        self.prior = Normal(PRIOR_STD, center=CENTER).bind(START)
        self.asked: list[Tree] = []

    def nll(self, theta: Tree, batch: Any, random: Random) -> Any:
        self.asked.append({name: leaf.clone() for name, leaf in theta.items()})
        return super().nll(theta, batch, random)


def test_the_gradient_is_that_of_the_divergence() -> None:
    """The first moments after one step are 0.1 of what autograd finds through draws, score and Hessian."""
    problem = Recorded()
    algorithm: Any = FisherVI(draws=DRAWS, init_std=0.2)
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 5, 5))
    state, _ = algorithm.step(problem, state, [None], Random(0))
    assert len(problem.asked) == DRAWS
    m = {name: leaf.clone().requires_grad_() for name, leaf in START.items()}
    rho = {name: torch.full_like(leaf, math.log(0.2)).requires_grad_() for name, leaf in START.items()}
    losses = []
    for asked in problem.asked:
        z = {name: (asked[name] - START[name]) / 0.2 for name in m}
        theta = {name: m[name] + rho[name].exp() * z[name] for name in m}
        by_theta = torch.autograd.grad(mean_loss(theta), list(theta.values()), create_graph=True)
        for name, g in zip(theta, by_theta):
            potential = WEIGHT * SIZE * g + (theta[name] - CENTER[name]) / PRIOR_STD**2
            losses.append(0.5 * (potential - z[name] / rho[name].exp()).square().sum() / (WEIGHT * SIZE) ** 2 / DRAWS)
    found = torch.autograd.grad(torch.stack(losses).sum(), [*m.values(), *rho.values()])
    for name, by_mean, by_rho in zip(m, found[: len(m)], found[len(m) :]):
        torch.testing.assert_close(10 * state.mean_first[name][0], by_mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(10 * state.log_std_first[name][0], by_rho, rtol=1e-10, atol=1e-12)


def test_its_fixed_point_is_narrower_than_that_of_the_bound() -> None:
    """s_i^2 = 1 / sqrt((P^2)_ii); the last quarter of a cosine over 600 steps leaves about 2 % of the stds."""
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    precision, mean = torch.linalg.inv(covariance), torch.tensor([0.5, -1.0]).double()
    wanted = (precision @ precision).diagonal() ** -0.25
    assert (wanted / precision.diagonal().rsqrt()).max() < 0.89  # 0.281^(1/2) against 0.36^(1/2)

    def log_density(theta: Tree) -> Tensor:
        away = theta["x"] - mean
        return -0.5 * away @ precision @ away

    problem = po.Density(log_density, {"x": torch.zeros(2).double()})
    rates = po.Cosine(0.05)
    algorithm: Any = FisherVI(draws=4, init_std=0.3, learning_rate=rates, std_learning_rate=rates)
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 600, 600))
    for _ in range(600):
        state, _ = algorithm.step(problem, state, [None], Random(0))
    torch.testing.assert_close(state.log_std["x"][0].exp(), wanted, rtol=0.05, atol=0.0)
    torch.testing.assert_close(state.mean["x"][0], mean, rtol=0.0, atol=0.1)


def test_an_accumulated_batch_is_one_batch() -> None:
    """7 rows as 7 and as 2 + 5: the residual is summed before it is multiplied by the Hessian."""
    x, y = Random(0).normal((7, 2)), torch.tensor([0, 1, 2, 1, 0, 2, 2])
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    problem = NetworkProblem(network, "categorical", 0.7, data_size=11)
    batch = Batch(x.double(), y, rows=7)
    parts: Any = [Batch(x[:2].double(), y[:2], rows=2), Batch(x[2:].double(), y[2:], rows=5)]
    states = []
    with problem.network.session(train=True):
        problem.probe(batch, Random(0))
        for given in (batch, parts):
            algorithm = FisherVI(init_std=0.1)
            state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 5, 5))
            states.append(algorithm.step(problem, state, [given], Random(0)))
    (one, info), (other, again) = states
    for name, leaf in one.mean_first.items():
        assert leaf.any()
        torch.testing.assert_close(other.mean_first[name], leaf, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.log_std_first[name], one.log_std_first[name], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.nll, info.nll)
    torch.testing.assert_close(again.gradient_norm, info.gradient_norm)


class Distances(nn.Module):
    """A kernel of torch's that can be differentiated once."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 8), nn.Linear(3, 3)
        self.anchors = nn.Parameter(torch.arange(24.0).view(3, 8) / 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cdist(self.body(x), self.anchors, p=3.0))


def test_a_forward_without_second_derivatives_is_refused() -> None:
    data = Random(0).normal((5, 2)), torch.tensor([0, 1, 2, 1, 0])
    with pytest.raises(po.CompatibilityError, match="FisherVI needs second derivatives.*use ScoreVI or ADVI"):
        po.fit(Distances(), data, "categorical", FisherVI(), epochs=1)
