"""Rank-1 variational inference: its gradients, a bound whose optimum is known, and what is a point."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import CompatibilityError
from posterity.inference.rank_one import RankOneState
from posterity.posterior.moments import Deterministic
from posterity.posterior.rank_one import RankOne, scaled
from posterity.random import Random
from posterity.testing.runs import network_problem, rows_for
from posterity.tree import Tree, clone

ROWS, FEATURES, CLASSES = 41, 3, 5
X = Random(1).normal((ROWS, FEATURES))
Y = torch.arange(ROWS).remainder(CLASSES)


def net() -> nn.Module:
    """A kernel of 7 x 2 x 3, a matrix and their biases."""
    with Random(0).forked():
        body = nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 2), nn.Conv1d(2, 7, 2), nn.Flatten())
        return body.append(nn.Linear(7, CLASSES))


def test_a_step_follows_the_gradient_of_the_bound() -> None:
    """Adam's first moment after one step is (1 - b1) times the gradient that autograd takes of the bound, written out."""
    prior_std, weights_std, size = 0.3, 0.7, 2.5 * ROWS
    problem = network_problem(net(), X, Y, "categorical", weights_std)
    problem.data_weight = 2.5
    method = po.RankOneVI(init_std=0.2, prior_std=prior_std, members=2)
    random, batch = Random(3), rows_for(X, Y)
    starts = problem.starts(2, "reset", random)
    state: RankOneState = method.init(problem, starts, random, po.Plan(7, 5, 5))
    for leaf in (*state.scale.values(), *state.log_std.values()):  # off the symmetric start
        leaf.add_(0.1 * Random(4).normal(tuple(leaf.shape)))
    before = state._replace(theta=clone(state.theta), scale=clone(state.scale), log_std=clone(state.log_std))
    batches = [batch(0, k) for k in range(2)]
    after, info = method.step(problem, state, batches, random)
    assert info.finite.all()

    noise = random.fold("noise")
    for k in range(2):
        theta: Tree = {n: v[k].clone().requires_grad_() for n, v in before.theta.items()}
        mean = {n: v[k].clone().requires_grad_() for n, v in before.scale.items()}
        rho = {n: v[k].clone().requires_grad_() for n, v in before.log_std.items()}
        drawn = {}
        for name, m in mean.items():
            generator = noise.fold(name).fold(k).fold(0).generator()
            drawn[name] = m + rho[name].exp() * torch.empty_like(m).normal_(generator=generator)
        dense = {n: scaled(v, drawn[f"row/{n}"], drawn[f"column/{n}"]) if v.dim() > 1 else v for n, v in theta.items()}
        outputs = torch.func.functional_call(net(), dense, batches[k].inputs)
        kl = sum(
            (0.5 * ((2 * rho[n]).exp() + (mean[n] - 1) ** 2) / prior_std**2 - rho[n]).sum() for n in mean
        )  # but for constants
        penalty = sum(0.5 * (v / weights_std).square().sum() for v in theta.values())
        loss = nn.functional.cross_entropy(outputs, batches[k].targets) + (kl + penalty) / size
        loss.backward()
        for moments, tree in ((after.first, theta), (after.scale_first, mean), (after.log_std_first, rho)):
            for name, leaf in tree.items():
                torch.testing.assert_close(moments[name][k] / 0.1, leaf.grad, rtol=1e-4, atol=1e-6)


def bound(unknown: Tensor, curvature: float, target: float, prior_std: float) -> Tensor:
    """Minus the evidence lower bound of a weight W s r under N(target, 1 / curvature), in closed form; flat in W."""
    weight, mean, log_std = unknown[0], unknown[1], unknown[2]
    square = mean.square() + (2 * log_std).exp()  # of s and of r alike
    misfit = weight.square() * square.square() - 2 * target * weight * mean.square() + target**2
    kl = 0.5 * ((2 * log_std).exp() + (mean - 1).square()) / prior_std**2 - log_std
    return 0.5 * curvature * misfit + 2 * kl


def test_the_optimum_of_a_single_weight() -> None:
    """8 weights of 1 x 1, each a network of its own: their average is where the bound, minimised by itself, is."""
    curvature, target, prior_std, copies = 9.0, 1.5, 0.3, 8
    unknown = torch.tensor([target, 1.0, math.log(prior_std)], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([unknown], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = bound(unknown, curvature, target, prior_std)
        loss.backward()
        return loss

    optimizer.step(closure)
    weight, mean, log_std = unknown.tolist()
    assert math.exp(log_std) < 0.8 * prior_std  # the data say something
    density = po.Density(
        lambda theta: -0.5 * curvature * sum((w - target).square().sum() for w in theta.values()),
        {f"w{i}": torch.full((1, 1), target) for i in range(copies)},
    )
    method = po.RankOneVI(
        prior_std=prior_std, init_std=0.1, learning_rate=po.Cosine(0.02), scale_learning_rate=po.Cosine(0.02)
    )
    found = po.infer(density, method, 500)
    assert isinstance(found, RankOne)
    stds = torch.stack([std.flatten() for std in found.scale_stds.values()]).flatten()
    means = torch.stack([m.flatten() for m in found.mean().values()]).flatten()
    # 16 log stds that scatter by 0.034 and 8 means by 0.035, by the noise of the last steps: four stds of their averages
    assert abs(stds.log().mean() - log_std) < 4 * 0.034 / 16**0.5
    assert abs(means.mean() - weight * mean**2) < 4 * 0.035 / 8**0.5


def test_without_data_scales_are_their_prior() -> None:
    nothing = po.Density(lambda theta: 0.0 * theta["w"].sum(), {"w": torch.ones(5, 7)})
    found = po.infer(nothing, po.RankOneVI(prior_std=0.3, init_std=0.05), 800)
    assert isinstance(found, RankOne)
    for key, std in found.scale_stds.items():
        torch.testing.assert_close(std, torch.full_like(std, 0.3), rtol=1e-2, atol=0.0)
        torch.testing.assert_close(found.scale_means[key], torch.ones_like(std), rtol=1e-3, atol=0.0)


def test_matrices_vary_and_the_rest_are_points() -> None:
    model = po.fit(net(), (X, X[:, 0]), po.Gaussian(), po.RankOneVI(), epochs=1, output=lambda out: out[:, 0])
    posterior = model.posterior
    assert isinstance(posterior, RankOne)
    shapes = {name: tuple(leaf.shape) for name, leaf in posterior.scale_means.items()}
    assert shapes == {
        "row/1.weight": (2,), "column/1.weight": (2,),
        "row/2.weight": (7,), "column/2.weight": (4,),
        "row/4.weight": (5,), "column/4.weight": (7,),
    }  # fmt: skip
    moments = posterior.moments()
    assert all(
        isinstance(moments[name], Deterministic) == name.endswith("bias") for name in moments if name[0] in "124"
    )
    likelihood = [name for name in moments if name.startswith("likelihood.")]
    assert likelihood
    assert all(isinstance(moments[name], Deterministic) for name in likelihood)


def test_it_starts_at_the_users_weights() -> None:
    problem = network_problem(net(), X, Y, "categorical")
    method = po.RankOneVI(members=2)
    starts = problem.starts(2, "reset", Random(0))
    point = method.point(method.init(problem, starts, Random(0), po.Plan(7, 5, 5)))
    for k, start in enumerate(starts):
        assert all(torch.equal(point[name][k], leaf) for name, leaf in start.items())


def test_what_cannot_be_is_said() -> None:
    for fault in ({"init_std": 0.0}, {"prior_std": math.inf}, {"beta1": 1.0}):
        with pytest.raises(ValueError, match=next(iter(fault))):
            po.RankOneVI(**fault)
    vector = po.Density(lambda theta: -theta["x"].square().sum(), {"x": torch.zeros(3)})
    with pytest.raises(CompatibilityError, match="two dimensions"):
        po.infer(vector, po.RankOneVI(), 1)


def test_epistemic_uncertainty_grows_off_the_data() -> None:
    y = X[:, 0] - X[:, 1] + 0.5 * Random(2).normal((ROWS,))
    with Random(0).forked():
        network = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))
    model = po.fit(network, (X, y), "gaussian", po.RankOneVI(), epochs=60, batch_size=8)
    assert {"scale_kl", "scale_std"} <= model.history[-1].keys()
    on, off = (model.predict(at, draws=64).epistemic.mean() for at in (X, 4.0 * X))  # type: ignore[attr-defined]
    assert off > 2.0 * on > 0.0
