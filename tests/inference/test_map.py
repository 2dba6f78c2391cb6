"""Maximum a posteriori: its update in float64, its exact mode, AdamW's decay, and the snapshots that it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.problem.batches import Batch
from posterity.problem.priors import Flat, Laplace, Normal, Prior, ScaleMixture
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.testing.runs import network_problem, rows_for, walk
from posterity.testing.worlds import inputs, labels, plain_network
from posterity.tree import Tree

SIZE, WEIGHT = 13, 2.0
START = {"a": torch.tensor([0.3, -0.2, 0.5]), "b": torch.tensor([[0.1], [0.9]])}


def mean_loss(theta: Tree) -> Tensor:
    a, b = theta["a"], theta["b"]
    return (torch.cosh(a - 0.7).sum() + (a[0] * b).sum() + (b - 0.4).pow(4).sum()) / 3.0


def problem_with(prior: Prior) -> po.Density:
    problem = po.Density(lambda theta: -mean_loss(theta), START)
    problem.data_size, problem.data_weight, problem.prior = SIZE, WEIGHT, prior.bind(START)
    return problem


def run(algorithm: po.MAP, prior: Prior, steps: int) -> Any:
    problem = problem_with(prior)
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, steps, steps))
    for _ in range(steps):
        state, _ = algorithm.step(problem, state, [None], Random(0))
    return state


def potential(theta: Tree, prior: Prior) -> Tensor:
    return WEIGHT * SIZE * mean_loss(theta) - prior.log_density(theta)


def test_an_update_is_its_formula() -> None:
    """The prior's pull r stays out of the moments and in the preconditioner."""
    prior, h = Normal(0.7), 0.03
    state = run(po.MAP(learning_rate=h, beta1=0.8, beta2=0.95), prior, 5)
    theta = {name: leaf.double() for name, leaf in START.items()}
    first, second = ({name: torch.zeros_like(leaf) for name, leaf in theta.items()} for _ in range(2))
    for t in range(1, 6):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in theta.items()}
        found = torch.autograd.grad(mean_loss(leaves), list(leaves.values()))
        for (name, leaf), g in zip(theta.items(), found):
            first[name] = 0.8 * first[name] + 0.2 * g
            second[name] = 0.95 * second[name] + 0.05 * g**2
            r = leaf / 0.7**2 / (WEIGHT * SIZE)
            root = (second[name] / (1 - 0.95**t) + r**2).sqrt() + 1e-8
            theta[name] = leaf - h * (first[name] / (1 - 0.8**t) + r) / root
    for name, leaf in theta.items():
        # five steps of a dozen float32 operations: some 60 roundings of 6e-8
        torch.testing.assert_close(state.theta[name][0].double(), leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prior", [Normal(0.5), Normal(0.5, center="start"), ScaleMixture(1.0, 0.3), Flat()])
def test_the_fixed_point_is_the_mode(prior: Prior) -> None:
    """grad U = 0, though the moments know nothing of the prior."""
    state = run(po.MAP(learning_rate=po.Cosine(0.1)), prior, 400)
    theta = {name: leaf[0].double().requires_grad_() for name, leaf in state.theta.items()}
    found = torch.autograd.grad(potential(theta, prior.bind(START)), list(theta.values()))
    # float32 weights of about 1 under a curvature of about w N: 26 * 6e-8, a few times
    assert max(float(g.abs().max()) for g in found) < 1e-4


def test_a_laplace_prior_brings_weights_to_its_centre() -> None:
    """Where the data pull less than 1 / scale, the mode is 0 itself; a step's length away at most."""
    pull = torch.tensor([0.5, -0.9, 3.0])
    problem = po.Density(lambda t: -(t["x"] * pull).sum() - 0.5 * t["x"].square().sum(), {"x": torch.ones(3)})
    problem.prior = Laplace(1.0).bind(problem.start())
    algorithm = po.MAP(learning_rate=po.Cosine(0.05))
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 500, 500))
    for _ in range(500):
        state, _ = algorithm.step(problem, state, [None], Random(0))
    torch.testing.assert_close(state.theta["x"][0], torch.tensor([0.0, 0.0, -2.0]), rtol=0, atol=5e-3)


def test_weight_decay_is_adamw() -> None:
    """Instead of the prior, whatever that is."""
    state = run(po.MAP(learning_rate=0.03, weight_decay=0.1), Normal(0.01), 5)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in START.items()}
    optimizer = torch.optim.AdamW(leaves.values(), lr=0.03, weight_decay=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        mean_loss(leaves).backward()
        optimizer.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(state.theta[name][0], leaf.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("keep_best", "step"), [(True, 6), (False, 9)])
def test_a_snapshot_is_of_the_best_validation(keep_best: bool, step: int) -> None:
    """Weights, bias-corrected moments of the MEAN loss, gradient and step, taken together at each member's best."""
    x = inputs()
    batch, problem = rows_for(x, labels(x)), network_problem(plain_network(), x, labels(x), "categorical", 0.1)
    algorithm = po.MAP(members=2, keep_best=keep_best)
    starts = problem.starts(2, "reset", Random(0))
    state = algorithm.init(problem, starts, Random(0), po.Plan(7, 9, 3))
    taken: list[dict[str, Tree]] = []
    moments = [torch.zeros(4, 3), torch.zeros(4, 3)]
    for t in range(9):
        theta = {name: leaf[1].clone() for name, leaf in state.theta.items()}
        batches = [batch(t, 0), batch(t, 1)]
        _, gradient, _ = problem.nll(theta, batches[1], Random(0))  # nothing in this network is random
        moments = [
            0.9 * moments[0] + 0.1 * gradient["0.weight"],
            0.999 * moments[1] + 0.001 * gradient["0.weight"] ** 2,
        ]
        state, _ = algorithm.step(problem, state, batches, Random(0))
        taken.append(
            {
                "theta": {name: leaf[1].clone() for name, leaf in state.theta.items()},
                "first": {"0.weight": moments[0] / (1 - 0.9 ** (t + 1))},
                "second": {"0.weight": moments[1] / (1 - 0.999 ** (t + 1))},
                "gradient": gradient,
            }
        )
        if t % 3 == 2:  # the second member is best after step 6, the first after step 3
            state = algorithm.validated(state, torch.tensor([[1.0, 3.0], [2.0, 1.0], [3.0, 2.0]])[t // 3])
    _, snapshot = algorithm.snapshots(state)
    assert isinstance(snapshot, Snapshot)
    assert (int(snapshot.step), int(snapshot.batch_size)) == (step, 7)
    wanted = taken[step - 1]
    for name, leaf in wanted["theta"].items():
        assert snapshot.theta[name].equal(leaf)
    for part in ("first", "second", "gradient"):
        found = getattr(snapshot, part)["0.weight"]
        torch.testing.assert_close(found, wanted[part]["0.weight"], rtol=1e-4, atol=1e-8)  # float32, nine terms
    draws = list(algorithm.posterior(state).draws(None, Random(0)))
    assert draws[1]["0.weight"].equal(wanted["theta"]["0.weight"])


def test_without_validation_the_last_weights_are_the_snapshot() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical")
    *_, last = walk(po.MAP(), problem, rows_for(x, labels(x)), 5)
    (snapshot,) = last.stage.snapshots(last.state)
    assert isinstance(snapshot, Snapshot)
    assert int(snapshot.step) == 5
    assert snapshot.theta["0.weight"].equal(last.state.theta["0.weight"][0])
    assert last.stage.posterior(last.state).finite == 1


def test_a_skipped_step_keeps_the_last_finite_gradient() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical")
    algorithm = po.MAP(members=2)
    state = algorithm.init(problem, problem.starts(2, "reset", Random(0)), Random(0), po.Plan(7, 3, 3))
    fine = Batch(x[:7], labels(x)[:7], rows=7)
    bad = fine._replace(weight=torch.full((7,), torch.inf))
    state, _ = algorithm.step(problem, state, [fine, bad], Random(0))
    kept = state.gradient["0.weight"].clone()
    assert float(kept[0].abs().max()) > 0
    assert not kept[1].any()
    state, _ = algorithm.step(problem, state, [bad, fine], Random(0))
    assert state.gradient["0.weight"][0].equal(kept[0])
    assert bool(torch.isfinite(state.gradient["0.weight"]).all())


def test_a_wrong_setting_is_refused() -> None:
    for make in (lambda: po.MAP(beta1=1.0), lambda: po.MAP(beta2=-0.1), lambda: po.MAP(weight_decay=-1.0)):
        with pytest.raises(ValueError, match="must"):
            make()
