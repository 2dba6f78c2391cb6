"""The flow as a posterior: its density, its draws, a part of the weights, storage."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from posterity.errors import CompatibilityError, StorageError
from posterity.posterior.flow import FLOWS, Flow, FlowShape, flow_base, flow_log_prob, flow_start
from posterity.posterior.posterior import posterior_from
from posterity.random import Random
from posterity.tree import Tree

pytest.importorskip("zuko")

LIKE = torch.zeros((), dtype=torch.float64)


def bent(shape: FlowShape, seed: int = 0) -> Tree:
    """Parameters far from the start: no layer is the identity."""
    start = flow_start(shape, Random(seed), LIKE)
    return {
        name: leaf + 0.3 * Random(seed).fold(name).normal(tuple(leaf.shape), like=LIKE) for name, leaf in start.items()
    }


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("flow", FLOWS)
def test_density_is_that_of_the_draws(flow: str, dim: int) -> None:
    """log q(x(z)) = log N(z) - log |det dx/dz|, with the Jacobian by autograd: both directions are one flow's."""
    shape = FlowShape(flow, dim, 2, (5,), 4)
    parameters = bent(shape)
    z = Random(1).normal((7, dim), like=LIKE)
    x = flow_base(shape, parameters, z)
    base = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)
    for row in range(len(z)):
        jacobian = torch.autograd.functional.jacobian(lambda one: flow_base(shape, parameters, one[None])[0], z[row])
        wanted = base[row] - torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(flow_log_prob(shape, parameters, x[row : row + 1])[0], wanted, atol=1e-8, rtol=0)


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("flow", FLOWS)
def test_starts_near_a_standard_normal_and_leaves_the_generator_alone(flow: str, dim: int) -> None:
    state = torch.get_rng_state()
    shape = FlowShape(flow, dim, 2, (7,), 8)
    parameters = flow_start(shape, Random(3), LIKE)
    z = Random(1).normal((11, dim), like=LIKE)
    assert float((flow_base(shape, parameters, z) - z).abs().max()) < 0.1  # the last layers are shrunk by 100
    assert torch.equal(torch.get_rng_state(), state)
    again = flow_start(shape, Random(3), LIKE)
    assert all(torch.equal(again[name], leaf) for name, leaf in parameters.items())


def made(subspace: bool = False) -> Flow:
    point = {"w": Random(0).normal((3, 2)), "rest": torch.ones(4), "idle": torch.zeros(2)}
    shape = FlowShape("maf", 2 if subspace else 6, 2, (5,), 4)
    spread = Random(5).normal((3, 2, 2)) if subspace else torch.full((3, 2), 0.5)
    parameters = {name: leaf.float() for name, leaf in bent(shape).items()}
    return Flow(point, {"w": spread}, parameters, shape, {"idle": torch.full((2,), 0.7)})


@pytest.mark.parametrize("subspace", [False, True])
def test_stored_and_read(subspace: bool) -> None:
    posterior = made(subspace)
    found = posterior_from("flow", posterior.tensors(), posterior.meta())
    one, two, longer = (list(p.draws(n, Random(2))) for p, n in ((posterior, 3), (found, 3), (posterior, 5)))
    for a, b, c in zip(one, two, longer):
        assert all(torch.equal(a[name], b[name]) and torch.equal(a[name], c[name]) for name in a)
        assert torch.equal(a["rest"], torch.ones(4))
    assert not torch.equal(one[0]["w"], one[1]["w"])


def test_a_subspace_stays_in_its_span_and_has_no_density() -> None:
    posterior = made(subspace=True)
    columns = posterior.spread["w"].reshape(6, 2)
    away = torch.stack([(draw["w"] - posterior.point["w"]).flatten() for draw in posterior.draws(7, Random(0))])
    residual = away.T - columns @ torch.linalg.lstsq(columns, away.T).solution
    assert float(residual.abs().max()) < 1e-5
    assert float(away.abs().max()) > 0.1
    with pytest.raises(CompatibilityError, match="subspace"):
        posterior.log_prob(torch.zeros(1, 6))


def test_density_counts_the_spread() -> None:
    """log q(theta) = log q(x) - log |det A|, with A = 0.5 I of 6 numbers."""
    posterior = made()
    x = torch.stack([draw["w"].flatten() for draw in posterior.draws(5, Random(0))])
    inner = flow_log_prob(posterior.shape, posterior.parameters, (x - posterior.point["w"].flatten()) / 0.5)
    torch.testing.assert_close(posterior.log_prob(x), inner - 6 * torch.tensor(0.5).log())


def test_moments_are_those_of_draws() -> None:
    posterior = made()
    draws = torch.stack([draw["w"] for draw in posterior.draws(500, Random(9))])
    moment = posterior.moments()["w"]
    # means of 500 and 1024 draws: off by sqrt(1/500 + 1/1024) = 5.5 % of a std, the worst of 6 within 4 of these
    assert float(((draws.mean(0) - moment.mean) / moment.std).abs().max()) < 4 * 0.055
    assert torch.equal(posterior.moments()["idle"].std, posterior.stds["idle"])
    assert float(posterior.moments()["rest"].std.abs().max()) == 0.0


def test_another_versions_parameters_are_refused() -> None:
    posterior = made()
    tensors = {name: leaf for name, leaf in posterior.tensors().items() if name != "flow/location"}
    with pytest.raises(StorageError, match="zuko"):
        posterior_from("flow", tensors, posterior.meta())


def test_without_zuko_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ImportError, match=r"posterity\[flows\]"):
        flow_start(FlowShape("nsf", 2, 1, (3,), 4), Random(0), LIKE)


def test_sizes_out_of_range_are_refused() -> None:
    for shape in (("glow", 2, 1, (3,), 4), ("nsf", 0, 1, (3,), 4), ("nsf", 2, 1, (3,), 1), ("maf", 2, 1, (0,), 4)):
        with pytest.raises(ValueError, match="must be"):
            FlowShape(*shape)
