"""One scale for likelihood, prior and noise: sums over the data set, divergences in full, and chains of the right width."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.inference.gaussian import noisy
from posterity.inference.mean_field import MeanFieldState
from posterity.posterior.dense import Dense
from posterity.problem.batches import Batch
from posterity.problem.likelihoods import Gaussian
from posterity.random import Random
from posterity.tree import Tree, clone


class Level(nn.Module):
    """Fifty numbers, the same for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(50))

    def forward(self, x: Tensor) -> Tensor:
        return self.level.expand(len(x), 50)


FAST: dict[str, Any] = {"learning_rate": po.Cosine(0.1), "std_learning_rate": po.Cosine(0.1), "init_std": 0.3}
VARIATIONAL = [po.MeanFieldVI(**FAST), po.IVON(init_hessian=1.0, beta2=0.99), po.ScoreVI(update="whitened", **FAST)]


@pytest.mark.parametrize("batch_size", [10, 100])
@pytest.mark.parametrize("method", VARIATIONAL, ids=lambda m: m.title)
def test_the_batch_size_does_not_move_the_optimum(method: po.Algorithm, batch_size: int) -> None:
    """tensorflow/probability #651, #1526: 100 rows of a normal mean, whose posterior is known; fifty such."""
    y = 0.3 + Random(0).normal((100, 50))
    model = po.fit(
        Level, (torch.zeros(100, 1), y), Gaussian(std=1.0, standardize=False), method, po.Normal(0.5),
        steps=800, batch_size=batch_size, seed=0, progress=False,
    )  # fmt: skip
    found = model.posterior.moments()["level"]
    std = (100 / 1.0**2 + 1 / 0.5**2) ** -0.5
    # the noise of batches of ten, which a falling rate averages out, leaves a few tenths of a std of each of the fifty
    errors = (found.mean - y.sum(0) * std**2) / std
    assert errors.square().mean().sqrt() < 0.3
    assert float(found.std.mean()) == pytest.approx(std, rel=0.05)


def mean_field(network: nn.Module, likelihood: Any = "categorical") -> tuple[po.NetworkProblem, Batch, MeanFieldState]:
    """A problem of seven rows, and the state that variational inference starts in."""
    dtype = next(network.parameters()).dtype
    x = Random(1).normal((7, next(network.parameters()).shape[1])).to(dtype)
    y = x.sum(1) if isinstance(likelihood, Gaussian) else torch.arange(7) % 3
    problem = po.NetworkProblem(network, likelihood, po.Normal(0.8), data_size=7, data_weight=1.5)
    problem.probe((x, y), Random(0))
    method = po.MeanFieldVI(init_std=0.3)
    return problem, Batch(x, y, None, 7), method.init(problem, problem.start(), Random(0), po.Plan(7, 5, 1))


def test_the_divergence_of_three_blocks_is_three_times_that_of_one() -> None:
    """bayesian-torch PR #2"""

    def divergence(blocks: int) -> float:
        network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(blocks)))
        for block in network:
            block.load_state_dict({"weight": torch.eye(3) - 0.4, "bias": torch.arange(3.0)})
        problem, _, state = mean_field(network)
        return po.MeanFieldVI().watch(problem, state)["kl"]

    assert divergence(3) == pytest.approx(3 * divergence(1), rel=1e-6)
    assert divergence(1) > 1


def test_five_steps_move_every_tensor_of_the_posterior_and_its_divergence() -> None:
    """bayesian-torch #19"""
    problem, batch, state = mean_field(nn.Linear(2, 3))
    before, told = clone(state.mean), []
    for _ in range(5):
        state, _ = po.MeanFieldVI().step(problem, state, [batch], Random(0))
        told.append(po.MeanFieldVI().watch(problem, state)["kl"])
    assert len(set(told)) == 5
    assert all((state.mean[name] != before[name]).all() for name in ("weight", "bias"))
    assert all((leaf != math.log(0.3)).all() for leaf in state.log_std.values())


def test_the_weights_of_the_forward_pass_are_those_of_the_divergence() -> None:
    """PyTorch-BayesianCNN #7"""
    problem, batch, state = mean_field(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)))
    method = po.MeanFieldVI(init_std=0.3)

    def terms(start: Tree) -> tuple[float, float]:
        state = method.init(problem, start, Random(0), po.Plan(7, 5, 1))
        kl = method.watch(problem, state)["kl"]
        return float(method.step(problem, state, [batch], Random(0))[1].nll), kl

    plain = terms(problem.start())
    for name in state.log_std:
        moved = problem.start()
        moved[name] += torch.linspace(0.1, 0.7, moved[name].numel()).view_as(moved[name])
        assert all(a != b for a, b in zip(terms(moved), plain)), name


@pytest.mark.parametrize(
    "network",
    [lambda: nn.Linear(1, 1).double(), lambda: nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()],
    ids=["1 x 1", "two layers of tanh"],
)
def test_the_gradient_by_means_and_log_stds_is_that_of_differences(network: Any) -> None:
    """tensorflow/probability #409, posteriors PR #15: at fixed noise, in the parameters that are stored."""
    problem, batch, state = mean_field(network(), Gaussian(std=0.7, standardize=False))
    mean, log_std = clone(state.mean), clone(state.log_std)
    drawn = noisy(mean, log_std, torch.exp, Random(0), 0)
    z = {name: (drawn[name] - mean[name]) / log_std[name].exp() for name in log_std}
    after, _ = po.MeanFieldVI(init_std=0.3).step(problem, state, [batch], Random(0))

    def bound(means: Tree, log_stds: Tree) -> float:
        theta = {name: (means[name] + log_stds[name].exp() * z[name])[0] for name in z}
        log_prob = problem.row_log_probs(theta, problem.outputs(theta, batch), batch.targets).double().mean()
        kl = sum(float(problem.prior.kl(n, means[n], log_stds[n].exp())) for n in z)
        return float(kl / (1.5 * 7) - log_prob)

    for parts, first in ((mean, after.mean_first), (log_std, after.log_std_first)):
        for name in z:
            for i in range(parts[name].numel()):
                sides = []
                for sign in (1, -1):
                    moved = clone(parts)
                    moved[name].view(-1)[i] += sign * 1e-5
                    sides.append(bound(moved, log_std) if parts is mean else bound(mean, moved))
                # Adam's first moment after one step is a tenth of the gradient
                found = 10 * float(first[name].view(-1)[i])
                assert found == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-6), (name, i)


SAMPLERS = {
    "sghmc, small steps": (po.SGHMC, {"step_size": 0.1, "friction": 0.3}),
    "sghmc, large steps": (po.SGHMC, {"step_size": 0.4, "friction": 0.3}),
    "sgld, small steps": (po.SGLD, {"step_size": 0.005}),
    "sgld, large steps": (po.SGLD, {"step_size": 0.01}),
}


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("name", SAMPLERS)
def test_chains_have_the_mean_and_variance_of_a_normal(name: str, temperature: float) -> None:
    """understandingbdl #24, csgmcmc #1, edward #722, pSGLD #2: N(2, 0.5^2), 10 000 times, at any size of a step."""
    target = po.Density(lambda t: -0.5 * ((t["x"] - 2.0) / 0.5).square().sum(), {"x": torch.zeros(10_000)})
    make, options = SAMPLERS[name]
    method = make(members=1, mass="identity", noise_correction=False, temperature=temperature, **options)
    random = Random(0)
    state = method.init(target, [target.start()], random, po.Plan(1, 500, 500))
    for _ in range(500):
        state, _ = method.step(target, state, [None], random)
    x = state.theta["x"].double()
    # a variance off by sqrt(2 / 10 000) = 1.4 %, and by 2 % where SGLD takes large steps; a mean by 1 % of a std
    assert float(x.var()) == pytest.approx(0.25 * temperature, rel=0.05)
    assert float(x.mean()) == pytest.approx(2.0, abs=0.04 * 0.5 * math.sqrt(temperature))


def test_draws_have_the_correlation_of_their_posterior() -> None:
    """Laplace #268: z L in the place of L z."""
    factor = torch.tensor([[1.0, 0.0], [3 * 0.95, 3 * math.sqrt(1 - 0.95**2)]])
    posterior = Dense({"x": torch.zeros(2)}, ("x",), factor)
    draws = torch.stack([draw["x"] for draw in posterior.draws(100_000, Random(0))]).double()
    wanted = torch.tensor([[1.0, 2.85], [2.85, 9.0]], dtype=torch.float64)
    # 100 000 draws: variances off by 0.45 %, the covariance by 0.44 % of the product of the stds
    torch.testing.assert_close(torch.cov(draws.T), wanted, rtol=0.02, atol=0)
