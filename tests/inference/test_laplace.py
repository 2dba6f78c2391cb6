"""Last-layer Laplace against the generalised Gauss-Newton matrix that autograd writes down row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.dense import Dense, Kronecker
from posterity.posterior.mixture import Mixture
from posterity.problem.batches import Batch
from posterity.random import Random
from posterity.testing.expect import near
from posterity.testing.runs import network_problem
from posterity.testing.worlds import CLASSES, FEATURES, inputs, labels, plain_network

X = inputs()
Y = labels(X)
PRIOR = 0.6
FAST = po.MAP(learning_rate=0.01)


class Squashed(nn.Module):
    """Something follows the last Linear, which mixes its outputs."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.body = plain_network(outputs)
        self.mix = nn.Parameter(torch.randn((outputs, outputs), generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x)) @ self.mix


class Pooled(nn.Module):
    """The last Linear sees five positions of every row; their mean is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain_network()

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.linspace(-1.0, 1.0, 5)[None, :, None]
        return self.body(x[:, None] + steps).mean(1)


def unbiased() -> nn.Module:
    net = plain_network()
    net[2] = nn.Linear(4, CLASSES, bias=False)
    return net


def fitted(net: nn.Module, likelihood: str = "categorical", y: Any = Y, **options: Any) -> po.BayesianModel:
    options = {"prior": PRIOR, "epochs": 2, "batch_size": 7, "method": po.LastLayerLaplace(base=FAST), **options}
    return po.fit(net, (X, y), likelihood, **options)


def gauss_newton(model: po.BayesianModel, names: tuple[str, ...], weight: Tensor | None = None) -> Tensor:
    """diag(1 / p^2) + w sum over rows of weight J^T F J, over the joined tensors of `names`; J by autograd."""
    problem, theta = model.problem, model.posterior.point  # type: ignore[attr-defined]
    leaves = [theta[name].clone().requires_grad_() for name in names]
    total = torch.eye(sum(leaf.numel() for leaf in leaves), dtype=torch.float64) / PRIOR**2
    own = {"log_std": theta["likelihood.log_std"]} if "likelihood.log_std" in theta else {}
    for row in range(len(X)):
        outputs = problem.outputs({**theta, **dict(zip(names, leaves))}, X[row : row + 1])
        fisher = problem.likelihood.fisher(outputs.detach(), own)[0].double()
        columns = [
            torch.cat([g.flatten() for g in torch.autograd.grad(one, leaves, retain_graph=True)]) for one in outputs[0]
        ]
        jacobian = torch.stack(columns).double()
        share = 1.0 if weight is None else float(weight[row])
        total += problem.data_weight * share * jacobian.T @ fisher @ jacobian
    return total


NETWORKS = {
    "its own outputs": (plain_network, ("2.weight", "2.bias")),
    "no bias": (unbiased, ("2.weight",)),
    "something after it": (Squashed, ("body.2.weight", "body.2.bias")),
    "several positions": (Pooled, ("body.2.weight", "body.2.bias")),
}


@pytest.mark.parametrize("data_weight", [1.0, 2.5])
@pytest.mark.parametrize("how", NETWORKS)
def test_the_full_precision_is_the_gauss_newton_matrix(how: str, data_weight: float) -> None:
    build, names = NETWORKS[how]
    model = fitted(build(), data_weight=data_weight)
    assert isinstance(model.posterior, Dense)
    assert model.posterior.names == names
    factor = model.posterior.factor.double()
    # float32 outputs and features: 23 rows of some ten roundings, relative to precisions of 3 to 30
    near(torch.linalg.inv(factor @ factor.T), gauss_newton(model, names), 2e-3, "the precision")


def test_numbers_and_their_learned_noise() -> None:
    model = fitted(plain_network(2), "gaussian", X[:, :2] * torch.tensor([1.0, 100.0]))
    factor = model.posterior.factor.double()  # type: ignore[attr-defined]
    near(torch.linalg.inv(factor @ factor.T), gauss_newton(model, ("2.weight", "2.bias")), 2e-3, "the precision")


WEIGHTS = torch.linspace(0.0, 3.0, 23)


@pytest.mark.parametrize("structure", ["full", "kronecker"])
@pytest.mark.parametrize("how", ["sample weights", "ignored targets"])
def test_a_row_counts_as_in_the_loss(structure: str, how: str) -> None:
    """A row of weight w counts w times, and one whose target is ignored not at all."""
    method = po.LastLayerLaplace(structure=structure, base=FAST)
    counts = WEIGHTS if how == "sample weights" else (torch.arange(23) % 3 > 0).float()
    y = Y if how == "sample weights" else torch.where(counts > 0, Y, -100)
    given = {"sample_weight": WEIGHTS} if how == "sample weights" else {}
    model = fitted(plain_network(), y=y, method=method, **given)
    wanted = gauss_newton(model, ("2.weight", "2.bias"), counts)
    if structure == "full":
        factor = model.posterior.factor.double()  # type: ignore[attr-defined]
        near(torch.linalg.inv(factor @ factor.T), wanted, 2e-3, "the precision")
    else:
        near(kronecker_precision(model), kronecker(model, counts), 2e-3, "the precision")


def kronecker(model: po.BayesianModel, weight: Tensor) -> Tensor:
    """(sum w F) x (sum w phi phi^T / sum w) + 1 / p^2, unit by unit, the bias last."""
    theta = model.posterior.point  # type: ignore[attr-defined]
    hidden = torch.tanh(X @ theta["0.weight"].T + theta["0.bias"])
    phi = torch.cat([hidden, torch.ones(len(X), 1)], 1).double()
    logits = hidden @ theta["2.weight"].T + theta["2.bias"]
    fisher = model.problem.likelihood.fisher(logits, {}).double()
    outputs = torch.einsum("r,rab->ab", weight.double(), fisher)
    features = torch.einsum("r,rh,ri->hi", weight.double(), phi, phi) / weight.sum()
    return torch.kron(outputs, features) + torch.eye(CLASSES * 5, dtype=torch.float64) / PRIOR**2


def kronecker_precision(model: po.BayesianModel) -> Tensor:
    posterior = model.posterior
    assert isinstance(posterior, Kronecker)
    basis = torch.kron(posterior.rows.double(), posterior.columns.double())
    return basis @ torch.diag(posterior.stds.double().flatten() ** -2) @ basis.T


@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_draws_have_the_covariance(structure: str) -> None:
    """Signs of correlations and all: 4001 draws of 25 weights."""
    model = fitted(plain_network(), method=po.LastLayerLaplace(structure=structure, base=FAST))
    if structure == "full":
        precision = gauss_newton(model, ("2.weight", "2.bias"))
    else:
        # unit by unit with the bias last, in the order of the draws below
        order = torch.arange(25).reshape(5, 5)
        order = torch.cat([order[:, :4].flatten(), order[:, 4]])
        precision = kronecker_precision(model)[order][:, order]
    wanted = torch.linalg.inv(precision)
    draws = list(model.posterior.draws(4001, Random(0)))
    found = torch.stack([torch.cat([d["2.weight"].flatten(), d["2.bias"]]) for d in draws]).double()
    stds = wanted.diagonal().sqrt()
    # an entry of a sample covariance is off by at most s_i s_j sqrt(2 / n), and the largest of 325 by four times that
    near(torch.cov(found.T), wanted, 4 * (2 / 4001) ** 0.5 * torch.outer(stds, stds), "the covariance of draws")
    mean = torch.cat([model.posterior.mean()["2.weight"].flatten(), model.posterior.mean()["2.bias"]])
    near(found.mean(0), mean, 4 * stds / 4001**0.5, "the mean of draws")
    others = model.posterior.mean()
    assert all(draws[0][name].equal(others[name]) for name in ("0.weight", "0.bias")), "the other layers do not vary"
    near(model.posterior.moments()["2.bias"].std, stds[20:], 1e-3, "the stds")


def test_each_member_has_a_curvature_of_its_own() -> None:
    model = fitted(plain_network(), method=po.Ensemble(po.LastLayerLaplace(base=FAST), 2))
    assert isinstance(model.posterior, Mixture)
    for part in model.posterior.components:
        assert isinstance(part, Dense)
        alone = po.BayesianModel(model.problem, part)
        factor = part.factor.double()
        near(torch.linalg.inv(factor @ factor.T), gauss_newton(alone, part.names), 2e-3, "the precision of a member")


def test_members_may_have_parts_of_different_numbers() -> None:
    """Void batches, which are left out, leave one member fewer of them to accumulate than another."""
    problem = network_problem(plain_network(), X, Y, "categorical")
    method = po.Ensemble(po.LastLayerLaplace(), 2, init="same")
    parts = [Batch(X[a:b], Y[a:b], rows=b - a) for a, b in ((0, 7), (7, 12), (12, 23))]
    state = method.init(problem, problem.starts(2, "same", Random(0)), Random(0), po.Plan(7, 1, 1))
    state, info = method.step(problem, state, [parts, [parts[0]]], Random(0))
    assert state.rows.tolist() == [23, 7]
    for k, rows in enumerate((23, 7)):
        whole = -problem.row_log_probs(problem.start(), problem.outputs(problem.start(), X[:rows]), Y[:rows]).mean()
        assert float(info.nll[k]) == pytest.approx(whole.item(), rel=1e-5)


def test_the_prior_of_the_layer_can_be_its_own() -> None:
    own = fitted(plain_network(), method=po.LastLayerLaplace(base=FAST, prior_precision=50.0))
    factor = own.posterior.factor.double()  # type: ignore[attr-defined]
    wanted = gauss_newton(own, ("2.weight", "2.bias")) + (50.0 - PRIOR**-2) * torch.eye(25, dtype=torch.float64)
    near(torch.linalg.inv(factor @ factor.T), wanted, 1e-2, "the precision")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(nn.functional.pad(x, (0, 2)))))


class Ignored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.other = plain_network(), nn.Linear(CLASSES, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), x


def frozen_head() -> nn.Module:
    net = plain_network()
    net[2].requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (nn.Sequential(nn.Conv1d(FEATURES, CLASSES, 1), nn.Flatten()), "calls no nn.Linear"),
        (frozen_head(), "frozen"),
        (Tied(), "tied"),
        (Ignored(), "tuple of 2"),
    ],
    ids=["no Linear", "frozen", "tied", "several outputs"],
)
def test_where_it_cannot_be_used_it_says_so_before_training(net: nn.Module, words: str) -> None:
    x = X[:, :, None] if isinstance(net[0] if isinstance(net, nn.Sequential) else net, nn.Conv1d) else X
    steps: list[Any] = []
    with pytest.raises(po.CompatibilityError, match=words):
        po.fit(net, (x, Y), method=po.LastLayerLaplace(), epochs=1, callbacks=[steps.append])
    assert not steps


def test_a_layer_too_large_is_counted() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 2000), nn.Linear(2000, CLASSES))
    with pytest.raises(po.CompatibilityError, match=r"10005 weights.*0\.7 GiB.*kronecker"):
        po.fit(net, (X, Y), method=po.LastLayerLaplace(), epochs=1)


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="structure must be"):
        po.LastLayerLaplace(structure="diagonal")
    with pytest.raises(ValueError, match="prior_precision must be"):
        po.LastLayerLaplace(prior_precision=0.0)
