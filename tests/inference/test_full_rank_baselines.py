"""Gaussian score matching, and batch and match: their equations, where they end, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.inference.advi import ADVI
from posterity.inference.bam import BaM, batch_and_match
from posterity.inference.gsm import GSM, matched_scores
from posterity.problem.reference import gaussian, noisy
from posterity.random import Random
from posterity.tree import Tree


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def case(d: int, draws: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, L, draws of q, and the scores there of a normal that is not q."""
    mean, factor = normals(d, seed=0), (torch.eye(d).double() + 0.3 * normals(d, d, seed=1)).tril()
    theta = mean + normals(draws, d, seed=2) @ factor.T
    root = torch.eye(d).double() + 0.3 * normals(d, d, seed=3)
    return mean, factor, theta, -(theta - normals(d, seed=4)) @ root @ root.T


# --- Gaussian score matching -------------------------------------------------------------------------------------------


def test_after_a_step_of_gsm_the_score_at_its_draw_is_the_targets() -> None:
    mean, factor, theta, g = case(5, 1)
    after, covariance = matched_scores(mean, factor, theta, g)
    torch.testing.assert_close(torch.linalg.solve(covariance, after - theta[0]), g[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(covariance, covariance.T)
    assert torch.linalg.eigvalsh(covariance).min() > 0


def test_a_step_of_gsm_is_the_nearest_such_normal() -> None:
    """KL(q || q') is not less at others that match the score: theirs have m' = theta + Sigma' g for any Sigma'."""
    mean, factor, theta, g = case(3, 1)
    sigma = factor @ factor.T

    def kl(root: Tensor) -> Tensor:
        covariance = root @ root.T
        away = theta[0] + covariance @ g[0] - mean
        inner = torch.linalg.solve(covariance, sigma)
        return 0.5 * (inner.trace() - torch.logdet(inner) - 3 + away @ torch.linalg.solve(covariance, away))

    _, covariance = matched_scores(mean, factor, theta, g)
    root = torch.linalg.cholesky(covariance).requires_grad_()
    (slope,) = torch.autograd.grad(kl(root), [root])
    assert slope.abs().max() < 1e-9
    assert kl(factor).item() > kl(root).item()


def test_the_moves_of_several_draws_are_averaged() -> None:
    mean, factor, theta, g = case(5, 3)
    ones = [matched_scores(mean, factor, theta[i : i + 1], g[i : i + 1]) for i in range(3)]
    for found, parts in zip(matched_scores(mean, factor, theta, g), zip(*ones)):
        torch.testing.assert_close(found, torch.stack(parts).mean(0), rtol=1e-10, atol=1e-12)


# --- batch and match ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "draws"), [(5, 3), (5, 11), (11, 1)])
@pytest.mark.parametrize("size", [0.1, 30.0])
def test_both_forms_of_bam_solve_its_equation(d: int, draws: int, size: float) -> None:
    mean, factor, theta, g = case(d, draws)
    share = size / (1 + size)
    center, pull = theta.mean(0), g.mean(0)
    u = size * torch.cov(g.T, correction=0) + share * torch.outer(pull, pull) if draws > 1 else share * pull.outer(pull)
    c = torch.cov(theta.T, correction=0) if draws > 1 else torch.zeros(d, d).double()
    v = factor @ factor.T + size * c + share * torch.outer(mean - center, mean - center)
    forms = [batch_and_match(mean, factor, theta, g, size, low_rank=low_rank) for low_rank in (True, False)]
    for after, covariance in forms:
        torch.testing.assert_close(covariance @ u @ covariance + covariance, v, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(after, mean / (1 + size) + share * (covariance @ pull + center))
        assert torch.linalg.eigvalsh(covariance).min() > 0
    for one, other in zip(*forms):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_batch_that_spans_a_normal_gives_it_at_once() -> None:
    """B > d exact scores and a large lambda: Sigma U Sigma = V is the covariance of the target, to 1 / lambda."""
    mean, factor, theta, g = case(5, 13)
    root = torch.eye(5).double() + 0.3 * normals(5, 5, seed=3)
    after, covariance = batch_and_match(mean, factor, theta, g, 1e9, low_rank=False)
    torch.testing.assert_close(covariance, torch.linalg.inv(root @ root.T), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(after, normals(5, seed=4), rtol=1e-6, atol=1e-6)


# --- both --------------------------------------------------------------------------------------------------------------


def run(algorithm: Any, target: Any, steps: int) -> Any:
    state = algorithm.init(target, target.start(), Random(0), po.Plan(1, steps, steps))
    for _ in range(steps):
        state, info = algorithm.step(target, state, [None], Random(0))
        assert bool(info.finite.all())
    return state


@pytest.mark.parametrize(("algorithm", "steps"), [(GSM(init_std=1.0), 1000), (BaM(init_std=1.0), 5)])
def test_they_end_at_a_correlated_normal(algorithm: Any, steps: int) -> None:
    target = gaussian(7, 1e3, rotation=2)
    state = run(algorithm, target, steps)
    factor = state.factor[0]
    assert torch.equal(factor, factor.tril())
    assert target.kl(state.mean["x"][0], factor @ factor.T) < 1e-6
    assert state.rejected.tolist() == [0]


def test_bam_ends_there_with_fewer_draws_than_weights() -> None:
    target = gaussian(13, 10.0, rotation=2)
    state = run(BaM(draws=8, init_std=1.0), target, 300)
    assert target.kl(state.mean["x"][0], state.factor[0] @ state.factor[0].T) < 1e-3


@pytest.mark.parametrize("algorithm", [GSM(init_std=1.0), BaM(draws=5, init_std=1.0), BaM(init_std=1.0)])
def test_noisy_scores_never_give_nan(algorithm: Any) -> None:
    """Noise of 3 / std: what comes out is no posterior, but it is a normal."""
    target = gaussian(7, 1e3, rotation=2)
    state = run(algorithm, noisy(target, 3.0), 300)
    assert torch.isfinite(state.factor).all()
    assert torch.isfinite(state.mean["x"]).all()
    kl = target.kl(state.mean["x"][0], state.factor[0] @ state.factor[0].T)
    assert 0.1 < kl < 1e6


class Wild(po.Density):
    """Scores that are finite, and too large to be squared, from its third evaluation on."""

    def __init__(self) -> None:
        super().__init__(lambda theta: -0.5 * theta["x"].square().sum(), {"x": torch.ones(5)})
        self.evaluations = 0

    def nll(self, theta: Tree, batch: Any, random: Random) -> Any:
        value, gradient, info = super().nll(theta, batch, random)
        self.evaluations += 1
        if 3 <= self.evaluations <= 6:
            gradient = {"x": torch.full_like(gradient["x"], 1e38)}
        return value, gradient, info


@pytest.mark.parametrize("algorithm", [GSM(draws=2), BaM(draws=2)])
def test_a_solution_that_is_no_normal_is_refused_and_counted(algorithm: Any) -> None:
    problem = Wild()
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 9, 9))
    counts, told = [], []
    for _ in range(5):
        mean, factor = state.mean["x"].clone(), state.factor.clone()
        state, info = algorithm.step(problem, state, [None], Random(0))
        same = torch.equal(mean, state.mean["x"]) and torch.equal(factor, state.factor)
        counts.append(int(state.rejected))
        told.append(info.extra["rejected"].tolist())
        assert same == (told[-1] == [1])
        assert torch.isfinite(state.factor).all()
    assert bool(info.finite.all())
    assert counts[-1] == sum(one for (one,) in told)
    assert told[:2] == [[0], [1]]


@pytest.mark.parametrize(
    ("algorithm", "floats", "doubles"), [(GSM, 2, 4), (BaM, 2, 8), (lambda **options: ADVI("full", **options), 6, 0)]
)
def test_a_covariance_that_does_not_fit_is_refused(algorithm: Any, floats: int, doubles: int) -> None:
    """2 members, each with its own matrices; what a step needs on the way, for one at a time."""
    problem = po.Density(lambda theta: -theta["x"].square().sum(), {"x": torch.zeros(1000)})
    needed = (2 * 4 * floats + 8 * doubles) * 1000**2
    one = po.Ensemble(algorithm(max_memory=needed - 1), 2)
    for ask in (
        lambda: one.check(problem, None),
        lambda: one.init(problem, problem.starts(2, "same", Random(0)), Random(0), po.Plan(1, 1, 1)),
    ):
        with pytest.raises(po.CompatibilityError, match="all 1,000 weights would take 0.. GiB.*ScoreVI.'low-rank-plus"):
            ask()
    po.Ensemble(algorithm(max_memory=needed), 2).check(problem, None)


@pytest.mark.parametrize("algorithm", [GSM(init_std=0.3), BaM(draws=3, init_std=0.3), ADVI("full", init_std=0.3)])
def test_the_posterior_is_the_states_normal(algorithm: Any) -> None:
    """Tensors in their own shapes and order, stds from L, and no memory shared with the state."""
    start = {"b": torch.zeros(2, 1), "a": torch.zeros(3)}
    stds = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.3])
    problem = po.Density(
        lambda theta: -0.5 * (torch.cat([theta["b"].flatten(), theta["a"]]) / stds).square().sum(), start
    )
    state = run(algorithm, problem, 7)
    posterior = algorithm.posterior(state)
    factor = algorithm.factors(state)[0]
    moments = posterior.moments()
    found = torch.cat([moments[name].std.flatten() for name in ("b", "a")])
    torch.testing.assert_close(found, (factor @ factor.T).diagonal().sqrt(), rtol=1e-5, atol=0.0)
    before = {name: leaf.clone() for name, leaf in posterior.tensors().items()}
    algorithm.step(problem, state, [None], Random(0))
    assert all(torch.equal(leaf, before[name]) for name, leaf in posterior.tensors().items())
