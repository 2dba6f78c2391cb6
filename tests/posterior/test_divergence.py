"""KL(q || p) in closed form: of independent normals, of mixtures of them, and what has none."""

import math

import pytest
import torch

from posterity.errors import CompatibilityError
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.mixture import Mixture
from posterity.posterior.point import Point
from posterity.problem.priors import Laplace, Normal


def diagonal(seed=0):
    random = torch.Generator().manual_seed(seed)
    means = {"w": torch.randn(3, 5, generator=random), "b": torch.randn(7, generator=random)}
    stds = {name: 0.1 + torch.rand(leaf.shape, generator=random) for name, leaf in means.items()}
    return Diagonal({**means, "buffer.mean": torch.ones(3)}, stds)


def test_the_divergence_of_a_diagonal_is_that_of_its_normals():
    q = diagonal()
    center = {"w": torch.full((3, 5), 0.3), "b": torch.full((7,), -0.2)}
    prior = Normal({"w": 0.7, "*": 1.3}, center=center).bind(q.means)
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(q.means[name].double(), q.stds[name].double()),
            torch.distributions.Normal(center[name].double(), std),
        )
        .sum()
        .item()
        for name, std in (("w", 0.7), ("b", 1.3))
    )
    assert q.divergence(prior) == pytest.approx(expected, rel=1e-6)  # 0.3 and -0.2 are float32
    at_prior = Diagonal(dict(center), {"w": torch.full((3, 5), 0.7), "b": torch.full((7,), 1.3)})
    assert at_prior.divergence(prior) == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_a_mixture_lies_within_log_k_of_the_truth():
    components = [diagonal(seed) for seed in range(3)]
    prior = Normal(1.0).bind(components[0].means)
    found = Mixture(components).divergence(prior)
    assert found == pytest.approx(sum(c.divergence(prior) for c in components) / 3)
    count = 600
    logs = []
    for each in components:  # E over q of log q - log p, by draws
        random = torch.Generator().manual_seed(9)
        draws = {
            k: each.means[k].double() + each.stds[k] * torch.randn(count, *s.shape, generator=random).double()
            for k, s in each.stds.items()
        }
        inside = [
            sum(
                torch.distributions.Normal(c.means[k].double(), c.stds[k].double()).log_prob(x).flatten(1).sum(1)
                for k, x in draws.items()
            )
            for c in components
        ]
        log_prior = sum(torch.distributions.Normal(0, 1.0).log_prob(x).flatten(1).sum(1) for x in draws.values())
        logs.append(torch.stack(inside).logsumexp(0) - math.log(3) - log_prior)
    true, error = torch.cat(logs).mean().item(), 4 * torch.cat(logs).std().item() / math.sqrt(3 * count)
    assert found - math.log(3) - error <= true <= found + error


def test_what_has_no_divergence_says_so():
    q = diagonal()
    with pytest.raises(CompatibilityError, match="needs a normal prior, got laplace"):
        q.divergence(Laplace().bind(q.means))
    prior = Normal().bind(q.means)
    fixed = Diagonal(q.means, {"w": q.stds["w"]})
    with pytest.raises(CompatibilityError, match=r"infinite: the weights \['b'\] have no spread"):
        fixed.divergence(prior)
    partly = Diagonal(q.means, {**q.stds, "b": q.stds["b"].clone().index_fill_(0, torch.tensor([3]), 0.0)})
    with pytest.raises(CompatibilityError, match=r"\['b'\]"):
        partly.divergence(prior)
    with pytest.raises(CompatibilityError, match="no closed-form KL of a point posterior"):
        Point(q.means).divergence(prior)
