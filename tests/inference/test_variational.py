"""Mean-field VI and IVON, step by step, against their formulas in float64 and against autograd of the bound."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.problem.priors import Normal
from posterity.random import Random
from posterity.tree import Tree

SIZE, WEIGHT, PRIOR_STD = 13, 2.0, 0.7
START = {"a": torch.tensor([0.3, -0.2, 0.5]), "b": torch.tensor([[0.1], [0.9]])}
CENTER = {"a": torch.tensor([0.1, 0.2, -0.3]), "b": torch.tensor([[0.0], [0.4]])}


def mean_loss(theta: Tree) -> Tensor:
    """A smooth loss without symmetry, which couples the tensors."""
    a, b = theta["a"], theta["b"]
    return (torch.sin(a[0] * a[1]) + a[2] ** 2 * b[0, 0] + 0.5 * (b**2).sum() + torch.cosh(a * b[1, 0]).sum()) / 3.0


class Recorded(po.Density):
    """A problem with N, w and a prior, which remembers the weights that it was asked about."""

    def __init__(self, start: Tree = START, center: Any = CENTER) -> None:
        super().__init__(lambda theta: -mean_loss(theta), start)
        self.data_size, self.data_weight = SIZE, WEIGHT
        self.prior = Normal(PRIOR_STD, center=center).bind(start)
        self.asked: list[Tree] = []

    def nll(self, theta: Tree, batch: Any, random: Random) -> Any:
        self.asked.append({name: leaf.double().clone() for name, leaf in theta.items()})
        return super().nll(theta, batch, random)


def run(algorithm: po.Algorithm, steps: int) -> tuple[list[Any], list[Tree]]:
    problem = Recorded()
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, steps, steps))
    states = [{name: getattr(state, name) for name in state._fields}]
    for _ in range(steps):
        before = state
        state, _ = algorithm.step(problem, state, [None], Random(0))
        states.append({name: getattr(state, name) for name in before._fields})
    return states, problem.asked


def gradient(theta: Tree) -> Tree:
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in theta.items()}
    return dict(zip(leaves, torch.autograd.grad(mean_loss(leaves), list(leaves.values()))))


def close(found: Tensor, wanted: Tensor) -> bool:
    # five steps of a dozen float32 operations: some 60 roundings of 6e-8
    return torch.allclose(found[0].double(), wanted, rtol=1e-5, atol=1e-6)


def test_mean_field_descends_the_gradient_of_the_bound() -> None:
    """The first moments after one step are 0.1 of the gradient that autograd finds for L(m, rho) at the same noise."""
    algorithm = po.MeanFieldVI(init_std=0.2)
    states, (theta,) = run(algorithm, 1)
    m = {name: leaf.double().requires_grad_() for name, leaf in START.items()}
    rho = {
        name: torch.full_like(leaf, math.log(0.2), dtype=torch.float64).requires_grad_() for name, leaf in START.items()
    }
    z = {name: (theta[name] - m[name].detach()) / 0.2 for name in theta}
    q = {name: torch.distributions.Normal(m[name], rho[name].exp()) for name in m}
    p = {name: torch.distributions.Normal(CENTER[name].double(), PRIOR_STD) for name in m}
    kl = sum(torch.distributions.kl_divergence(q[name], p[name]).sum() for name in m)
    bound = mean_loss({name: m[name] + rho[name].exp() * z[name] for name in m}) + kl / (WEIGHT * SIZE)
    found = torch.autograd.grad(bound, [*m.values(), *rho.values()])
    for name, by_mean, by_rho in zip(m, found[: len(m)], found[len(m) :]):
        # z is read off float32 weights: 6e-8 / 0.2 of noise, times a gradient of about 1
        torch.testing.assert_close(states[1]["mean_first"][name][0].double(), 0.1 * by_mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(states[1]["log_std_first"][name][0].double(), 0.1 * by_rho, rtol=1e-5, atol=1e-6)


def test_mean_field_takes_adams_steps() -> None:
    rates = {"mean": 0.05, "log_std": 0.03}
    states, asked = run(po.MeanFieldVI(learning_rate=0.05, std_learning_rate=0.03, init_std=0.2), 5)
    for name in START:
        m, rho = START[name].double(), torch.full_like(START[name], math.log(0.2), dtype=torch.float64)
        moments = {part: [torch.zeros_like(m), torch.zeros_like(m)] for part in rates}
        for t, theta in enumerate(asked, 1):
            g = gradient(theta)[name]
            share = 1 / (WEIGHT * SIZE)
            both = {
                "mean": g + share * (m - CENTER[name]) / PRIOR_STD**2,
                "log_std": g * (theta[name] - m) + share * ((2 * rho).exp() / PRIOR_STD**2 - 1),
            }
            step = {}
            for part, (first, second) in moments.items():
                first.mul_(0.9).add_(0.1 * both[part])
                second.mul_(0.999).add_(0.001 * both[part] ** 2)
                step[part] = rates[part] * (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            m, rho = m - step["mean"], rho - step["log_std"]
        assert close(states[5]["mean"][name], m)
        assert close(states[5]["log_std"][name], rho)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_ivon_is_its_formulas(clip: float | None) -> None:
    h0, beta1, beta2, rate = 0.3, 0.8, 0.95, 0.1
    algorithm = po.IVON(learning_rate=rate, init_hessian=h0, beta1=beta1, beta2=beta2, clip=clip)
    states, asked = run(algorithm, 5)
    size = WEIGHT * SIZE
    d = 1 / PRIOR_STD**2 / size
    for name in START:
        m, e, h = (
            START[name].double(),
            torch.zeros_like(START[name]).double(),
            torch.full_like(START[name], h0).double(),
        )
        for t, theta in enumerate(asked, 1):
            g = gradient(theta)[name]
            e = beta1 * e + (1 - beta1) * g
            f = size * (h + d) * (theta[name] - m) * g
            h = beta2 * h + (1 - beta2) * f + (1 - beta2) ** 2 * (h - f) ** 2 / (2 * (h + d))
            step = (h0 + d) * (e / (1 - beta1**t) + d * (m - CENTER[name])) / (h + d)
            m = m - rate * (step if clip is None else step.clamp(-clip, clip))
        assert close(states[5]["mean"][name], m)
        assert close(states[5]["precision"][name] / size - d, h)
        assert close(states[5]["momentum"][name], e)


def test_ivon_forgets_its_start_within_a_run() -> None:
    """beta2=None is 1 - 10 / steps, at least 0.99."""
    for steps, beta2 in {5: 0.99, 1000: 0.99, 5000: 0.998}.items():
        problems = Recorded(), Recorded()
        ends = []
        for problem, given in zip(problems, (None, beta2)):
            algorithm = po.IVON(beta2=given)
            state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, steps, steps))
            for _ in range(3):
                state, _ = algorithm.step(problem, state, [None], Random(0))
            ends.append(state.precision["a"])
        torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize(
    ("algorithm", "std"),
    # IVON's own start: std = 1 / sqrt(w N h0 + 1 / p^2)
    [
        (po.MeanFieldVI(init_std=0.2), 0.2),
        (po.IVON(init_hessian=0.3), (WEIGHT * SIZE * 0.3 + 1 / PRIOR_STD**2) ** -0.5),
    ],
    ids=["mean-field", "ivon"],
)
def test_weights_are_drawn_from_the_family(algorithm: po.Algorithm, std: float) -> None:
    """1009 weights at the first step: N(start, std^2), other ones in each tensor, member and step."""
    start = {"a": torch.full((1009,), 0.5), "b": torch.full((1009,), 0.5)}
    problem = Recorded(start, "zero")
    problem.log_density = lambda theta: theta["a"].sum() + theta["b"].sum()
    two = po.Ensemble(algorithm, 2)
    state = two.init(problem, problem.starts(2, "same", Random(0)), Random(0), po.Plan(1, 2, 2))
    for _ in range(2):
        state, _ = two.step(problem, state, [None, None], Random(0))
    z = torch.stack([(problem.asked[k][name] - 0.5) / std for k in (0, 1) for name in ("a", "b")])
    assert (z.mean(1).abs() < 4 / math.sqrt(1009)).all()
    assert ((z.std(1) - 1).abs() < 4 / math.sqrt(2 * 1009)).all()
    z = torch.cat([z, torch.stack([problem.asked[k][name] - 0.5 for k in (2, 3) for name in ("a", "b")])])
    # eight independent streams of 1009: 28 correlations of 1/sqrt(1009) each
    assert (torch.corrcoef(z) - torch.eye(8)).abs().max() < 4 / math.sqrt(1009)


def test_a_wrong_setting_is_refused() -> None:
    for make in (
        lambda: po.MeanFieldVI(init_std=0.0),
        lambda: po.MeanFieldVI(init_std=math.inf),
        lambda: po.IVON(init_hessian=0.0),
        lambda: po.IVON(beta1=1.0),
        lambda: po.IVON(beta2=1.5),
        lambda: po.MeanFieldVI(members=0),
    ):
        with pytest.raises(ValueError, match="must"):
            make()


@pytest.mark.parametrize("algorithm", [po.MeanFieldVI(), po.IVON(), po.LastLayerLaplace()])
def test_only_normal_priors(algorithm: po.Algorithm) -> None:
    problem = Recorded()
    problem.prior = po.Laplace().bind(START)
    with pytest.raises(po.PriorError, match="needs a normal"):
        algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 1, 1))


def test_what_an_epoch_tells_of_mean_field() -> None:
    """KL(q || p) of all weights, and the geometric mean of the stds."""
    algorithm = po.MeanFieldVI(init_std=0.2)
    problem = Recorded()
    state = algorithm.init(problem, problem.start(), Random(0), po.Plan(1, 1, 1))
    told = algorithm.watch(problem, state)
    kl = 0.0
    for name, leaf in START.items():
        q = torch.distributions.Normal(leaf.double(), 0.2)
        kl += float(torch.distributions.kl_divergence(q, torch.distributions.Normal(CENTER[name].double(), 0.7)).sum())
    assert told["kl"] == pytest.approx(kl, rel=1e-6)
    assert told["std"] == pytest.approx(0.2, rel=1e-6)
