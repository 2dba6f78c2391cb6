"""The mixture of normals with learned weights: its density, moments, draws and storage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posterity.posterior.moments import Deterministic
from posterity.posterior.normal_mixture import NormalMixture
from posterity.posterior.posterior import posterior_from
from posterity.random import Random
from posterity.tree import Tree

K, D = 3, 7  # two tensors of 5 and 2 numbers


@pytest.fixture
def posterior() -> NormalMixture:
    point = {"w": torch.zeros(5), "b": torch.zeros(2), "idle": torch.full((3,), 0.2), "buffer.n": torch.tensor(11)}
    centers, spread = Random(1).normal((K, D)), Random(2).normal((K, D)).exp()
    logits = torch.tensor([0.0, 1.0, -1.0])
    return NormalMixture(point, ("w", "b"), logits, centers, spread, {"idle": torch.full((3,), 0.5)})


def joined(draw: Tree) -> Tensor:
    return torch.cat([draw["w"], draw["b"]])


def test_density_is_torchs(posterior: NormalMixture) -> None:
    from torch.distributions import Categorical, Independent, MixtureSameFamily
    from torch.distributions import Normal as TorchNormal

    parts = Independent(TorchNormal(posterior.centers, posterior.component_stds), 1)
    wanted = MixtureSameFamily(Categorical(logits=posterior.logits), parts)
    x = Random(3).normal((13, D))
    torch.testing.assert_close(posterior.log_prob(x), wanted.log_prob(x))
    torch.testing.assert_close(joined(posterior.mean()), wanted.mean)
    stds = torch.cat([posterior.moments()[name].std for name in ("w", "b")])
    torch.testing.assert_close(stds, wanted.variance.sqrt())


def test_draws_have_its_weights_and_moments(posterior: NormalMixture) -> None:
    n = 4000
    draws = list(posterior.draws(n, Random(0)))
    x = torch.stack([joined(draw) for draw in draws])
    moments = posterior.moments()
    stds = torch.cat([moments[name].std for name in ("w", "b")])
    # 7 means, each off by 1 / sqrt(4000) = 1.6 % of a std: the worst within 4 of these
    assert float(((x.mean(0) - joined(posterior.mean())) / stds).abs().max()) < 4 / n**0.5
    idle = torch.stack([draw["idle"] for draw in draws])
    assert float((idle.std(0) / 0.5 - 1).abs().max()) < 4 / (2 * n) ** 0.5
    assert isinstance(moments["buffer.n"], Deterministic)
    assert all(int(draw["buffer.n"]) == 11 for draw in draws[:3])
    # shares of the components, from draws of components that lie apart
    apart = NormalMixture(
        {"x": torch.zeros(1)}, ("x",), posterior.logits, torch.tensor([[-9.0], [0.0], [9.0]]), torch.ones(K, 1), {}
    )
    values = torch.stack([draw["x"] for draw in apart.draws(n, Random(0))]).flatten()
    shares = torch.stack([(values < -4.5), (values.abs() < 4.5), (values > 4.5)]).double().mean(1)
    assert float((shares - apart.weights).abs().max()) < 4 * 0.5 / n**0.5


def test_a_draw_is_the_same_however_many_are_taken(posterior: NormalMixture) -> None:
    one, many = (list(posterior.draws(n, Random(5))) for n in (2, 5))
    for name, leaf in one[1].items():
        assert torch.equal(leaf, many[1][name])
    assert not torch.equal(one[0]["w"], one[1]["w"])


def test_stored_and_read(posterior: NormalMixture) -> None:
    found = posterior_from("normal-mixture", posterior.tensors(), posterior.meta())
    for one, other in zip(found.draws(3, Random(0)), posterior.draws(3, Random(0)), strict=True):
        assert all(torch.equal(one[name], leaf) for name, leaf in other.items())
    assert found.meta() == posterior.meta()
