"""Where the truth is known the posterior is right: normal densities, and conjugate linear regression.

    target N(mu, C),  P = C^-1        "exact": N(mu, C)      "diagonal": N(mu, diag 1/P_ii)      "point": all mass on mu

The diagonal one is where the reverse Kullback-Leibler divergence of independent normals to the target is smallest
(Bishop, 2006, section 10.1.2): stds of 1 / sqrt(P_ii), below the true ones wherever weights are correlated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from posterity.problem.batches import Batch
from posterity.problem.densities import Density
from posterity.problem.likelihoods import Gaussian
from posterity.problem.priors import Normal
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.testing.case import Case
from posterity.testing.expect import near
from posterity.testing.runs import final
from posterity.testing.worlds import FEATURES
from posterity.tree import Tree

__all__ = ["COPIES", "Truth", "check_normal", "conjugate_regression", "correlated_density"]

COPIES = 50  # of the target, side by side and independent: what is random about a run averages out over them
DRAWS = (
    100  # x 50 copies: stds are then off by 1 / sqrt(2 * 5000) = 1 %, correlations by at most 1 / sqrt(5000) = 1.4 %
)


class Truth(NamedTuple):
    """The normal that each copy of the target is, over the joined tensors of a tree, in the order of `names`."""

    names: tuple[str, ...]  # of tensors [COPIES, ...]
    mean: Tensor  # [d] float64
    covariance: Tensor  # [d, d] float64

    def of(self, spread: str) -> Tensor:
        """[d, d] the covariance that a family of this spread should find."""
        if spread == "exact":
            return self.covariance
        return torch.linalg.inv(self.covariance).diagonal().reciprocal().diag()

    def joined(self, theta: Tree) -> Tensor:
        """[COPIES, d]"""
        return torch.cat([theta[name].reshape(COPIES, -1) for name in self.names], dim=1)


def correlated_density(case: Case) -> None:
    """A bare density of five weights in three tensors: two pairs with correlations of +0.9 and -0.9, and a single one, all
    of different scale.
    """
    pairs = [(0.9, 1.0, 0.5), (-0.9, 0.7, 1.1)]
    blocks = [torch.tensor([[a * a, r * a * b], [r * a * b, b * b]], dtype=torch.float64) for r, a, b in pairs]
    covariance = torch.block_diag(*blocks, torch.tensor([[0.6]], dtype=torch.float64))
    truth = Truth(("a", "b", "c"), torch.tensor([1.0, -2.0, 0.5, 0.0, -1.0], dtype=torch.float64), covariance)
    precision, mean = torch.linalg.inv(covariance).float(), truth.mean.float()

    def log_density(theta: Tree) -> Tensor:
        away = truth.joined(theta) - mean
        return -0.5 * ((away @ precision) * away).sum()

    start = {"a": torch.zeros(COPIES, 2), "b": torch.zeros(COPIES, 2), "c": torch.zeros(COPIES)}
    check_normal(case, Density(log_density, start), truth, None)


NOISE, PRIOR_STD = 2.5, 0.8


def conjugate_regression(case: Case) -> None:
    """Linear regression with a known noise, a normal prior and correlated features: the posterior in closed form, where the
    data count five times; twice by sample weights, as rows that are there twice, and 2.5 times by `data_weight`, which
    multiplies the data's part of the precision. Each copy is one output of the layer.
    """
    rows, data_weight, sample_weight = 13, 2.5, 2.0
    x = Random(3).normal((rows, FEATURES))
    x[:, 1] = 0.8 * x[:, 0] + 0.4 * x[:, 1]  # correlated features make anticorrelated weights
    y = x @ torch.tensor([1.0, -0.5, 0.3]) + 0.4 + NOISE * Random(4).normal((rows,))
    design = torch.cat([x, torch.ones(rows, 1)], 1).double()
    weight = data_weight * sample_weight / NOISE**2
    prior = torch.eye(FEATURES + 1, dtype=torch.float64) / PRIOR_STD**2
    covariance = torch.linalg.inv(weight * design.T @ design + prior)
    truth = Truth(("weight", "bias"), covariance @ (weight * design.T @ y.double()), covariance)

    targets = y[:, None].repeat(1, COPIES)
    likelihood = Gaussian(std=NOISE, standardize=False).surveyed([targets])
    network = nn.Linear(FEATURES, COPIES)
    with torch.no_grad():
        network.weight.fill_(0.1)
        network.bias.zero_()
    problem = NetworkProblem(network, likelihood, Normal(PRIOR_STD), data_size=rows, data_weight=data_weight)
    batch = Batch(x, targets, torch.full((rows,), sample_weight), rows)
    problem.probe(batch, Random(0))
    check_normal(case, problem, truth, batch)


def check_normal(case: Case, problem: Density | NetworkProblem, truth: Truth, batch: Batch | None) -> None:
    """Run the precise algorithm and compare means, stds and correlations of its draws with what they should be."""
    posterior = final(case.exact, problem, lambda step, k: batch, case.steps)
    draws = posterior.draws(posterior.finite or DRAWS, Random(0))
    found = torch.stack([truth.joined(draw) for draw in draws]).double().reshape(-1, len(truth.mean))
    unit = truth.covariance.diagonal().sqrt()
    if case.spread == "point":
        near(found, truth.mean.expand_as(found), case.tolerance * unit, "the modes")
        return
    wanted = truth.of(case.spread)
    stds = wanted.diagonal().sqrt()
    near(found.mean(0), truth.mean, case.tolerance * unit, "the mean")
    near(found.std(0) / stds, torch.ones_like(stds), case.tolerance, "the stds, in units of the right ones,")
    near(torch.corrcoef(found.T), wanted / torch.outer(stds, stds), case.tolerance, "the correlations")
