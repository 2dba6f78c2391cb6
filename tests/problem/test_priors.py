"""Priors against torch.distributions, autograd and numerical integration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

import posterity as po
from posterity.problem.priors import Flat, Prior, fan_in, prior_from, prior_from_json

KERNEL = (5, 3, 2, 2)


def _tree(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"head.weight": KERNEL, "head.bias": (5,), "likelihood.log_std": (3,)}
    tree = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: leaf.to(dtype) for name, leaf in {**tree, "buffer.count": torch.tensor(3.0)}.items()}


def _start() -> dict[str, Tensor]:
    return {name: 0.5 * leaf + 0.1 for name, leaf in _tree().items()}


PRIORS: dict[str, Prior] = {
    "normal": po.Normal(0.7),
    "normal at start": po.Normal(0.7, center="start"),
    "normal by name": po.Normal({"*.bias": 2.0, "*": 0.3}, fan_in=True),
    "laplace": po.Laplace(0.4),
    "laplace at start": po.Laplace(0.4, center="start"),
    "mixture": po.ScaleMixture(std1=1.0, std2=0.1, pi=0.3),
    "mixture at start": po.ScaleMixture(std1=1.0, std2=0.1, pi=0.3, center="start"),
    "flat": Flat(),
}


def _reference(name: str, leaf: str) -> Any:
    """The density of one tensor, as torch.distributions has it."""
    zero = torch.zeros((), dtype=torch.float64)
    if leaf.startswith("likelihood."):
        return distributions.Normal(zero, 1.0)
    center = _start()[leaf] if "start" in name else zero
    if name.startswith("normal by name"):
        return distributions.Normal(zero, 2.0 if leaf == "head.bias" else 0.3 / math.sqrt(3 * 2 * 2))
    if name.startswith("normal"):
        return distributions.Normal(center, 0.7)
    if name.startswith("laplace"):
        return distributions.Laplace(center, 0.4)
    weights = distributions.Categorical(torch.tensor([0.3, 0.7], dtype=torch.float64))
    scales = torch.tensor([1.0, 0.1], dtype=torch.float64)
    parts = distributions.Normal(torch.as_tensor(center)[..., None].expand(*torch.as_tensor(center).shape, 2), scales)
    return distributions.MixtureSameFamily(weights, parts)


@pytest.mark.parametrize("name", [name for name in PRIORS if name != "flat"])
def test_density(name: str) -> None:
    tree, prior = _tree(), PRIORS[name].bind(_start())
    wanted = sum(_reference(name, leaf).log_prob(x).sum() for leaf, x in tree.items() if leaf != "buffer.count")
    assert float(prior.log_density(tree)) == pytest.approx(float(wanted), rel=1e-12)
    # weights rounded to float32: at most 2^-24 of w dlog p/dw, which is below 50 and of either sign, in 68 terms
    assert float(prior.log_density(_tree(torch.float32))) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("name", PRIORS)
def test_gradient(name: str) -> None:
    prior = PRIORS[name].bind(_start())
    tree = {leaf: value.requires_grad_(leaf != "buffer.count") for leaf, value in _tree().items()}
    gradient = prior.gradient(tree)
    assert gradient.keys() == tree.keys() - {"buffer.count"}
    density = prior.log_density(tree)
    for leaf, found in gradient.items():
        wanted = torch.zeros_like(found)
        if density.requires_grad:
            (wanted,) = torch.autograd.grad(density, tree[leaf], retain_graph=True)
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12), leaf


@pytest.mark.parametrize("name", PRIORS)
def test_gradient_of_stacked_members(name: str) -> None:
    prior = PRIORS[name].bind(_start())
    one, two = _tree(), {leaf: -2.0 * value for leaf, value in _tree().items()}
    both = prior.gradient({leaf: torch.stack([one[leaf], two[leaf]]) for leaf in one})
    for k, tree in enumerate((one, two)):
        for leaf, wanted in prior.gradient(tree).items():
            assert torch.equal(both[leaf][k], wanted)


@pytest.mark.parametrize("name", ["normal", "normal at start", "normal by name"])
@pytest.mark.parametrize("leaf", ["head.weight", "head.bias", "likelihood.log_std"])
def test_kl_of_a_normal(name: str, leaf: str) -> None:
    prior = PRIORS[name].bind(_start())
    assert isinstance(prior, po.Normal)
    mean, std = _tree()[leaf], _tree()[leaf].abs() + 0.05
    reference = _reference(name, leaf)
    wanted = distributions.kl_divergence(distributions.Normal(mean, std), reference).sum()
    assert float(prior.kl(leaf, mean, std)) == pytest.approx(float(wanted), rel=1e-12)
    itself = prior.kl(leaf, reference.mean.expand(mean.shape), reference.stddev.expand(mean.shape))
    assert float(itself) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("prior", [po.Laplace(0.4), po.ScaleMixture(std1=1.0, std2=0.1, pi=0.3)])
def test_densities_integrate_to_one(prior: Prior) -> None:
    grid = torch.linspace(-12, 12, 24001, dtype=torch.float64)
    bound = prior.bind({"w": torch.zeros(1)})
    mass = sum(math.exp(float(bound.log_density({"w": x[None]}))) for x in grid[::8]) * 8 * 1e-3
    # the trapezoid rule, step h = 0.008: an error of h^2 / 12 times the jump of slope at the kink, 2 / 0.4^2 / 2
    assert mass == pytest.approx(1.0, abs=1e-4)


def test_the_first_pattern_that_fits_counts() -> None:
    bound = po.Normal({"head.weight": 0.1, "head.*": 0.2, "*": 0.3}).bind({**_start(), "trunk": torch.zeros(2)})
    assert bound.stds["head.weight"] == 0.1
    assert bound.stds["head.bias"] == 0.2
    assert bound.stds["trunk"] == 0.3
    assert bound.stds["likelihood.log_std"] == 1.0
    with pytest.raises(po.PriorError, match="no pattern of the prior's std matches 'trunk'; add a default"):
        po.Normal({"head.*": 0.2}).bind({"trunk": torch.zeros(2)})


def test_fan_in() -> None:
    assert fan_in(KERNEL) == 12
    assert fan_in((5,)) == fan_in(()) == 1


def test_centers_given_by_name() -> None:
    given = {"head.weight": torch.ones(KERNEL), "head.bias": torch.full((5,), 2.0)}
    bound = po.Normal(1.0, center=given).bind(_start())
    assert set(bound.centers) == {"head.weight", "head.bias"}
    assert bound.gradient({"head.bias": torch.full((5,), 3.0)})["head.bias"].tolist() == [-1.0] * 5
    with pytest.raises(po.PriorError, match=r"lacks the tensors \['head.bias'\]"):
        po.Normal(1.0, center={"head.weight": given["head.weight"]}).bind(_start())
    with pytest.raises(po.PriorError, match=r"shape \(2,\) at 'head.bias', the weight \(5,\)"):
        po.Normal(1.0, center={**given, "head.bias": torch.ones(2)}).bind(_start())


def test_centers_at_the_start_are_copies() -> None:
    start = _start()
    bound = po.Laplace(1.0, center="start").bind(start)
    start["head.bias"].zero_()
    assert float(bound.centers["head.bias"].abs().sum()) > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: po.Normal(0.0), "finite and > 0, got 0.0"),
        (lambda: po.Normal(-1.0), "finite and > 0"),
        (lambda: po.Normal(math.inf), "finite and > 0"),
        (lambda: po.Normal({"a": 1.0, "b": math.nan}), "finite and > 0, got nan"),
        (lambda: po.Normal(1.0, center="middle"), "center must be 'zero', 'start' or a mapping"),
        (lambda: po.Laplace(0.0), "finite and > 0"),
        (lambda: po.ScaleMixture(std2=0.0), "finite and > 0"),
        (lambda: po.ScaleMixture(pi=1.0), r"pi must lie in \(0, 1\), got 1.0"),
        (lambda: prior_from("cauchy"), r"unknown prior 'cauchy'; use one of \['flat', 'laplace', 'normal'"),
        (lambda: prior_from(True), "unknown prior True"),
        (lambda: prior_from(None), "unknown prior None"),
    ],
)
def test_refuses(make: Any, words: str) -> None:
    with pytest.raises(po.PriorError, match=words):
        make()


def test_priors_by_name_and_number() -> None:
    assert prior_from(2) == po.Normal(2.0)
    assert prior_from("laplace") == po.Laplace()
    mixture = po.ScaleMixture(pi=0.2)
    assert prior_from(mixture) is mixture


@pytest.mark.parametrize("name", PRIORS)
def test_json(name: str) -> None:
    bound = PRIORS[name].bind(_start())
    centers = getattr(bound, "centers", {})
    again = prior_from_json(bound.to_json(), dict(centers)).bind(_tree())  # another start: the centres are kept
    assert again.to_json()["name"] == bound.to_json()["name"]
    assert float(again.log_density(_tree())) == float(bound.log_density(_tree()))
