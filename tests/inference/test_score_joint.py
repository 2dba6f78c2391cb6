"""Score-based variational inference over normals with correlations, dense and low-rank: their steps, and where they end."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.inference.score import ScoreVI
from posterity.inference.score_dense import ScoreDense, dense_step_
from posterity.inference.score_low_rank import DAMPING, ScoreLowRank, low_rank_step
from posterity.random import Random
from posterity.tree import Tree

RATE = 1e-3  # small: the trust regions are open


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def objective(mean: Tensor, covariance: Tensor, theta: Tensor, h: Tensor, metric: Tensor | None = None) -> Tensor:
    """The mean over frozen draws of |grad log q - s|^2, or of r^T metric r."""
    r = h - torch.linalg.solve(covariance, (theta - mean).T).T
    return (r * (r if metric is None else r @ metric)).sum(1).mean()


# --- dense -------------------------------------------------------------------------------------------------------------


def dense_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d = 5 weights, S = 3 draws: mean, L, z, h."""
    return (
        normals(5, seed=0),
        torch.eye(5).double() + 0.3 * normals(5, 5, seed=1),
        normals(3, 5, seed=2),
        normals(3, 5, seed=3),
    )


def test_the_dense_step_descends_the_objective() -> None:
    """In the norm of Sigma_t, preconditioned by Sigma: -h/2 Sigma dJ/dm and -h/8 Sigma dJ/dL, by autograd."""
    mean, factor, z, h = dense_case()
    sigma = factor @ factor.T
    m, root = mean.clone().requires_grad_(), factor.clone().requires_grad_()
    found = torch.autograd.grad(objective(m, root @ root.T, mean + z @ factor.T, h, sigma), [m, root])
    moved, turned = mean.clone(), factor.clone()
    dense_step_(moved, turned, z, z @ factor.T, h, RATE)
    torch.testing.assert_close(moved - mean, -RATE / 2 * sigma @ found[0], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(turned - factor, -RATE / 8 * sigma @ found[1], rtol=1e-10, atol=1e-13)


def test_the_dense_closed_form_is_the_papers_objective_too() -> None:
    """2 P r and 2 <u v^T + P r z^T> with r = L^-T w, u = L^-T z, v = L^-1 r from the step's own w: the plain norm."""
    mean, factor, z, h = dense_case()
    m, root = mean.clone().requires_grad_(), factor.clone().requires_grad_()
    by_mean, by_factor = torch.autograd.grad(objective(m, root @ root.T, mean + z @ factor.T, h), [m, root])
    r = (h @ factor - z) @ torch.linalg.inv(factor)
    u, v = z @ torch.linalg.inv(factor), r @ torch.linalg.inv(factor).T
    a = v @ torch.linalg.inv(factor)
    torch.testing.assert_close(by_mean, 2 * a.mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(by_factor, 2 * (u.T @ v + a.T @ z) / len(z), rtol=1e-10, atol=1e-12)


def test_the_dense_step_stays_in_its_trust_region() -> None:
    mean, factor, z, h = dense_case()
    moved, turned = mean.clone(), factor.clone()
    dense_step_(moved, turned, z, z @ factor.T, 1e6 * h, 0.3)
    relative = torch.linalg.solve(factor, turned - factor)
    assert 0.1 < torch.linalg.matrix_norm(relative) <= 0.5 + 1e-9
    assert torch.linalg.vector_norm(torch.linalg.solve(factor, moved - mean)) == pytest.approx(0.5 * math.sqrt(5))


def test_a_covariance_that_does_not_fit_is_refused() -> None:
    problem = po.Density(lambda theta: -theta["x"].square().sum(), {"x": torch.zeros(1000)})
    algorithm = ScoreDense(max_memory=2 * 4 * 1000**2 - 1)
    for ask in (
        lambda: algorithm.check(problem, None),
        lambda: algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 1, 1)),
    ):
        with pytest.raises(
            po.CompatibilityError, match="all 1,000 weights would take 0.0 GiB.*use ScoreVI.'low-rank-plus"
        ):
            ask()
    ScoreDense(max_memory=2 * 4 * 1000**2).check(problem, None)


# --- low-rank ----------------------------------------------------------------------------------------------------------


def low_rank_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d = 5 weights, rank 2, S = 3 draws: s, U, theta - m, h."""
    return normals(5, seed=0).exp(), normals(5, 2, seed=1), normals(3, 5, seed=2), normals(3, 5, seed=3)


def test_the_low_rank_step_descends_the_objective() -> None:
    """By Woodbury, against autograd through a dense inverse of D + U U^T."""
    s, factor, shifts, h = low_rank_case()
    sigma = torch.diag(s**2) + factor @ factor.T
    precision = torch.linalg.inv(sigma)
    m, u, log_s = torch.zeros(5).double().requires_grad_(), factor.clone().requires_grad_(), s.log().requires_grad_()
    covariance = torch.diag((2 * log_s).exp()) + u @ u.T
    found = torch.autograd.grad(objective(m, covariance, shifts, h, sigma), [m, u, log_s])
    by_mean, by_factor, by_log_std, _ = low_rank_step(s, factor, shifts, h, RATE, RATE)
    fisher = factor.T @ precision @ factor + DAMPING * torch.eye(2).double()
    torch.testing.assert_close(by_mean, -RATE / 2 * sigma @ found[0], rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(
        by_factor, -RATE / 8 * sigma @ found[1] @ torch.linalg.inv(fisher), rtol=1e-10, atol=1e-13
    )
    torch.testing.assert_close(by_log_std, -RATE / 8 * found[2] / (s**2 * precision.diagonal()), rtol=1e-10, atol=1e-13)


def test_the_low_rank_step_stays_in_its_trust_region() -> None:
    s, factor, shifts, h = low_rank_case()
    precision = torch.linalg.inv(torch.diag(s**2) + factor @ factor.T)
    by_mean, by_factor, by_log_std, _ = low_rank_step(s, factor, shifts, 1e6 * h, 0.3, 0.3)
    assert float(by_mean @ precision @ by_mean) == pytest.approx(0.25 * 5)
    assert float((by_factor.T @ precision @ by_factor).trace()) == pytest.approx(0.25)
    assert by_log_std.abs().max() == 0.2


def test_a_low_rank_without_columns_is_the_diagonal_step() -> None:
    """U = 0: m and log s move as in the diagonal family, -h s u and -(h / 2) e u with u = s r, averaged over the draws."""
    s, _, shifts, h = low_rank_case()
    by_mean, by_factor, by_log_std, _ = low_rank_step(s, torch.zeros(5, 2).double(), shifts, h, RATE, RATE)
    e = shifts / s
    u = s * h - e
    torch.testing.assert_close(by_mean, -RATE * s * u.mean(0), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(by_log_std, -RATE / 2 * (e * u).mean(0), rtol=1e-12, atol=1e-15)
    assert not by_factor.any()


def test_the_hybrid_moves_the_mean_by_adam() -> None:
    """m by Adam on <R> / (w N), U and s as in the whitened update."""
    target = Target(low_rank(5, 2, 10.0))
    target.data_size = 13
    states = []
    for update in ("whitened", "hybrid"):
        algorithm = ScoreLowRank(update=update, rank=2, learning_rate=RATE, spread_learning_rate=RATE, init_std=0.5)
        state = algorithm.init(target, target.start(), Random(0), po.Plan(1, 3, 3))
        sigma = torch.diag(state.std[0] ** 2) + state.factor[0] @ state.factor[0].T
        states.append(algorithm.step(target, state, [None], Random(0))[0])
    plain, hybrid = states
    assert torch.equal(plain.factor, hybrid.factor)
    assert torch.equal(plain.std, hybrid.std)
    whitened, moved = (torch.cat([one.mean["b"].flatten(), one.mean["a"].flatten()]) for one in states)
    # Adam's first step is the rate against the sign of the residual; the whitened one is -h Sigma of it
    residual = hybrid.mean_first["joined"][0] / 0.1
    torch.testing.assert_close(moved, -RATE * residual.sign(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(hybrid.mean_second["joined"][0], 0.001 * residual**2)
    torch.testing.assert_close(whitened, -RATE * 13 * sigma @ residual)


# --- both --------------------------------------------------------------------------------------------------------------


class Target(po.Density):
    """A normal of two tensors; its scores have noise of `noise` / std, and its evaluations are counted."""

    def __init__(self, covariance: Tensor, noise: float = 0.0, dtype: torch.dtype = torch.float64) -> None:
        d = len(covariance)
        self.mean, self.covariance, self.evaluations = normals(d, seed=0), covariance, 0
        root, std = torch.linalg.cholesky(torch.linalg.inv(covariance)), covariance.diagonal().sqrt()
        stream = generator(1)

        def log_density(theta: Tree) -> Tensor:
            self.evaluations += 1
            x = torch.cat([theta["b"].flatten(), theta["a"]]).double()
            value = -0.5 * ((x - self.mean) @ root).square().sum()
            if noise > 0:
                value = value + noise * (torch.randn(d, dtype=torch.float64, generator=stream) / std * x).sum()
            return value

        super().__init__(log_density, {"b": torch.zeros(2, 1, dtype=dtype), "a": torch.zeros(d - 2, dtype=dtype)})


def end(algorithm: Any, target: Target, steps: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of q after so many steps."""
    state = algorithm.init(target, target.start(), Random(0), po.Plan(1, steps, steps))
    for _ in range(steps):
        state, _ = algorithm.step(target, state, [None], Random(0))
    factor = state.factor[0].double()
    covariance = factor @ factor.T
    if isinstance(algorithm, ScoreLowRank):
        covariance = covariance + torch.diag(state.std[0].double() ** 2)
    return torch.cat([state.mean["b"].flatten(), state.mean["a"].flatten()]).double(), covariance


def kl(mean: Tensor, covariance: Tensor, target: Target) -> float:
    """KL(q || target)."""
    inner, away = torch.linalg.solve(target.covariance, covariance), mean - target.mean
    value = inner.trace() - len(mean) - torch.logdet(inner) + away @ torch.linalg.solve(target.covariance, away)
    return 0.5 * float(value)


def correlations(covariance: Tensor) -> Tensor:
    std = covariance.diagonal().sqrt()
    return covariance / torch.outer(std, std)


def rotated(d: int, kappa: float) -> Tensor:
    """Eigenvalues log-spaced in [1 / kappa, 1]."""
    basis, _ = torch.linalg.qr(normals(d, d, seed=2))
    return basis @ torch.diag(torch.logspace(-math.log10(kappa), 0, d, dtype=torch.float64)) @ basis.T


def low_rank(d: int, rank: int, kappa: float) -> Tensor:
    factor = normals(d, rank, seed=3)
    return torch.diag(torch.logspace(-math.log10(kappa), 0, d, dtype=torch.float64)) + factor @ factor.T


@pytest.mark.parametrize(
    ("d", "kappa", "evaluations"),
    [
        (7, 1e4, 1600),
        pytest.param(100, 1e2, 8000, marks=pytest.mark.slow),
        pytest.param(100, 1e4, 8000, marks=pytest.mark.slow),
    ],
)
def test_dense_ends_at_a_correlated_normal(d: int, kappa: float, evaluations: int) -> None:
    target = Target(rotated(d, kappa))
    mean, covariance = end(ScoreVI("dense", init_std=1.0), target, evaluations // 8)
    assert target.evaluations == evaluations
    assert kl(mean, covariance, target) < 1e-2
    assert (correlations(covariance) - correlations(target.covariance)).abs().max() < 0.02


@pytest.mark.slow
def test_dense_ends_there_with_noisy_scores() -> None:
    """Noise of 1 / std on 20000 scores. Their mean knows a correlation to 1 / sqrt(20000) = 0.7 % at best, the late steps
    of a cosine to twice that: the largest of 45 within four.
    """
    target = Target(rotated(10, 1e4), noise=1.0)
    mean, covariance = end(ScoreVI("dense", init_std=1.0), target, 2500)
    assert kl(mean, covariance, target) < 0.02
    found, wanted = correlations(covariance), correlations(target.covariance)
    assert (found - wanted).abs().max() < 0.06
    large = wanted.abs() > 0.1
    assert torch.equal(found.sign()[large], wanted.sign()[large])


@pytest.mark.parametrize(("d", "rank", "steps"), [(17, 2, 300), pytest.param(200, 5, 800, marks=pytest.mark.slow)])
def test_low_rank_ends_at_a_target_of_its_family(d: int, rank: int, steps: int) -> None:
    target = Target(low_rank(d, rank, 100.0))
    mean, covariance = end(ScoreVI("low-rank-plus-diagonal", rank=rank, init_std=0.5), target, steps)
    assert kl(mean, covariance, target) < 1e-3
    assert (correlations(covariance) - correlations(target.covariance)).abs().max() < 0.02


def test_low_rank_lies_between_diagonal_and_dense() -> None:
    """A target that is not of the family: nearer than the best independent normals, and more so with a higher rank."""
    target = Target(rotated(11, 30.0))
    best_diagonal = torch.diag(torch.linalg.inv(target.covariance).diagonal().reciprocal())
    values = [kl(target.mean, best_diagonal, target)]
    for rank in (1, 4):
        mean, covariance = end(ScoreVI("low-rank-plus-diagonal", rank=rank, init_std=0.5, draws=4), target, 300)
        values.append(kl(mean, covariance, target))
    assert 0.9 * values[0] > values[1]
    assert 0.7 * values[1] > values[2]
    found, wanted = correlations(covariance), correlations(target.covariance)
    large = wanted.abs() > 0.4
    assert int(large.sum()) > 11
    assert torch.equal(found.sign()[large], wanted.sign()[large])


@pytest.mark.parametrize("family", ["dense", "low-rank-plus-diagonal"])
def test_every_draw_of_every_member_is_another_one(family: str) -> None:
    """S evaluations a step on the member's one batch, at weights drawn from q: 2 members x 5 draws x 2 steps."""
    asked: list[Tensor] = []
    seeds: list[int] = []

    class Flat(po.Density):
        def nll(self, theta: Tree, batch: Any, random: Random) -> Any:
            asked.append(theta["a"].detach().clone())
            seeds.append(random.seed)
            return super().nll(theta, batch, random)

    problem = Flat(lambda theta: 0.0 * theta["a"].sum(), {"a": torch.full((1009,), 0.5)})
    rates = {"learning_rate": 1e-9} if family == "dense" else {"learning_rate": 1e-9, "spread_learning_rate": 1e-9}
    algorithm = po.Ensemble(ScoreVI(family, draws=5, init_std=0.3, **rates), 2)
    state = algorithm.init(problem, problem.starts(2, "same", Random(0)), Random(0), po.Plan(1, 2, 2))
    for _ in range(2):
        state, _ = algorithm.step(problem, state, [None, None], Random(0))
    z = (torch.stack(asked) - 0.5) / 0.3
    assert len(z) == len(set(seeds)) == 20  # also what is random about a forward is another one for each
    # 20 stds of 1009 weights, 190 correlations of 1 / sqrt(1009) = 3 % each; the columns of U add less than that
    assert ((z.std(1) - 1).abs() < 4 / math.sqrt(2 * 1009) + 0.01).all()
    assert (torch.corrcoef(z) - torch.eye(20)).abs().max() < 5 / math.sqrt(1009)


@pytest.mark.parametrize("family", ["dense", "low-rank-plus-diagonal"])
def test_the_posterior_is_the_states_normal(family: str) -> None:
    """Tensors in their own shapes, the covariance across them, and no memory shared with the state."""
    target = Target(low_rank(7, 2, 10.0), dtype=torch.float32)
    algorithm = ScoreVI(family, init_std=1.0)
    state = algorithm.init(target, target.start(), Random(0), po.Plan(1, 100, 100))
    for _ in range(100):
        state, _ = algorithm.step(target, state, [None], Random(0))
    posterior = algorithm.posterior(state)
    draws = list(posterior.draws(2000, Random(1)))
    assert draws[0]["b"].shape == (2, 1)
    assert draws[0]["a"].dtype == torch.float32
    found = torch.stack([torch.cat([draw["b"].flatten(), draw["a"]]) for draw in draws]).double()
    # 28 covariances of 2000 draws: errors of at most sqrt(2 / 2000) = 3 % of the stds' product, within four
    scale = torch.outer(target.covariance.diagonal().sqrt(), target.covariance.diagonal().sqrt())
    assert ((torch.cov(found.T) - target.covariance) / scale).abs().max() < 0.13
    moments = posterior.moments()
    stds = torch.cat([moments[name].std.flatten() for name in ("b", "a")]).double()
    assert (stds / target.covariance.diagonal().sqrt() - 1).abs().max() < 0.01
    before = {name: leaf.clone() for name, leaf in posterior.tensors().items()}
    algorithm.step(target, state, [None], Random(0))
    assert all(torch.equal(leaf, before[name]) for name, leaf in posterior.tensors().items())
