"""Layers whose weights are correlated: exact variances and covariances of their outputs, and nothing said where they are."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import posterity as po
from posterity.posterior.dense import Dense, Kronecker
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.layer_moments import linear_names
from posterity.posterior.moments import Correlated, Normal
from posterity.posterior.posterior import Posterior
from posterity.prediction.propagation.correlated import CorrelatedOutput, CorrelatedWeight
from posterity.prediction.propagation.graph import graph_of
from posterity.prediction.propagation.joint import Joint, root, root_by_columns
from posterity.prediction.propagation.propagate import propagate, values_of, weight_values
from posterity.prediction.propagation.run import Pass
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.prediction.propagation.value import MeanVar
from posterity.problem.network import Network
from posterity.random import Random

KINDS = ["dense", "dense, turned", "dense, no bias", "kronecker", "kronecker, no bias"]
K, N = 3, 5  # outputs and inputs of the layer


def normal(*shape: int, at: str = "") -> Tensor:
    return Random(0).fold(f"{shape} {at}").normal(shape)


class Ending(nn.Module):
    """A fixed body, a layer, and what comes after it."""

    def __init__(self, bias: bool, after: Any = None) -> None:
        super().__init__()
        self.body, self.head, self.after = nn.Linear(4, N), nn.Linear(N, K, bias=bias), after

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(torch.tanh(self.body(x)))
        return y if self.after is None else self.after(y)


def setting(kind: str, after: Any = None) -> tuple[po.NetworkProblem, Posterior, Tensor]:
    """A problem, a posterior of its head, and [K, K, h, h] covariance of [W | b] as its draws have it."""
    bias = "no bias" not in kind
    with Random(3).forked():
        module = Ending(bias, after).eval()
    problem = po.NetworkProblem(Network(module), po.Categorical(), po.Normal(1.0), data_size=10)
    point = {name: leaf.detach() for name, leaf in module.named_parameters()}
    names = ("head.weight", "head.bias") if bias else ("head.weight",)
    h = N + bias
    if "kronecker" in kind:
        u, v = (torch.linalg.qr(normal(n, n))[0] for n in (K, h))
        posterior: Posterior = Kronecker(point, names, u, v, 0.3 * normal(K, h, at="s").abs())
        stds = posterior.stds.square()  # type: ignore[attr-defined]
        cov = torch.einsum("ci,di,aj,bj,ij->cdab", u, u, v, v, stds)
        return problem, posterior, cov
    names = names[::-1] if "turned" in kind else names
    factor = 0.3 * normal(K * h, K * h)
    posterior = Dense(point, names, factor)
    rows = dict(zip(names, factor.split([point[name].numel() for name in names])))
    parts = [rows["head.weight"].view(K, N, -1)] + ([rows["head.bias"].view(K, 1, -1)] if bias else [])
    whole = torch.cat(parts, 1)
    return problem, posterior, torch.einsum("cap,dbp->cdab", whole, whole)


def features(problem: po.NetworkProblem, x: Tensor, h: int) -> Tensor:
    phi = torch.tanh(problem.network.module.body(x)).detach()  # type: ignore[operator, union-attr]
    return torch.cat([phi, torch.ones(*phi.shape[:-1], h - N)], -1).double()


@pytest.fixture(autouse=True)
def nothing_is_said() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_the_covariance_of_the_outputs_is_exact(kind: str) -> None:
    problem, posterior, cov = setting(kind)
    x = normal(7, 4)
    (values,) = values_of(posterior, Propagation())
    with torch.no_grad():
        found = propagate(problem, values, x)
        mean = problem.outputs(posterior.mean(), x)
    phi = features(problem, x, cov.shape[-1])
    wanted = torch.einsum("ra,cdab,rb->rcd", phi, cov.double(), phi)
    assert isinstance(found, Joint)
    torch.testing.assert_close(found.mean, mean)
    # float32 sums of at most 18 products, of squares in the end
    torch.testing.assert_close(found.cov.double(), wanted, rtol=1e-5, atol=1e-6)
    variances = wanted.diagonal(dim1=1, dim2=2)
    assert float(((found.var.double() - variances) / variances).abs().max()) < 1e-5
    apart = weight_values(Diagonal(dict(posterior.mean()), {n: posterior.moments()[n].std for n in posterior.names}))  # type: ignore[attr-defined]
    with torch.no_grad():
        independent = propagate(problem, apart, x).var.double()
    assert float((independent / variances).log().abs().max()) > 0.3  # what it repairs


@pytest.mark.parametrize("kind", ["dense, turned", "kronecker"])
def test_draws_have_this_covariance(kind: str) -> None:
    problem, posterior, _ = setting(kind)
    x = normal(7, 4)
    (values,) = values_of(posterior, Propagation())
    with torch.no_grad():
        found = propagate(problem, values, x)
        drawn = torch.stack([problem.outputs(theta, x) for theta in posterior.draws(4096, Random(1))])
    gap = drawn - drawn.mean(0)
    cov = torch.einsum("sra,srb->rab", gap, gap) / 4095
    # a variance of 4096 draws errs by sqrt(2 / 4096) = 0.022 of itself: 5 of it
    scale = found.var.sqrt()
    assert float(((cov - found.cov) / scale[:, :, None] / scale[:, None]).abs().max()) < 0.11


@pytest.mark.parametrize("kind", KINDS)
def test_positions_and_what_comes_after_have_exact_variances(kind: str) -> None:
    x = normal(2, 3, 4)
    problem, posterior, cov = setting(kind, after=lambda y: 2.0 * y.clone())
    (values,) = values_of(posterior, Propagation())
    with torch.no_grad():
        found = propagate(problem, values, x)
    phi = features(problem, x, cov.shape[-1])
    own = cov.diagonal(dim1=0, dim2=1).movedim(-1, 0).double()
    wanted = 4 * torch.einsum("...a,cab,...b->...c", phi, own, phi)
    assert type(found) is MeanVar
    torch.testing.assert_close(found.var.double(), wanted, rtol=1e-5, atol=1e-6)
    problem, *_ = setting(kind)
    with torch.no_grad():
        plain = propagate(problem, values, x)
    assert isinstance(plain, CorrelatedOutput)  # [rows, positions, outputs]: variances alone
    torch.testing.assert_close(4 * plain.var, found.var)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_with_a_variance_adds_its_own(kind: str) -> None:
    _, posterior, cov = setting(kind)
    moments = posterior.moments()
    weight, bias = (
        None
        if (one := moments.get(f"head.{part}")) is None
        else CorrelatedWeight(*one)
        if isinstance(one, Correlated)
        else None
        for part in ("weight", "bias")
    )
    assert weight is not None
    x = MeanVar(normal(6, N), normal(6, N, at="v").square())
    found = weight.product(x, bias)
    assert isinstance(found, CorrelatedOutput)
    z = Random(5).normal((60_000, 6, N))
    drawn = x.mean + x.var.sqrt() * z
    phi = drawn if bias is None else torch.cat([drawn, torch.ones(*drawn.shape[:-1], 1)], -1)
    own = cov.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    # E phi' S phi and the variance of W m: of 60000 draws with heavy squares, to 3 %
    wanted = torch.einsum("sra,cab,srb->rc", phi, own, phi) / len(z) + F.linear(x.var, weight.mean.square())
    torch.testing.assert_close(found.var, wanted, rtol=0.03, atol=0.0)
    assert found.joint() is found


def test_a_bias_that_is_another_one_is_added() -> None:
    _, posterior, _ = setting("dense")
    values = weight_values(posterior)
    weight, x = values["head.weight"], normal(6, N)
    assert isinstance(weight, CorrelatedWeight)
    plain = normal(K)
    with_plain, without = weight.product(x, plain), weight.product(x, None)
    assert with_plain is not None
    assert without is not None
    torch.testing.assert_close(with_plain.mean, without.mean + plain)
    torch.testing.assert_close(with_plain.joint().cov, without.joint().cov)  # type: ignore[union-attr]
    assert weight.product(x, MeanVar(plain, plain.square())) is None


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_find_the_same_covariance(kind: str) -> None:
    problem, posterior, _ = setting(kind)
    (values,), x = values_of(posterior, Propagation()), normal(7, 4)
    with torch.no_grad():
        exact = propagate(problem, values, x)
        found = propagate(problem, values, x, Pass(Rules(covariance=True)))
    torch.testing.assert_close(found.cov, exact.cov, rtol=1e-4, atol=1e-6)
    shared, *_ = setting(kind, after=lambda y: y.sum(1, keepdim=True))  # what the sum of independent outputs has wrong
    with torch.no_grad():
        total = propagate(shared, values, x, Pass(Rules(covariance=True)))
    torch.testing.assert_close(total.cov[:, 0, 0], exact.cov.sum((1, 2)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_has_the_same(kind: str) -> None:
    problem, posterior, _ = setting(kind)
    (values,), x = values_of(posterior, Propagation()), normal(7, 4)
    with torch.no_grad():
        whole = propagate(problem, values, x)
        graph = graph_of(problem.network, values, x)
        for rows in (7, 1):
            mean, var, cov = graph.moments(x[:rows])
            torch.testing.assert_close(mean, whole.mean[:rows])
            torch.testing.assert_close(var, whole.var[:rows])
            torch.testing.assert_close(cov, whole.cov[:rows])
            assert len(graph(x[:rows])) == 2
    held = {name for name, _ in graph.named_buffers() if "layer" in name}
    assert len(held) == (3 if "kronecker" in kind else 1 if "no bias" in kind else 2)  # once, not for each of both


def test_a_scale_of_the_outputs_scales_the_covariance() -> None:
    problem, posterior, _ = setting("dense")
    (values,), x = values_of(posterior, Propagation()), normal(7, 4)
    with torch.no_grad():
        plain, doubled = (propagate(problem, values, x, Pass(scales=scales)) for scales in ({}, {"outputs": 2.0}))
    torch.testing.assert_close(doubled.cov, 2 * plain.cov)


def test_many_outputs_have_variances_alone_and_that_is_said() -> None:
    problem, posterior, _ = setting("kronecker")
    (values,), x = values_of(posterior, Propagation()), normal(7, 4)
    with torch.no_grad(), pytest.warns(po.PosterityWarning, match="covariance_outputs=2"):
        found = propagate(problem, values, x, Pass(Rules(covariance_outputs=2)))
    with torch.no_grad():
        whole = propagate(problem, values, x)
    torch.testing.assert_close(found.var, whole.var)


class ByHand(nn.Module):
    """A linear layer that calls no `linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.head.weight.T + self.head.bias


def test_a_layer_that_is_read_otherwise_is_said_to_be_independent() -> None:
    module = ByHand().eval()
    problem = po.NetworkProblem(Network(module), po.Categorical(), po.Normal(1.0), data_size=10)
    point = {name: leaf.detach() for name, leaf in module.named_parameters()}
    posterior = Dense(point, ("head.weight", "head.bias"), normal(5 * K, 5 * K))
    (values,), x = values_of(posterior, Propagation()), normal(7, 4)
    with torch.no_grad(), pytest.warns(po.PosterityWarning, match="correlated weights as independent"):
        found = propagate(problem, values, x).var
    moments = posterior.moments()
    wanted = x.square() @ moments["head.weight"].std.square().T + moments["head.bias"].std.square()
    torch.testing.assert_close(found, wanted)


def test_several_layers_count_as_independent_as_before() -> None:
    point = {"a.weight": normal(2, 3), "b.weight": normal(2, 2)}
    posterior = Dense(point, ("a.weight", "b.weight"), normal(10, 10))
    assert posterior.layer is None
    assert all(isinstance(one, Normal) for one in posterior.moments().values())
    with pytest.warns(po.PosterityWarning, match="takes the weights as independent"):
        values_of(posterior, Propagation())


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        ({"weight": (3, 5), "bias": (3,)}, ("weight", "bias")),
        ({"a.bias": (3,), "a.weight": (3, 5)}, ("a.weight", "a.bias")),
        ({"a.weight": (3, 5)}, ("a.weight",)),
        ({"a.weight": (3, 5), "b.bias": (3,)}, ()),
        ({"a.weight": (3, 5), "a.bias": (5,)}, ()),
        ({"a.weight": (3,), "a.bias": (3,)}, ()),
        ({"a.weight": (3, 5, 2)}, ()),
        ({"x": (3, 5)}, ()),
    ],
)
def test_a_linear_is_known_by_names_and_shapes(shapes: dict[str, tuple[int, ...]], names: tuple[str, ...]) -> None:
    assert tuple(linear_names({name: torch.Size(shape) for name, shape in shapes.items()})) == names


def test_the_root_by_columns_is_the_root() -> None:
    half = normal(5, 4, 4)
    cov = half @ half.mT
    cov[1, 2] = cov[1, :, 2] = 0.0  # an output that does not vary
    torch.testing.assert_close(root_by_columns(cov), root(cov))


@cache
def data() -> tuple[Tensor, Tensor]:
    x = normal(150, 7)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_a_last_layer_predicts_as_its_draws_do(structure: str) -> None:
    x, y = data()
    with Random(2).forked():
        net = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3))
    method = po.LastLayerLaplace(structure=structure)
    model = po.fit(net, (x, y), "categorical", method, epochs=10, batch_size=30, seed=0, progress=False)
    far = 3 * x
    found, draws = model.predict(far, via="propagation"), model.predict(far, via="draws", draws=4096)
    moments = model.posterior.moments()
    stds = {name: one.std for name, one in moments.items() if isinstance(one, Correlated)}
    apart = po.BayesianModel(model.problem, Diagonal(dict(model.posterior.mean()), stds), settings=model.settings)

    def distance(pred: Any) -> float:
        return float((pred.probs - draws.probs).abs().sum(1).mean()) / 2

    assert distance(found) < 0.01
    assert distance(apart.predict(far, via="propagation")) > 0.02
    torch.testing.assert_close(found.epistemic.mean(), draws.epistemic.mean(), rtol=0.05, atol=0.0)
    torch.testing.assert_close(model.predict(far[3:5], via="propagation").probs, found.probs[3:5])
