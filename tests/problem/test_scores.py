"""Noisy, tempered and counted scores: what they change, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.densities import Density
from posterity.problem.problem import Info
from posterity.problem.reference import gaussian
from posterity.problem.scores import counted, noisy, tempered
from posterity.random import Random
from posterity.tree import Tree

LIKE = torch.empty(0, dtype=torch.float64)


def numbers(*shape: int, name: str = "u") -> Tensor:
    return Random(5).fold(name).normal(shape, LIKE)


def score(density: Density, x: Tensor, random: Random | None = None) -> Tensor:
    return -density.nll({"x": x}, None, random or Random(0))[1]["x"]


def test_noise_is_unbiased_and_of_the_size_asked_for() -> None:
    target = gaussian(3, 100.0)
    problem, x, tau = noisy(target, 2.0), target.mean + 0.1, 2.0
    found = torch.stack([score(problem, x, Random(0).fold(step)) for step in range(2003)])
    z = (found - score(target, x)) * target.std / tau
    # standard normal: over 2003 draws five errors are 5 / sqrt(2003) of the mean and that over sqrt(2) of the std
    assert z.mean(0).abs().max() < 0.112
    assert (z.std(0) - 1).abs().max() < 0.08
    assert torch.corrcoef(z.mT).triu(1).abs().max() < 0.112


def test_noise_is_addressed() -> None:
    target = gaussian(3)
    problem, x = noisy(target, 1.0), target.mean + 1.0
    a, b = Random(0).fold(1), Random(0).fold(2)
    assert score(problem, x, a).equal(score(problem, x, a))
    assert not score(problem, x, a).equal(score(problem, x, b))
    value, gradient, info = problem.nll({"x": x}, None, a)
    assert value.equal(target.nll({"x": x}, None, a)[0])
    torch.testing.assert_close(info.gradient_norm, gradient["x"].norm()[None])
    values, gradients, infos = problem.nlls({"x": torch.stack([x, x])}, [None, None], [a, b])
    assert gradients["x"][0].equal(-score(problem, x, a))
    assert gradients["x"][1].equal(-score(problem, x, b))
    assert values.shape == infos.gradient_norm.shape == (2,)
    assert noisy(target, 0.0).nll({"x": x}, None, a)[1]["x"].equal(-score(target, x))


def test_noise_takes_a_scale() -> None:
    plain = Density(lambda tree: -0.5 * tree["w"].square().sum(), {"w": torch.zeros(2, 3)})
    theta, random = {"w": torch.ones(2, 3)}, Random(0)
    scale = torch.tensor([[1.0, 2.0, 4.0], [0.5, 1.0, 8.0]])
    noise = noisy(plain, 3.0, scale).nll(theta, None, random)[1]["w"] - 1
    unit = noisy(plain, 1.0, 1.0).nll(theta, None, random)[1]["w"] - 1
    torch.testing.assert_close(noise, 3 * unit / scale, rtol=1e-5, atol=1e-6)
    with pytest.raises(CompatibilityError, match=r"noisy\(\.\.\., scale=\)"):
        noisy(plain, 1.0)
    with pytest.raises(ShapeError, match=r"\[3\] and 'w' is \[2, 3\]"):
        noisy(plain, 1.0, torch.ones(3))
    with pytest.raises(CompatibilityError, match="> 0 everywhere"):
        noisy(plain, 1.0, 0.0)
    with pytest.raises(CompatibilityError, match="tau >= 0"):
        noisy(plain, -1.0, 1.0)


def test_tempering_scales_value_score_and_hessian() -> None:
    target, x = gaussian(3, 9.0, 0), numbers(3)
    hot = tempered(target, 0.3)
    random = Random(0)
    value, gradient, info = hot.nll({"x": x}, None, random)
    wanted, by_x, _ = target.nll({"x": x}, None, random)
    torch.testing.assert_close(value, 0.3 * wanted)
    torch.testing.assert_close(gradient["x"], 0.3 * by_x["x"])
    torch.testing.assert_close(info.nll, value[None])
    torch.testing.assert_close(hot.log_density({"x": x}), -value)
    vector = {"x": numbers(3, name="v")}
    found = hot.hvp({"x": x}, None, random, vector)["x"]
    torch.testing.assert_close(found, 0.3 * torch.linalg.solve(target.covariance, vector["x"]))
    with pytest.raises(CompatibilityError, match="beta > 0"):
        tempered(target, 0.0)


def test_counting_counts_scores_and_changes_nothing() -> None:
    target, x, random = gaussian(3), numbers(3), Random(4)
    problem = counted(noisy(target, 1.0))
    assert problem.evaluations == 0
    assert score(problem, x, random).equal(score(noisy(target, 1.0), x, random))
    problem.nlls({"x": torch.stack([x, x])}, [None, None], [random, random])
    problem.log_density({"x": x})
    assert problem.evaluations == 3


def test_wrappers_nest_and_keep_the_scale() -> None:
    """The noise of a tempered noisy score is tempered; that of a noisy tempered one needs a scale of its own."""
    target, x, random = gaussian(3, 4.0), numbers(3), Random(0)
    noise = score(noisy(target, 1.0), x, random) - score(target, x)
    found = score(tempered(noisy(counted(target), 1.0), 0.5), x, random)
    torch.testing.assert_close(found, 0.5 * (score(target, x) + noise))
    found = score(noisy(tempered(target, 0.5), 1.0, target.std), x, random)
    torch.testing.assert_close(found, 0.5 * score(target, x) + noise)
    with pytest.raises(CompatibilityError, match="does not know its std"):
        noisy(tempered(target, 0.5), 1.0)
    weighted = gaussian(3)
    weighted.data_size, weighted.data_weight = 7, 2.0
    assert (counted(weighted).data_size, counted(weighted).data_weight) == (7, 2.0)


def test_a_batched_density_says_the_same_as_one_called_point_by_point() -> None:
    rows, streams = numbers(5, 3), [Random(0).fold(k) for k in range(5)]
    target = gaussian(3, condition=10.0, rotation=1)
    bare = Density(target.log_density, target.start())
    batched, looped = (counted(noisy(tempered(one, 0.5), tau=2.0, scale=1.0)) for one in (target, bare))
    assert [batched.batched, looped.batched] == [True, False]
    values, gradients, info = batched.nlls({"x": rows}, [None] * 5, streams)
    torch.testing.assert_close((values, gradients, info[:3]), _sliced(looped.nlls({"x": rows}, [None] * 5, streams)))
    assert batched.evaluations == looped.evaluations == 5
    torch.testing.assert_close(batched.nll({"x": rows[4]}, None, streams[4])[1]["x"], gradients["x"][4])


def _sliced(answer: tuple[Tensor, Tree, Info]) -> tuple[Tensor, Tree, tuple[Tensor, Tensor, Tensor]]:
    values, gradients, info = answer
    return values, gradients, info[:3]
