"""Score-based inference and moments in one pass: correlations, arrival, conditioning, and what no rule knows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.inference.arrival import pull, warn_of_pull
from posterity.posterior.dense import Dense
from posterity.posterior.diagonal import Diagonal
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.problem.reference import gaussian
from posterity.random import Random
from posterity.testing import worlds


def normal(precision: Tensor, mean: Tensor, start: float) -> po.Density:
    def log_density(theta: dict[str, Tensor]) -> Tensor:
        away = theta["x"] - mean
        return -0.5 * ((away @ precision) * away).sum(-1)

    return po.Density(log_density, {"x": torch.full_like(mean, start)}, batched=True)


def drawn(posterior: po.Posterior, n: int) -> Tensor:
    """[n, d] float64"""
    return torch.stack([draw["x"] for draw in posterior.draws(posterior.finite or n, Random(0))]).double()


slow = pytest.mark.slow
ADVI = po.ADVI("full", learning_rate=po.Cosine(0.03), factor_learning_rate=po.Cosine(0.02))
CHAINS = po.SGHMC(ensemble=po.MAP(), mass="identity", members=4, warmup=200, draws_per_chain=500, thin=10,
                  noise_correction=False)  # fmt: skip
CORRELATED = [
    pytest.param(po.GSM(), 300, id="gsm"),
    pytest.param(po.BaM(), 30, id="bam"),
    pytest.param(po.ScoreVI("dense"), 500, id="score-vi-dense"),
    pytest.param(po.ScoreVI("low-rank-plus-diagonal", rank=1), 500, id="score-vi-low-rank"),
    pytest.param(ADVI, 2000, id="advi-full", marks=slow),
    pytest.param(CHAINS, 300, id="sghmc", marks=slow),
]


@pytest.mark.parametrize("rho", [0.9, -0.9])
@pytest.mark.parametrize(("method", "steps"), CORRELATED)
def test_a_correlation_has_its_sign_and_its_size(method: po.Algorithm, steps: int, rho: float) -> None:
    """blackjax #949. Of 4000 draws a correlation of 0.9 is known to 0.19 / sqrt(4000) = 0.003, a std to 1.1 %."""
    covariance = torch.tensor([[1.0, rho], [rho, 1.0]])
    found = drawn(po.infer(normal(torch.linalg.inv(covariance), torch.zeros(2), 0.0), method, steps), 4000)
    assert torch.corrcoef(found.T)[0, 1].item() == pytest.approx(rho, abs=0.02)
    assert found.std(0).tolist() == pytest.approx([1.0, 1.0], rel=0.08)


DESIGN = Random(3).normal((7, 4))
PRECISION = DESIGN.T @ DESIGN + torch.eye(4)
MEAN = torch.tensor([0.87, 0.85, 1.2, -0.3])
INVERSION = [(po.GSM, 300), (po.BaM, 40), (lambda **options: po.ScoreVI("dense", **options), 500)]


@pytest.mark.parametrize(("method", "steps"), INVERSION, ids=["gsm", "bam", "score-vi-dense"])
def test_a_fit_that_has_not_arrived_says_so(method: Any, steps: int) -> None:
    """modichirag/GSM-VI #5: a linear inversion in 4 dimensions, started 100 away with stds of 0.1."""
    near, far = (normal(PRECISION, MEAN, start) for start in (0.0, 100.0))
    found = po.infer(near, method(), steps)
    warn_of_pull(near, found, "it", Random(0))
    assert (found.mean()["x"] - MEAN).abs().max() < 1e-3
    with pytest.warns(po.PosterityWarning, match=r"has not arrived: the mean score of 'x' over 64 draws is \d"):
        warn_of_pull(far, po.infer(far, method(), steps), "it", Random(0))


@pytest.mark.parametrize(("method", "steps"), INVERSION[1:], ids=["bam", "score-vi-dense"])
def test_what_its_warning_asks_for_helps(method: Any, steps: int) -> None:
    posterior = po.infer(normal(PRECISION, MEAN, 100.0), method(init_std=100.0), 2 * steps)
    assert (posterior.mean()["x"] - MEAN).abs().max() < 1e-3


def test_scores_that_point_one_way_are_measured_by_their_spread() -> None:
    """q = N(2, 0.5^2) for p = N(0, 1): scores of -2 with a spread of 0.5, and those of y in its mass around 0."""
    target = po.Density(lambda theta: -0.5 * sum(leaf.square().sum() for leaf in theta.values()), {})
    posterior = Diagonal(
        {"x": torch.tensor([2.0]), "y": torch.zeros(3)}, {"x": torch.tensor([0.5]), "y": torch.full((3,), 0.1)}
    )
    name, ratio = pull(target, posterior, Random(0))
    assert name == "x"
    assert ratio == pytest.approx(4.0, rel=0.3)  # a std of 64 draws is known to 1 / sqrt(128) = 9 %
    still = Diagonal({"x": torch.tensor([2.0])}, {"x": torch.tensor([0.0])})
    assert pull(target, still, Random(0)) == ("x", math.inf)
    assert pull(target, Diagonal({"x": torch.zeros(2)}, {"x": torch.zeros(2)}), Random(0)) == ("x", 0.0)


@pytest.mark.parametrize("size", [2, 20, 2000])
def test_independent_normals_are_found_in_any_dimension(size: int) -> None:
    """AdvancedVI.jl #218"""
    target = gaussian(size, condition=10.0, dtype=torch.float32)
    found = po.infer(target, po.ScoreVI(), 300).moments()["x"]
    assert target.kl_per_dim(found.mean, found.std) < 0.01


@pytest.mark.parametrize("method", [po.GSM(), po.BaM(), po.ADVI("full"), po.ScoreVI("dense")], ids=lambda m: m.name)
def test_a_full_covariance_states_its_limit_and_the_way_beyond(method: po.Algorithm) -> None:
    target = gaussian(20_000, dtype=torch.float32)
    with pytest.raises(po.CompatibilityError, match=r"20,000 weights would take .* GiB.*low-rank-plus-diagonal"):
        po.infer(target, method, 1)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 0.05)])
def test_a_condition_of_1e8_is_found_stored_and_drawn_from(dtype: torch.dtype, most: float) -> None:
    """bayesflow #545: the factor that draws are made with is what is stored, and nothing inverts it."""
    target = gaussian(3, condition=1e8, rotation=1, dtype=dtype)
    posterior = po.infer(target, po.ScoreVI("dense", init_std=1.0), 1500)
    assert isinstance(posterior, Dense)
    factor = posterior.factor.double()
    assert target.kl(posterior.point["x"], factor @ factor.T) < most
    again = Dense.from_tensors(posterior.tensors(), posterior.meta())
    draws = drawn(again, 2000)
    assert target.basis is not None
    along = (draws - target.mean.double()) @ target.basis.double() / target.variances.double().sqrt()
    assert along.std(0).tolist() == pytest.approx([1.0] * 3, rel=0.08)  # 1 / sqrt(4000) = 1.6 % each


def test_features_that_are_nearly_the_same_have_the_covariance_of_the_closed_form() -> None:
    """The same of a last layer: two columns 1e-4 apart, whose Gram matrix has a condition of 1e8."""
    a, b = Random(0).normal((40,)), Random(1).normal((40,))
    x = torch.stack([a, a + 1e-4 * b], 1)
    likelihood = po.Gaussian(std=1.0, standardize=False)
    model = po.fit(
        lambda: nn.Linear(2, 1, bias=False), (x, a), likelihood, po.LastLayerLaplace(structure="full"), prior=10.0, epochs=1,
        seed=0, progress=False,
    )  # fmt: skip
    wide = x.double()
    wanted = torch.linalg.inv(wide.T @ wide + 0.01 * torch.eye(2, dtype=torch.float64)).diagonal().sqrt()
    assert model.posterior.moments()["weight"].std.flatten().tolist() == pytest.approx(wanted.tolist(), rel=1e-3)


def test_sizes_in_tests_are_pairwise_coprime() -> None:
    """HorizonRobotics/alf #751: no axis can stand in for another, nor for the product of two."""
    sizes = worlds.ROWS, worlds.FEATURES, worlds.CLASSES, worlds.BATCH
    assert all(math.gcd(one, other) == 1 for one, other in itertools.combinations(sizes, 2))


def problem_of(net: nn.Module) -> po.NetworkProblem:
    return po.NetworkProblem(net.eval(), "categorical", data_size=10)


def posterior_of(problem: po.NetworkProblem, std: float) -> Diagonal:
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    return Diagonal(means, {name: torch.full_like(leaf, std) for name, leaf in means.items()})


class Custom(nn.Module):
    """A layer that no rule knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x, dim=-1).values


def layers(*more: nn.Module) -> nn.Module:
    with Random(0).forked():
        return nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.MaxPool1d(2), nn.LayerNorm(4), *more, nn.Linear(4, 3),
            nn.Softmax(-1),
        )  # fmt: skip


def test_layers_with_rules_are_propagated_and_one_without_is_named() -> None:
    """lightning-uq-box #128"""
    x = Random(1).normal((7, 6))
    problem = problem_of(layers())
    posterior = posterior_of(problem, 0.05)
    with torch.no_grad():
        found = propagate(problem, weight_values(posterior), x)
        draws = torch.stack([problem.outputs(draw, x) for draw in posterior.draws(500, Random(2))])
    assert (found.mean - draws.mean(0)).abs().max() < 0.01  # of probabilities
    assert (found.var.sqrt() - draws.std(0)).norm() < 0.5 * draws.std(
        0
    ).norm()  # logits of a softmax count as independent

    y = torch.arange(7) % 3
    model = po.fit(lambda: layers(Custom()), (x, y), "categorical", po.MeanFieldVI(), steps=1, seed=0, progress=False)
    with pytest.raises(
        po.CompatibilityError, match=r"no rule says what sort does.* in the module '5'.*unknown='draws'"
    ):
        model.predict(x, via="propagation")
    model.propagation = po.Propagation(po.Rules(unknown="draws"))
    assert model.predict(x, via="propagation").probs.isfinite().all()


def test_one_dimension_by_100_000_draws_and_in_closed_form() -> None:
    """janisgp/Sampling-free-Epistemic-Uncertainty #2: the spread of the draws of the weights is what is propagated."""
    net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    problem = po.NetworkProblem(net, po.Gaussian(std=1.0), data_size=10)
    posterior = posterior_of(problem, 0.3)
    x = torch.linspace(-3, 3, 13)[:, None]
    with torch.no_grad():
        found = propagate(problem, weight_values(posterior), x)
        noise = {name: Random(0).fold(name).normal((100_000, *leaf.shape)) for name, leaf in posterior.stds.items()}
        theta = {name: posterior.means[name] + 0.3 * z for name, z in noise.items()}
        hidden = torch.relu(x @ theta["0.weight"].mT + theta["0.bias"][:, None])
        draws = (hidden @ theta["2.weight"].mT + theta["2.bias"][:, None])[..., 0].double()
    # one hidden layer over one input has no correlations to lose: means to 4 / sqrt(10^5) stds, stds to 4 sqrt(5 / 10^5) / 2
    assert ((found.mean[:, 0] - draws.mean(0)).abs() / draws.std(0)).max() < 4 / 100_000**0.5
    assert (found.var[:, 0].sqrt() / draws.std(0) - 1).abs().max() < 2 * (5 / 100_000) ** 0.5


def test_draws_and_moments_stand_side_by_side_layer_by_layer() -> None:
    """nrontsis/PILCO #33"""
    x = Random(1).normal((64, 3))
    model = po.fit(
        lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)), (x, x[:, 0]), "gaussian", po.MeanFieldVI(),
        epochs=3, seed=0, progress=False,
    )  # fmt: skip
    (finding,) = [one for one in po.diagnose(model, (x, x[:, 0])) if one.check == "propagation"]
    assert finding.status == "ok"
    told = finding.values["layers"]
    assert [(one["path"], one["kind"]) for one in told[:3]] == [("0", "Linear"), ("1", "Tanh"), ("2", "Linear")]
    for one in told:
        assert one["var_ratio"] == pytest.approx(1.0, abs=0.5)
        assert one["mean_gap"] < 4 * one["floor"]
