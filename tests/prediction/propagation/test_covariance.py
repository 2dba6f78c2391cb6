"""The covariance of a row's outputs: closed forms, and what a prediction does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import CompatibilityError
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.moments import FactoredNormal
from posterity.prediction.propagation.covariance import covaried
from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.head import outputs_at_points
from posterity.prediction.propagation.joint import Joint, root
from posterity.prediction.propagation.propagate import propagate, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.value import Value
from posterity.problem.network import Network
from posterity.random import Random

COVARIANCE = Pass(Rules(covariance=True))


class Pooled(nn.Module):
    """The mean over positions of one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1)


class Doubled(nn.Module):
    """Two branches that share their input and their weight: y + 2 y."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + 2.0 * y.clone()


class TwoHeads(nn.Module):
    """A mean and a log std from one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class Choosing(nn.Module):
    """A branch that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if float(x.sum()) > 0.0 else torch.tanh(self.other(x))


def problem_of(module: nn.Module) -> po.NetworkProblem:
    return po.NetworkProblem(Network(module.eval()), po.Gaussian(std=1.0), po.Normal(1.0), data_size=10)


def normals(problem: po.NetworkProblem, std: float) -> dict[str, Any]:
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    stds = {
        name: std * (1 + torch.arange(leaf.numel()) % 3).reshape(leaf.shape).float() for name, leaf in means.items()
    }
    return weight_values(Diagonal(means, stds))


def made(make: Callable[[], nn.Module]) -> nn.Module:
    with Random(4).forked():
        return make()


def of(module: nn.Module, values: dict[str, Value], x: Tensor) -> Joint:
    found = covaried(problem_of(module), values, x, COVARIANCE)
    assert isinstance(found, Joint)
    return found


def test_positions_that_share_a_weight_move_together() -> None:
    module = made(Pooled)
    values = normals(problem_of(module), 0.3)
    x = Random(1).normal((5, 7, 3))
    found = of(module, values, x)
    # y = W mean(x) + b: exact, and outputs share nothing
    var = x.mean(1).square() @ values["layer.weight"].var.T + values["layer.bias"].var
    torch.testing.assert_close(found.cov, torch.diag_embed(var))
    diagonal = propagate(problem_of(module), values, x)
    assert float((diagonal.var / var).max()) > 1.2 or float((diagonal.var / var).min()) < 0.8  # what it repairs


def test_a_branch_adds_to_itself() -> None:
    module = made(Doubled)
    values = normals(problem_of(module), 0.3)
    x = Random(1).normal((5, 3))
    found = of(module, values, x)
    torch.testing.assert_close(found.cov, torch.diag_embed(9.0 * x.square() @ values["layer.weight"].var.T))


def test_hidden_features_share_their_noise_in_all_outputs() -> None:
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    values = normals(problem_of(module), 0.2)
    x = Random(1).normal((4, 3))
    first, second = values["0.weight"], values["1.weight"]
    # h = W x: mean m, independent var v;  y = U h:  M_U v M_U^T + diag(S_U (m^2 + v)): exact
    m, v = x @ first.mean.T, x.square() @ first.var.T
    cov = (second.mean * v[:, None]) @ second.mean.T + torch.diag_embed((m.square() + v) @ second.var.T)
    torch.testing.assert_close(of(module, values, x).cov, cov)


def test_a_pooled_convolution_spreads_as_its_draws_do() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    problem, x = problem_of(module), Random(1).normal((5, 1, 7, 9))
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    posterior = Diagonal(means, {name: 0.2 * leaf.abs() + 0.01 for name, leaf in means.items()})
    with torch.no_grad():
        draws = torch.stack([problem.outputs(theta, x) for theta in posterior.draws(500, Random(2))])
    values = weight_values(posterior)
    joint, diagonal = (propagate(problem, values, x, one) for one in (COVARIANCE, Pass()))
    ratio, without = (float((one.var.sqrt() / draws.std(0)).mean()) for one in (joint, diagonal))
    assert 0.93 < ratio < 1.07  # the draws leave 1 / sqrt(1000) each, of 40
    assert without < 0.8


def factored(random: Random, m: int, n: int, rank: int) -> FactoredNormal:
    left, right = random.fold("left").normal((m, rank)), random.fold("right").normal((n, rank))
    return FactoredNormal(left, 0.3 * left.abs(), right, 0.2 * right.abs(), (m, n))


@pytest.mark.parametrize("positions", [0, 7])
def test_low_rank_layers_to_second_order(positions: int) -> None:
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    first, second = factored(Random(1), 5, 3, 2), factored(Random(2), 2, 5, 2)
    values: dict[str, Value] = {"0.weight": FactoredWeight(first), "1.weight": FactoredWeight(second)}
    x = Random(3).normal((4, positions or 1, 3))
    found = of(module, values, x if positions else x[:, 0])
    cov = found.cov.reshape(4, positions or 1, 2, positions or 1, 2).diagonal(dim1=1, dim2=3).movedim(-1, 1)
    # exact moments of two layers (posterior/factor_moments.py), position by position
    a, b = first, second
    h, own = x @ a.right_mean, x.square() @ a.right_std.square()
    u = h @ a.left_mean.T
    q = (a.left_mean * own[..., None, :]) @ a.left_mean.T
    q = q + torch.diag_embed((h.square() + own) @ a.left_std.square().T)
    second_moment = u.square() + q.diagonal(dim1=-2, dim2=-1)
    c = b.right_mean.T @ q @ b.right_mean + torch.diag_embed(second_moment @ b.right_std.square())
    z2 = (u @ b.right_mean).square() + c.diagonal(dim1=-2, dim2=-1)
    exact = b.left_mean @ c @ b.left_mean.T + torch.diag_embed(z2 @ b.left_std.square().T)
    # what is not there: that features of the hidden layer are correlated where the factors of the second vary as well. The
    # products of two noises that are there are 0.3^2 x 0.2^2 of 0.3^2 + 0.2^2, 3 %
    assert float((cov - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("module", [Pooled, TwoHeads])
def test_without_variance_it_is_the_network(module: type[nn.Module]) -> None:
    network = made(module)
    problem, x = problem_of(network), Random(1).normal((5, 7, 3) if module is Pooled else (5, 3))
    means = {name: leaf.detach() for name, leaf in problem.network.trainable.items()}
    with torch.no_grad():
        plain = problem.outputs(means, x)
    assert torch.equal(covaried(problem, means, x, COVARIANCE), plain)
    found = covaried(problem, normals(problem, 0.0), x, COVARIANCE)
    torch.testing.assert_close(found.mean, plain)
    assert not found.cov.any()
    for point in outputs_at_points(found, problem.likelihood, 4):
        torch.testing.assert_close(point, plain)


@pytest.mark.parametrize("module", [TwoHeads, Choosing])
def test_a_row_does_not_depend_on_its_batch_nor_on_how_much_is_held(module: type[nn.Module]) -> None:
    problem = problem_of(made(module))
    values, x = normals(problem, 0.1), Random(1).normal((5, 3))
    whole = covaried(problem, values, x, COVARIANCE)
    for other in (covaried(problem, values, x[2:], COVARIANCE), covaried(problem, values, x, COVARIANCE, memory=1)):
        torch.testing.assert_close(other.cov[-3:], whole.cov[2:])
        torch.testing.assert_close(other.mean[-3:], whole.mean[2:])


def test_the_way_where_nothing_runs_side_by_side_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(made(TwoHeads))
    values, x = normals(problem, 0.1), Random(1).normal((5, 3))
    whole = covaried(problem, values, x, COVARIANCE)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("vmap: not here")

    monkeypatch.setattr("posterity.prediction.propagation.covariance.torch.vmap", refuse)
    torch.testing.assert_close(covaried(problem, values, x, COVARIANCE).cov, whole.cov)


def test_points_have_the_covariance() -> None:
    factor = Random(1).normal((3, 2, 2))
    cov = factor @ factor.mT
    cov[1, 0] = cov[1, :, 0] = 0.0  # an output that does not vary
    half = root(cov)
    torch.testing.assert_close((half @ half.mT).float(), cov, rtol=1e-5, atol=1e-6)
    said = Joint((torch.zeros(3, 2),), cov, True)
    points = torch.stack(list(outputs_at_points(said, po.Gaussian(std=1.0), 4096)))
    found = torch.einsum("pra,prb->rab", points, points) / 4096
    torch.testing.assert_close(found, cov, rtol=0.01, atol=0.01)  # low discrepancy: far within 1 / sqrt(4096)


def fitted(likelihood: str) -> tuple[po.BayesianModel, Tensor]:
    x = Random(1).normal((60, 3))
    y = (x[:, 0] > 0).long() if likelihood == "categorical" else x[:, :1]
    with Random(2).forked():
        net = TwoHeads()
    return po.fit(net, (x, y), likelihood, po.IVON(), epochs=2, seed=0, progress=False), x


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
def test_a_model_predicts_with_it(likelihood: str) -> None:
    model, x = fitted(likelihood)
    plain = model.predict(x, via="propagation")
    model.propagation = Propagation(Rules(covariance=True))
    first, again = (model.predict(x[k:], via="propagation") for k in (0, 50))
    draws = model.predict(x, via="draws", draws=512)

    def said(pred: object) -> Tensor:
        return pred.probs if likelihood == "categorical" else pred.mean  # type: ignore[attr-defined]

    torch.testing.assert_close(said(first)[50:], said(again))
    assert (said(first) - said(draws)).abs().mean() < 0.05 * said(draws).abs().mean()
    assert not torch.equal(said(plain), said(first)) or likelihood != "categorical"


def test_what_it_does_not_do_is_said() -> None:
    problem = problem_of(made(TwoHeads))
    values, x = normals(problem, 0.1), Random(1).normal((5, 3))
    with pytest.raises(CompatibilityError, match="covariance_outputs=1"):
        covaried(problem, values, x, Pass(Rules(covariance=True, covariance_outputs=1)))
    with pytest.raises(CompatibilityError, match=r"calibrate\(\)"):
        covaried(problem, values, x, Pass(Rules(covariance=True), {"#0": 2.0}))
    with pytest.raises(CompatibilityError, match="slopes of the network"):
        graph_of(problem.network, values, x, COVARIANCE)
    doubled = covaried(problem, values, x, Pass(Rules(covariance=True), {"outputs": 2.0}))
    torch.testing.assert_close(doubled.cov, 2.0 * covaried(problem, values, x, COVARIANCE).cov)
