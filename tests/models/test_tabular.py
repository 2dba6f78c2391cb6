"""Each preset goes with each likelihood, learns, and says what it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import posterity as po
from posterity.errors import DataError
from posterity.models.tabular import PRESETS, describe, linear, mlp, resmlp

ROWS, INPUTS = 61, 3


def data(classes: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=generator)
    values = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.5 * torch.randn(ROWS, generator=generator)
    return x, values if not classes else torch.bucketize(values, torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize(
    ("likelihood", "outputs"), [("gaussian", 1), ("student-t", 1), ("heteroscedastic", 2), ("categorical", 3)]
)
def test_presets_fit(preset: str, likelihood: str, outputs: int) -> None:
    x, y = data(classes=3 if likelihood == "categorical" else 0)
    torch.manual_seed(0)
    network = PRESETS[preset](INPUTS, outputs)
    assert network(x).shape == (ROWS, outputs)
    start = network(x).detach()
    method = po.MAP(learning_rate=0.05 if preset == "linear" else 0.01)
    model = po.fit(network, (x, y), likelihood, method, epochs=60, progress=False)
    assert torch.equal(network(x), start)  # the module is never changed
    found = model.predict(x)
    if likelihood == "categorical":
        right = (found.probs.argmax(1) == y).double().mean()
        assert right > 0.8  # chance is at most the largest of three classes
    else:
        assert found.mean.numel() == ROWS
        residual = found.mean.flatten() - y
        assert residual.square().mean() < 0.3 * y.var()


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_row_does_not_depend_on_the_others(preset: str) -> None:
    network = PRESETS[preset](INPUTS, 2)
    x, _ = data()
    assert network.training
    assert torch.allclose(network(x)[7], network(x[7:8])[0], atol=1e-6)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (linear(13, 1), "linear 13-1, 14 weights"),
        (mlp(13, 1), "mlp 13-64-64-1, 5,121 weights"),
        (mlp(5, 3, width=7, depth=1), "mlp 5-7-3, 66 weights"),
        (resmlp(5, 3, width=8, blocks=2), "resmlp 5-8x2-3, 683 weights"),
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), "Sequential, 6 weights"),
        (nn.Flatten(), "Flatten, 0 weights"),
    ],
)
def test_descriptions(network: nn.Module, text: str) -> None:
    assert describe(network) == text


@pytest.mark.parametrize("make", [lambda: linear(0, 1), lambda: mlp(3, 1, width=0), lambda: resmlp(3, 1, blocks=0)])
def test_sizes_below_one(make: object) -> None:
    with pytest.raises(DataError, match="at least 1"):
        make()  # type: ignore[operator]
