"""ADVI, diagonal and full: its gradients against autograd, where it ends, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.inference.advi import ADVI
from posterity.inference.advi_full import full_gradients
from posterity.problem.priors import Normal
from posterity.problem.reference import gaussian
from posterity.random import Random
from posterity.tree import Tree

SIZE, WEIGHT, PRIOR_STD, DRAWS = 13, 2.0, 0.7, 3
START = {"a": torch.tensor([0.3, -0.2, 0.5]).double(), "b": torch.tensor([[0.1], [0.9]]).double()}
CENTER = {"a": torch.tensor([0.1, 0.2, -0.3]).double(), "b": torch.tensor([[0.0], [0.4]]).double()}


def mean_loss(theta: Tree) -> Tensor:
    """A smooth loss without symmetry, which couples the tensors."""
    a, b = theta["a"], theta["b"]
    return (torch.sin(a[0] * a[1]) + a[2] ** 2 * b[0, 0] + 0.5 * (b**2).sum() + torch.cosh(a * b[1, 0]).sum()) / 3.0


def potential(theta: Tree) -> Tensor:
    """U = w N mean NLL - log p."""
    pulls = [((theta[name] - CENTER[name]) / PRIOR_STD).square().sum() for name in theta]
    return WEIGHT * SIZE * mean_loss(theta) + 0.5 * torch.stack(pulls).sum()


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


def one_step(algorithm: Any) -> tuple[Any, list[Tree]]:
    problem = Recorded()
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 5, 5))
    state, _ = algorithm.step(problem, state, [None], Random(0))
    return state, problem.asked


def flat(tree: Tree) -> Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in tree.values()])


def test_the_diagonal_gradient_is_that_of_the_bound_without_the_path_through_q() -> None:
    """The first moments after one step are 0.1 of what autograd finds, with the parameters of log q held."""
    state, asked = one_step(ADVI(draws=DRAWS, init_std=0.2))
    assert len({float(theta["a"][0]) for theta in asked}) == DRAWS
    m = {name: leaf.clone().requires_grad_() for name, leaf in START.items()}
    rho = {name: torch.full_like(leaf, math.log(0.2)).requires_grad_() for name, leaf in START.items()}
    bounds = []
    for theta in asked:
        moved = {name: m[name] + rho[name].exp() * (theta[name] - START[name]) / 0.2 for name in m}
        log_q = [torch.distributions.Normal(m[n].detach(), 0.2).log_prob(moved[n]).sum() for n in m]
        bounds.append((torch.stack(log_q).sum() + potential(moved)) / (WEIGHT * SIZE))
    found = torch.autograd.grad(torch.stack(bounds).mean(), [*m.values(), *rho.values()])
    for name, by_mean, by_rho in zip(m, found[: len(m)], found[len(m) :]):
        torch.testing.assert_close(10 * state.mean_first[name][0], by_mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(10 * state.log_std_first[name][0], by_rho, rtol=1e-10, atol=1e-12)


def bound(mean: Tensor, free: Tensor, z: Tensor, held: bool) -> Tensor:
    """The bound over w N at theta = m + L z; with `held`, without the path through the parameters of log q."""
    factor = free.tril(-1) + free.diagonal().exp().diag()
    theta = mean + z @ factor.T
    center, root = (mean.detach(), factor.detach()) if held else (mean, factor)
    log_q = torch.distributions.MultivariateNormal(center, scale_tril=root).log_prob(theta)
    trees = [{"a": row[:3], "b": row[3:].view(2, 1)} for row in theta]
    return (log_q.mean() + torch.stack([potential(tree) for tree in trees]).mean()) / (WEIGHT * SIZE)


@pytest.mark.parametrize("sticks", [True, False])
def test_the_full_gradient_is_that_of_the_bound(sticks: bool) -> None:
    """Closed forms against autograd at the step's own draws, from an L that is not diagonal."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(DRAWS, 5, dtype=torch.float64, generator=generator)
    free = 0.3 * torch.randn(5, 5, dtype=torch.float64, generator=generator).tril()
    mean, free = flat(START).requires_grad_(), free.requires_grad_()
    wanted = torch.autograd.grad(bound(mean, free, z, sticks), [mean, free])
    factor = (free.tril(-1) + free.diagonal().exp().diag()).detach()
    thetas = (mean.detach() + z @ factor.T).requires_grad_()
    trees = [{"a": row[:3], "b": row[3:].view(2, 1)} for row in thetas]
    (h,) = torch.autograd.grad(torch.stack([potential(tree) for tree in trees]).sum(), [thetas])
    found = full_gradients(factor, z, h / (WEIGHT * SIZE), 1 / (WEIGHT * SIZE), sticks)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_full_step_has_the_scale_of_the_problem() -> None:
    """N, w, the prior and its centre: the first moments are 0.1 of autograd's, and the step is Adam's."""
    state, asked = one_step(
        ADVI("full", draws=DRAWS, init_std=0.2, learning_rate=0.01, factor_learning_rate=0.02, stick_the_landing=True)
    )
    z = (torch.stack([flat(theta) for theta in asked]) - flat(START)) / 0.2
    start = torch.full((5,), math.log(0.2), dtype=torch.float64).diag()
    mean, free = flat(START).requires_grad_(), start.clone().requires_grad_()
    by_mean, by_free = torch.autograd.grad(bound(mean, free, z, True), [mean, free])
    torch.testing.assert_close(10 * state.mean_first[0], by_mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(10 * state.free_first[0], by_free, rtol=1e-9, atol=1e-12)
    # Adam's first step is the rate against the sign
    moved = torch.cat([leaf[0].reshape(-1) for leaf in state.mean.values()]) - flat(START)
    torch.testing.assert_close(moved, -0.01 * by_mean.sign(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(state.free[0] - start, -0.02 * by_free.sign(), rtol=1e-4, atol=0.0)


def run(algorithm: Any, target: Any, steps: int) -> Any:
    state = algorithm.init(target, target.start(), Random(0), po.Plan(1, steps, steps))
    for _ in range(steps):
        state, info = algorithm.step(target, state, [None], Random(0))
        assert bool(info.finite.all())
    return state


def test_the_full_one_ends_at_a_correlated_normal() -> None:
    """Noise ends there: with the closed entropy the same run stays a hundred times as far."""
    target = gaussian(5, 10.0, rotation=2)
    values = []
    for sticks in (True, False):
        algorithm: Any = ADVI("full", init_std=0.5, stick_the_landing=sticks)
        state = run(algorithm, target, 1000)
        factor = algorithm.factors(state)[0]
        assert torch.equal(factor, factor.tril())
        values.append(target.kl(state.mean["x"][0], factor @ factor.T))
    assert values[0] < 1e-6
    assert 100 * values[0] < values[1] < 1e-1


def test_the_diagonal_one_ends_at_the_best_independent_normals() -> None:
    """s_i^2 = 1 / P_ii = 0.36, where the true variance is 1; the last quarter of a cosine over 600 steps of 4 draws leaves
    about 3 % of the stds.
    """
    precision = torch.linalg.inv(torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64))
    mean = torch.tensor([0.5, -1.0]).double()

    def log_density(theta: Tree) -> Tensor:
        away = theta["x"] - mean
        return -0.5 * away @ precision @ away

    rates = po.Cosine(0.05)
    algorithm = ADVI(draws=4, init_std=0.3, learning_rate=rates, std_learning_rate=rates)
    state = run(algorithm, po.Density(log_density, {"x": torch.zeros(2).double()}), 600)
    torch.testing.assert_close(state.log_std["x"][0].exp(), torch.full((2,), 0.6).double(), rtol=0.08, atol=0.0)
    torch.testing.assert_close(state.mean["x"][0], mean, rtol=0.0, atol=0.1)


def test_a_factor_without_an_inverse_is_not_finite() -> None:
    """1 / L_ii overflows: the step is said to be not finite, and nothing of it gets into the state."""
    target = gaussian(3)
    algorithm: Any = ADVI("full", stick_the_landing=True)
    state = algorithm.init(target, target.start(), Random(0), po.Plan(1, 5, 5))
    state.free[0, 1, 1] = -800.0
    before = [leaf.clone() for leaf in (state.mean["x"], state.free, state.mean_first, state.free_second)]
    state, info = algorithm.step(target, state, [None], Random(0))
    assert info.finite.tolist() == [False]
    for leaf, old in zip((state.mean["x"], state.free, state.mean_first, state.free_second), before):
        assert torch.equal(leaf, old)


def test_an_unknown_covariance_is_refused() -> None:
    with pytest.raises(po.CompatibilityError, match="no covariance 'dense': choose one of 'diagonal' or 'full'"):
        ADVI("dense")
    with pytest.raises(ValueError, match="draws must be finite and > 0"):
        ADVI(draws=0)
