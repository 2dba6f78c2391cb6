"""Reference densities against torch.distributions, their own draws and their closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, distributions

from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.densities import Density
from posterity.problem.reference import Reference, banana, funnel, gaussian, mixture
from posterity.random import Random

LIKE = torch.empty(0, dtype=torch.float64)
COUNT = 40_009  # draws; 5 standard errors of a mean of unit variance are 0.025


def numbers(*shape: int, name: str = "u") -> Tensor:
    return Random(5).fold(name).normal(shape, LIKE)


def score(density: Density, x: Tensor) -> Tensor:
    return -density.nll({"x": x}, None, Random(0))[1]["x"]


def covariance_like(dim: int) -> Tensor:
    root = numbers(dim, dim, name="root")
    return root @ root.mT + 0.1 * torch.eye(dim, dtype=torch.float64)


def as_torch(target: Reference) -> distributions.MultivariateNormal:
    return distributions.MultivariateNormal(target.mean, target.covariance)


# --- Gaussians ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", [None, 3])
@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_gaussian_is_the_one_of_torch(rotation: int | None, condition: float) -> None:
    target = gaussian(7, condition, rotation, mean_seed=1)
    x = numbers(5, 7)
    # float64, condition 1e4 twice over (a covariance and its inverse)
    torch.testing.assert_close(target.log_prob(x), as_torch(target).log_prob(x), rtol=1e-8, atol=1e-8)
    wanted = -torch.linalg.solve(target.covariance, x[0] - target.mean)
    torch.testing.assert_close(score(target, x[0]), wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(target.std, target.covariance.diagonal().sqrt())


@pytest.mark.parametrize("rotation", [None, 3])
def test_gaussian_has_log_spaced_eigenvalues(rotation: int | None) -> None:
    target = gaussian(5, 1e4, rotation, largest=2.0)
    wanted = 2.0 * torch.tensor([1e-4, 1e-3, 1e-2, 1e-1, 1.0], dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.eigvalsh(target.covariance), wanted, rtol=1e-9, atol=1e-13)
    off = target.covariance - target.covariance.diagonal().diag()
    assert (off.abs().max() > 0.05) == (rotation is not None)


def test_gaussian_says_what_its_seeds_say() -> None:
    assert gaussian(3).mean.equal(gaussian(3).mean)
    assert not gaussian(3).mean.equal(gaussian(3, mean_seed=1).mean)
    assert gaussian(3, mean_seed=None).mean.equal(torch.zeros(3, dtype=torch.float64))
    assert not gaussian(3, 9.0, 0).covariance.equal(gaussian(3, 9.0, 1).covariance)


@pytest.mark.parametrize("rotation", [None, 3])
def test_kl_is_the_one_of_torch(rotation: int | None) -> None:
    target = gaussian(7, 100.0, rotation)
    mean, std, covariance = numbers(7), numbers(7, name="std").exp(), covariance_like(7)
    full = distributions.MultivariateNormal(mean, covariance)
    wanted = distributions.kl_divergence(full, as_torch(target)).item()
    assert target.kl(mean, covariance) == pytest.approx(wanted, rel=1e-10)
    diagonal = distributions.MultivariateNormal(mean, std.square().diag())
    wanted = distributions.kl_divergence(diagonal, as_torch(target)).item()
    assert target.kl(mean, std) == pytest.approx(wanted, rel=1e-10)
    assert target.kl_per_dim(mean, std) == pytest.approx(wanted / 7, rel=1e-10)


def test_kl_keeps_its_digits_where_q_is_nearly_p() -> None:
    """A std off by a fraction e: KL = d (e^2 + O(e^3)); a difference of logs and traces would lose it below 1e-8."""
    target = gaussian(7, 1e4)
    e = 1e-7
    assert target.kl(target.mean, target.std * (1 + e)) == pytest.approx(7 * e**2, rel=1e-6)
    assert target.kl(target.mean, target.std) == 0.0
    rotated = gaussian(7, 100.0, 3)
    # eigenvalues of float64 matrices are off by some 1e-16 * condition * dim, and they enter squared
    assert 0 <= rotated.kl(rotated.mean, rotated.covariance) < 1e-24


def test_kl_of_what_is_no_distribution() -> None:
    target = gaussian(3)
    assert target.kl(target.mean, torch.tensor([1.0, 0.0, 1.0])) == math.inf
    assert target.kl(target.mean, -torch.eye(3)) == math.inf
    assert math.isnan(target.kl(target.mean * math.nan, target.std))
    with pytest.raises(ShapeError, match=r"a mean \[3\] and a std \[3\] or covariance \[3, 3\], got \[2\] and \[3\]"):
        target.kl(torch.zeros(2), torch.ones(3))


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"dim": 2, "condition": 0.5}, {"dim": 2, "largest": 0.0}])
def test_gaussian_names_what_is_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(CompatibilityError, match="dim >= 1, condition >= 1 and largest > 0"):
        gaussian(**wrong)  # type: ignore[arg-type]


# --- others ------------------------------------------------------------------------------------------------------------

REFERENCES = {
    "gaussian": gaussian(3, 100.0),
    "rotated": gaussian(5, 100.0, 1),
    "mixture": mixture(),
    "mixture in 5": mixture(1.0, 0.5, (2.0, 3.0), dim=5),
    "funnel": funnel(3, std=0.7),  # of finite kurtosis in practice, so that moments can be counted
    "banana": banana(),
}


@pytest.mark.parametrize("target", REFERENCES.values(), ids=REFERENCES)
def test_draws_have_the_moments(target: Reference) -> None:
    x = target.draws(COUNT, Random(1))
    assert x.shape == (COUNT, target.dim)
    z = (x - target.mean) / target.std
    # five standard errors, estimated from the draws; products of two coordinates too
    outer = z.unsqueeze(-1) * z.unsqueeze(-2)
    correlation = target.covariance / torch.outer(target.std, target.std)
    for values, wanted in ((z, torch.zeros_like(target.mean)), (outer, correlation)):
        errors = values.std(0) / math.sqrt(COUNT)
        assert bool(((values.mean(0) - wanted).abs() < 5 * errors).all())
        assert errors.max() < 0.03


@pytest.mark.parametrize("target", REFERENCES.values(), ids=REFERENCES)
def test_scores_fit_the_draws(target: Reference) -> None:
    """E[x_i d_j log p] = -1 where i = j, else 0: only the density that the draws come from has it."""
    leaf = target.draws(COUNT, Random(2)).requires_grad_()
    (scores,) = torch.autograd.grad(target.log_prob(leaf).sum(), leaf)
    x = (leaf.detach() - target.mean) / target.std
    values = x.unsqueeze(-1) * (scores * target.std).unsqueeze(-2)
    errors = values.std(0) / math.sqrt(COUNT)
    gaps = (values.mean(0) + torch.eye(target.dim, dtype=torch.float64)).abs()
    assert bool((gaps < 5 * errors).all())


@pytest.mark.parametrize(
    "target",
    [gaussian(2, 9.0, 1), mixture(1.5, 0.7), funnel(2, std=0.7), banana(0.3, std=1.5)],
    ids=["gaussian", "mixture", "funnel", "banana"],
)
def test_log_prob_is_normalised(target: Reference) -> None:
    """Importance sampling from a wide Student's t: E_t[p / t] = 1."""
    wide = distributions.StudentT(3.0, torch.zeros(target.dim, dtype=torch.float64), 1.5)
    with Random(3).fold("t").forked():
        x = wide.sample((5 * COUNT,))
    ratios = (target.log_prob(x) - wide.log_prob(x).sum(-1)).exp()
    error = ratios.std().item() / math.sqrt(len(ratios))
    assert error < 0.02
    assert ratios.mean().item() == pytest.approx(1.0, abs=5 * error)


def test_mixture_is_the_one_of_torch() -> None:
    target = mixture(2.0, 0.5, (0.6, 0.4), dim=3)
    centers = torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]], dtype=torch.float64)
    normals = distributions.Independent(distributions.Normal(centers, 0.5), 1)
    wanted = distributions.MixtureSameFamily(
        distributions.Categorical(torch.tensor([0.6, 0.4], dtype=torch.float64)), normals
    )
    x = 2 * numbers(7, 3)
    torch.testing.assert_close(target.log_prob(x), wanted.log_prob(x))
    torch.testing.assert_close(target.mean, wanted.mean)
    torch.testing.assert_close(target.covariance.diagonal(), wanted.variance)


def test_right_mass_counts_the_right_mode() -> None:
    # components 6 std apart: a draw is on the wrong side with probability 1e-3; 5 errors of the fraction are 0.011
    assert mixture().right_mass(mixture().draws(COUNT, Random(0))) == pytest.approx(0.7, abs=0.0125)
    assert mixture().right_mass(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.1, 9.0]])) == pytest.approx(2 / 3)


def test_forward_kl_is_the_closed_form() -> None:
    p, q = gaussian(3, 10.0), gaussian(3, 4.0, 1, mean_seed=2)
    wanted = distributions.kl_divergence(as_torch(p), as_torch(q)).item()
    found = p.forward_kl(q.log_prob, COUNT, Random(0))
    assert found.standard_error < 0.05 * wanted
    assert found.value == pytest.approx(wanted, abs=5 * found.standard_error)
    assert mixture().forward_kl(mixture().log_prob, 11, Random(0)).value == 0.0


def test_funnel_and_banana_are_products_of_conditionals() -> None:
    v, x1, x2 = 0.5, -0.3, 1.2
    wanted = (
        distributions.Normal(0.0, 3.0).log_prob(torch.tensor(v))
        + distributions.Normal(0.0, math.exp(0.25)).log_prob(torch.tensor([x1, x2])).sum()
    )
    found = funnel(3).log_prob(torch.tensor([v, x1, x2], dtype=torch.float64))
    torch.testing.assert_close(found, wanted.double(), rtol=1e-6, atol=1e-6)  # torch's in float32
    wanted = distributions.Normal(0.0, 10.0).log_prob(torch.tensor(7.0)) + distributions.Normal(
        0.1 * (49.0 - 100.0), 1.0
    ).log_prob(torch.tensor(-4.0))
    found = banana(0.1).log_prob(torch.tensor([7.0, -4.0], dtype=torch.float64))
    torch.testing.assert_close(found, wanted.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_has_the_dtype_asked_for(dtype: torch.dtype) -> None:
    for target in (gaussian(3, 5.0, 1, dtype=dtype), mixture(dtype=dtype), funnel(3, dtype=dtype), banana(dtype=dtype)):
        start = target.start()["x"]
        value, gradient, _ = target.nll(target.start(), None, Random(0))
        parts = (start, value, gradient["x"], target.draws(2, Random(0)), target.mean, target.covariance)
        assert {part.dtype for part in parts} == {dtype}


@pytest.mark.parametrize(
    "build",
    [lambda: mixture(std=0.0), lambda: mixture(weights=(1.0, 0.0)), lambda: funnel(1), lambda: banana(std=-1.0)],
)
def test_numbers_out_of_range_are_errors(build: object) -> None:
    with pytest.raises(CompatibilityError, match="needs"):
        build()  # type: ignore[operator]
