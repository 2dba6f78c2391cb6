"""Networks as people build them: what a layer is called or made of does not change what is inferred."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import posterity as po
from posterity.random import Random

X = Random(0).fold("x").normal((21, 3))
Y = torch.arange(21) % 3


def fit(network: Any, method: po.Algorithm | None = None, **options: Any) -> po.BayesianModel:
    given = {"epochs": 2, "batch_size": 7, "seed": 0, "progress": False, **options}
    return po.fit(network, given.pop("data", (X, Y)), given.pop("likelihood", "categorical"), method, **given)


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "3 x 5": lambda: nn.Conv2d(2, 4, (3, 5)),
    "groups": lambda: nn.Conv2d(2, 4, (3, 5), groups=2),
    "dilation": lambda: nn.Conv2d(2, 4, (3, 2), dilation=(1, 2)),
    "circular": lambda: nn.Conv2d(2, 4, (3, 5), padding=(1, 2), padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(2, 4, (3, 5), groups=2),
}


@pytest.mark.parametrize(
    "method", [po.MeanFieldVI(), po.LowRankVI({"0.weight": 1}), po.RankOneVI()], ids=lambda m: m.title
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_convolution_is_drawn_as_torch_has_it(name: str, method: po.Algorithm) -> None:
    """bayesian-torch #32: no layer is written anew, so that none can differ."""
    network = nn.Sequential(CONVOLUTIONS[name](), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    pictures = Random(1).normal((21, 2, 6, 8))
    model = fit(network, method, data=(pictures, Y))
    said = model.predict(pictures, draws=2, keep="draws").per_draw
    for draw, found in zip(model.posterior.draws(2, Random(0).fold("draw")), said, strict=True):
        dense = {leaf: value.dense() if hasattr(value, "dense") else value for leaf, value in draw.items()}
        with torch.no_grad():
            wanted = torch.func.functional_call(network, dense, pictures).softmax(-1)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Subclass(nn.Module):
    """A tanh that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


def sequential() -> nn.Module:
    return nn.Sequential(OrderedDict(fc1=nn.Linear(3, 4), act=nn.Tanh(), fc2=nn.Linear(4, 3)))


@pytest.mark.parametrize(
    "method", [po.LastLayerLaplace(structure="kronecker"), po.IVON(), po.DeepEnsemble(2)], ids=lambda m: m.title
)
def test_a_subclass_is_as_good_as_a_sequential(method: po.Algorithm) -> None:
    """Laplace #92"""
    wanted, found = (fit(network, method).predict(X).probs for network in (sequential, Subclass))
    assert found.equal(wanted)


def test_batch_normalisation_has_a_kronecker_posterior() -> None:
    """Laplace #76"""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert fit(network, po.LastLayerLaplace(structure="kronecker")).predict(X).epistemic.min() > 0


class Recurrent(nn.Module):
    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.lstm, self.head, self.flat = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1), flat

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.lstm(x)[0][:, -1])
        return out.squeeze(dim=1) if self.flat else out


@pytest.mark.parametrize("method", [po.LastLayerLaplace(), po.DeepEnsemble(3), po.IVON()], ids=lambda m: m.title)
def test_a_recurrent_network_says_one_number_in_either_shape(method: po.Algorithm) -> None:
    """Laplace #143; pytorch #40193, pyg #7999: and torch warns of nothing when its weights are others."""
    series, y = Random(2).normal((21, 5, 3)), Random(3).normal((21,))
    forms = [(lambda flat=flat: Recurrent(flat), target) for flat in (False, True) for target in (y, y[:, None])]
    wanted, *others = (fit(net, method, data=(series, to), likelihood="gaussian").predict(series) for net, to in forms)
    assert wanted.mean.shape == (21,)
    assert all(pred.mean.equal(wanted.mean) and pred.std.equal(wanted.std) for pred in others)


def test_a_forward_of_another_shape_is_one_plain_sentence() -> None:
    """Laplace #143"""
    with pytest.raises(po.ShapeError, match=r"\(7, 2\)"):
        fit(nn.Linear(3, 2), data=(X, Random(3).normal((21,))), likelihood="gaussian")


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(3, 3), nn.Linear(3, 3, bias=False)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def test_a_tie_is_one_tensor_of_the_posterior_and_comes_back_as_one(tmp_path: Path) -> None:
    """accelerate #2875, safetensors #98"""
    data = (Y, Y)
    model = fit(Tied, po.MeanFieldVI(), data=data, out=tmp_path / "run")
    assert model.posterior.mean().keys() == {"a.weight"}
    said, fresh = model.predict(Y, draws=2, keep="draws").per_draw, Tied()
    for draw, found in zip(model.posterior.draws(2, Random(0).fold("draw")), said, strict=True):
        weight = draw["a.weight"]
        torch.testing.assert_close(found, (weight[Y] @ weight.T).softmax(-1), rtol=1e-5, atol=1e-6)
    assert po.load(tmp_path / "run", fresh).predict(Y).probs.equal(model.predict(Y).probs)
    assert fresh.a.weight is fresh.b.weight
    plain = model.to_module(Tied())
    assert plain.a.weight is plain.b.weight
    assert plain.b.weight.equal(model.posterior.mean()["a.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_a_run_is_not_loaded_into_a_network_that_is_tied_otherwise(tied: bool, tmp_path: Path) -> None:
    """accelerate #2875"""
    model = fit(lambda: Tied(tied), data=(Y, Y), out=tmp_path / "run")
    for put in (lambda other: po.load(tmp_path / "run", other), model.to_module):
        with pytest.raises(po.CompatibilityError, match=r"not the one that was fitted \(b.weight"):
            put(Tied(not tied))


@pytest.mark.parametrize(
    ("wrap", "random"),
    [
        (parametrizations.weight_norm, {"bias", *(f"parametrizations.weight.original{i}" for i in (0, 1))}),
        (parametrizations.spectral_norm, {"bias", "parametrizations.weight.original"}),
    ],
    ids=["weight norm", "spectral norm"],
)
def test_what_a_parametrisation_is_made_of_is_drawn_by_its_name(wrap: Any, random: set[str], tmp_path: Path) -> None:
    network = wrap(nn.Linear(3, 3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = fit(network, po.MeanFieldVI(), out=tmp_path / "run")
    assert model.posterior.stds.keys() == random
    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    assert po.load(tmp_path / "run", wrap(nn.Linear(3, 3))).predict(X).probs.equal(model.predict(X).probs)
