"""Score-based variational inference over mixtures: formulas, weights, two modes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import posterity as po
from posterity.errors import CompatibilityError, PriorError
from posterity.inference.algorithm import Plan
from posterity.inference.score_autograd import beta_at, clip_, score_loss, slope
from posterity.inference.score_mixture import ScoreMixture, mirror_step
from posterity.posterior.normal_mixture import NormalMixture, normal_mixture_log_prob
from posterity.problem.densities import Density
from posterity.problem.reference import gaussian, mixture
from posterity.random import Random
from posterity.testing.runs import final, network_problem, rows_for, walk
from posterity.testing.worlds import inputs, labels, plain_network
from posterity.tree import Tree

LIKE = torch.zeros((), dtype=torch.float64)


def fitted(target: Density, algorithm: ScoreMixture, steps: int, seed: int = 0) -> NormalMixture:
    found = final(algorithm, target, lambda step, k: None, steps, seed)
    assert isinstance(found, NormalMixture)
    return found


def right_mass(q: NormalMixture) -> float:
    return float(q.weights @ torch.special.ndtr(q.centers[:, 0] / q.component_stds[:, 0]))


def test_one_component_is_the_closed_form() -> None:
    """R = grad log q - s, D = s: d loss / d m = 2 <R> and d loss / d log s = 4 <R (x - m)>, as in score_diagonal.py with
    the residual in units of s.
    """
    n, d = 7, 5
    m, log_s = Random(0).normal((1, d), LIKE).requires_grad_(), (0.3 * Random(1).normal((1, d), LIKE)).requires_grad_()
    s = log_s.detach().exp()
    x, score = m.detach() + s * Random(2).normal((n, d), LIKE), Random(3).normal((n, d), LIKE)
    log_q = lambda one: normal_mixture_log_prob(torch.zeros(1, dtype=LIKE.dtype), m, log_s.exp(), one)  # noqa: E731
    loss = score_loss(slope(log_q, x, graph=True), score, torch.full((n,), 1 / n, dtype=LIKE.dtype), s, None, 0.0)
    by_m, by_log_s = torch.autograd.grad(loss, (m, log_s))
    residual = -(x - m.detach()) / s.square() - score
    torch.testing.assert_close(by_m, 2 * residual.mean(0, keepdim=True), atol=1e-12, rtol=0)
    wanted = 4 * (residual * (x - m.detach())).mean(0, keepdim=True)
    torch.testing.assert_close(by_log_s, wanted, atol=1e-12, rtol=0)


def apart(weights: tuple[float, float], separation: float = 8.0) -> Tree:
    centers = torch.tensor([[separation, 0.0, 0.0], [-separation, 0.0, 0.0]], dtype=torch.float64)
    return {"logits": torch.tensor(weights, dtype=torch.float64).log(), "centers": centers, "log_stds": 0 * centers}


def log_q(q: Tree, x: Tensor) -> Tensor:
    return normal_mixture_log_prob(q["logits"], q["centers"], q["log_stds"].exp(), x)


def test_the_score_does_not_see_the_weights_of_modes_that_lie_apart_and_the_values_do() -> None:
    """q has the right modes with weights 1/2, p has 0.7 and 0.3. Where components overlap by exp(-8^2 / 2) = 1e-14 the
    gradient by the logits vanishes. log p - log q is log(0.7 / 0.5) in one and log(0.3 / 0.5) in the other: a step of
    rate 1 is exact.
    """
    p, q = apart((0.7, 0.3)), apart((0.5, 0.5))
    x = (q["centers"].unsqueeze(1) + Random(0).normal((2, 11, 3), LIKE)).reshape(22, 3)
    q["logits"].requires_grad_()
    share = torch.full((22,), 1 / 22, dtype=torch.float64)
    score = slope(partial(log_q, p), x)
    loss = score_loss(slope(partial(log_q, q), x, graph=True), score, share, 1.0, None, 0.0)
    (blind,) = torch.autograd.grad(loss, q["logits"])
    assert float(loss.detach()) < 1e-9
    assert float(blind.abs().max()) < 1e-9
    q["logits"].requires_grad_(False)
    half = mirror_step(q, q, x, log_q(p, x) + 5.0, 0.5).softmax(-1)  # whatever the constant of p
    whole = mirror_step(q, q, x, log_q(p, x) + 5.0, 1.0).softmax(-1)
    torch.testing.assert_close(whole, p["logits"].exp(), atol=1e-8, rtol=0)
    root = p["logits"].exp().sqrt()
    torch.testing.assert_close(half, root / root.sum(), atol=1e-8, rtol=0)  # half the way in log pi
    still = mirror_step(p, q, x, log_q(p, x), 1.0).softmax(-1)
    torch.testing.assert_close(still, p["logits"].exp(), atol=1e-10, rtol=0)


def test_weights_keep_a_floor_and_a_step_its_limit() -> None:
    p, q = apart((1.0, 1e-30)), apart((0.5, 0.5))
    x = (q["centers"].unsqueeze(1) + Random(0).normal((2, 11, 3), LIKE)).reshape(22, 3)
    once = mirror_step(q, q, x, log_q(p, x), 1.0)
    assert float(once[0] - once[1]) == pytest.approx(1.0)  # at most 1/2 up and 1/2 down
    for _ in range(40):
        q["logits"] = mirror_step(q, q, x, log_q(p, x), 1.0)
    assert float(q["logits"][1].exp()) == pytest.approx(1e-4 / 2)


def test_two_modes_with_their_weights() -> None:
    """Measured on three other seeds: a KL of at most 3e-4 and a mass of 0.70."""
    target = mixture(separation=3.0, std=1.0, weights=(0.7, 0.3))
    q = fitted(target, ScoreMixture(), 300, seed=3)
    assert target.forward_kl(q.log_prob, 2000, Random(9)).value < 0.01
    assert abs(right_mass(q) - 0.7) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("separation", "std"), [(3.0, 1.0), (4.0, 0.5)])
def test_two_modes_on_three_seeds(separation: float, std: float) -> None:
    target = mixture(separation, std, (0.7, 0.3))
    for seed in range(3):
        q = fitted(target, ScoreMixture(), 800, seed)
        assert target.forward_kl(q.log_prob, 4000, Random(9)).value < 0.02
        assert 0.6 < right_mass(q) < 0.8


def test_one_component_finds_a_normal_in_double_precision() -> None:
    target = gaussian(5, condition=100.0)
    q = fitted(target, ScoreMixture(components=1, draws=4, learning_rate=po.Cosine(0.1), temper=0.2), 500)
    # the residual vanishes at the optimum, and its noise with it: what is left is a cosine's last steps
    assert target.kl(q.centers[0], q.component_stds[0]) < 1e-4


def states(algorithm: ScoreMixture, steps: int) -> Tree:
    *_, last = walk(algorithm, mixture(), lambda step, k: None, steps)
    return last.state.q


def test_the_proximal_term_acts_where_q_t_is_older() -> None:
    def gap(**options: Any) -> float:
        one, two = (states(ScoreMixture(alpha=a, alpha_warmup=0.0, components=3, **options), 6) for a in (0.0, 1.0))
        return max(float((one[name] - two[name]).abs().max()) for name in one)

    assert gap() == 0.0
    assert gap(inner_steps=2) > 1e-4
    assert gap(lag=3) > 1e-4


def test_members_have_noise_and_centres_of_their_own() -> None:
    q = states(ScoreMixture(components=3, members=2), 4)
    assert q["centers"].shape == (2, 3, 2)
    assert float((q["centers"][0] - q["centers"][1]).abs().min()) > 1e-6
    single = states(ScoreMixture(components=3), 4)
    torch.testing.assert_close(q["centers"][0], single["centers"][0])


def test_weights_stay_equal_on_a_network() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical")
    *_, last = walk(ScoreMixture(components=3, draws=7), problem, rows_for(x, labels(x)), 3)
    assert torch.equal(last.state.q["logits"], torch.zeros(1, 3))
    point = last.stage.point(last.state)
    flat = torch.cat([point[name][0].flatten() for name in point])
    torch.testing.assert_close(flat, last.state.q["centers"][0].mean(0))  # the mean of the mixture
    assert last.stage.watch(problem, last.state)["components"] == pytest.approx(3.0)


def test_without_values_the_weights_follow_the_score() -> None:
    q = states(ScoreMixture(components=3, reweight=False), 4)
    assert float(q["logits"].abs().min()) > 1e-4


def test_the_target_is_tempered_first() -> None:
    assert [round(beta_at(0.5, 0.04, t, 8), 3) for t in (0, 2, 4, 8)] == [0.04, 0.2, 1.0, 1.0]
    assert beta_at(0.0, 0.04, 0, 8) == 1.0
    one, two = (states(ScoreMixture(components=3, temper=share), 3) for share in (0.0, 0.5))
    assert not torch.equal(one["centers"], two["centers"])


def test_clipping_keeps_the_direction() -> None:
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    assert clip_(gradients, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(gradients["a"], torch.tensor([0.6, 0.0]))
    assert clip_(gradients, 2.0) == pytest.approx(1.0)
    torch.testing.assert_close(gradients["b"], torch.tensor([0.8]))


def test_too_many_weights_are_refused_with_the_number() -> None:
    target = Density(lambda tree: -tree["x"].square().sum(), {"x": torch.zeros(1_000_003)})
    with pytest.raises(CompatibilityError, match=r"1,000,003 weights would take \d+\.\d GiB.*fewer components"):
        ScoreMixture().check(target, None)
    with pytest.raises(CompatibilityError, match="GiB"):
        ScoreMixture().init(target, target.start(), Random(0), Plan(1, 1, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"components": 0}, {"draws": 0}, {"spread": -1.0}, {"init_std": 0.0}, {"temper": 1.5}, {"temper_start": 0.0},
        {"alpha": 2.0}, {"lag": 0}, {"inner_steps": 0}, {"max_grad": 0.0}, {"spread": math.nan},
    ],
)  # fmt: skip
def test_settings_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        ScoreMixture(**options)


def test_other_priors_are_refused() -> None:
    x = inputs()
    problem = network_problem(plain_network(), x, labels(x), "categorical", po.Laplace(1.0))
    with pytest.raises(PriorError):
        ScoreMixture().check(problem, None)
    assert replace(ScoreMixture(), members=2).title == "score-vi-mixture-ensemble"
