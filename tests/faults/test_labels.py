"""Labels and targets as people write them: each form that other libraries stumble over means what it says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.problem.likelihoods import Categorical, Gaussian, Heteroscedastic
from posterity.random import Random

X = Random(0).fold("x").normal((21, 3))
Y = torch.arange(21) % 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def posterior(y: Any) -> dict[str, Tensor]:
    return po.fit(network, (X, y), epochs=2, batch_size=7, seed=0, progress=False).posterior.mean()


@pytest.mark.parametrize(
    "y",
    [Y.to(torch.uint8), Y.to(torch.int32), F.one_hot(Y, 3), F.one_hot(Y, 3).float(), Y[:, None], [str(y) for y in Y]],
    ids=["uint8", "int32", "one-hot", "float one-hot", "column", "words"],
)
def test_labels_in_any_form_fit_the_same_posterior(y: Any) -> None:
    wanted, found = posterior(Y), posterior(y)
    assert all(found[name].equal(wanted[name]) for name in wanted)


def test_a_byte_image_with_void_pixels_is_fitted() -> None:
    masks = (torch.arange(24) % 3).view(6, 2, 2).to(torch.uint8)
    masks[0, 0, 1] = 255
    pictures = Random(0).normal((6, 1, 2, 2))
    model = po.fit(
        lambda: nn.Conv2d(1, 3, 1), (pictures, masks), Categorical(ignore_index=255), epochs=2, seed=0, progress=False
    )
    assert model.problem.likelihood.classes == (0, 1, 2)


@pytest.mark.parametrize("void", [7, 14, 21])
def test_batches_of_ignored_labels_are_left_out_and_only_nothing_but_such_is_an_error(void: int) -> None:
    """pytorch #70348, #75181, #116349"""
    y = Y.clone()
    y[:void] = -100
    data = DataLoader(TensorDataset(X, y), batch_size=7)
    if void == len(y):
        with pytest.raises(po.DataError, match="every target of 21 rows is ignored"):
            po.fit(lambda: nn.Linear(3, 3), data, epochs=1, seed=0)
        return
    model = po.fit(lambda: nn.Linear(3, 3), data, epochs=1, seed=0, progress=False)
    assert [row["left_out"] for row in model.history] == [void // 7]
    assert all(leaf.isfinite().all() for leaf in model.posterior.mean().values())


def test_three_numbers_beside_a_column_of_three_are_three_rows() -> None:
    """pytorch #16045"""
    y, means = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0], [1.0], [2.0]])
    likelihood = Gaussian(std=1.0, standardize=False)
    for targets in (y, y[:, None]):
        found = likelihood.log_prob(means, likelihood.canonical(targets, means), {})
        assert found.shape == (3,)
        assert found.tolist() == pytest.approx([-0.5 * math.log(2 * math.pi)] * 3)
    with pytest.raises(po.ShapeError):
        likelihood.canonical(y, torch.zeros(3, 3))


@pytest.mark.parametrize("std", [2.0, (2.0, 3.0)], ids=["one", "per output"])
def test_the_density_of_known_noise_is_that_of_torch(std: Any) -> None:
    """pytorch #53392, #147521"""
    y, means = Random(1).normal((7, 2)), Random(2).normal((7, 2))
    likelihood = Gaussian(std=std, standardize=False).surveyed([y])
    found = likelihood.log_prob(means, likelihood.canonical(y, means), {})
    wanted = torch.distributions.Normal(means, torch.tensor(std).expand(7, 2)).log_prob(y).sum(1)
    torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-6, atol=0)


def test_the_density_of_noise_per_row_is_that_of_torch() -> None:
    """pytorch #53392, #147521"""
    y, means, log_stds = (Random(seed).normal((7, 2)) for seed in (1, 2, 3))
    likelihood = Heteroscedastic(standardize=False)
    outputs = torch.cat([means, log_stds], dim=1)
    found = likelihood.log_prob(outputs, likelihood.canonical(y, outputs), {})
    wanted = torch.distributions.Normal(means, log_stds.exp()).log_prob(y).sum(1)
    torch.testing.assert_close(found, wanted, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_a_void_pixel_counts_in_no_metric_however_wild_it_is() -> None:
    """Project-MONAI #8707, torch-uncertainty #177"""
    masks = (torch.arange(24) % 3).view(6, 2, 2)
    model = po.fit(
        lambda: nn.Conv2d(1, 3, 1), (Random(0).normal((6, 1, 2, 2)), masks), Categorical(ignore_index=255),
        epochs=1, seed=0, progress=False,
    )  # fmt: skip
    picture, target = torch.ones(1, 1, 2, 2), torch.tensor([[[0, 255], [1, 1]]], dtype=torch.uint8)
    wild = picture.clone()
    wild[0, 0, 0, 1] = 1e6
    wanted, found = (po.evaluate(model, (x, target)).rows[0]["metrics"] for x in (picture, wild))
    assert {name: metric.value for name, metric in found.items()} == {
        name: metric.value for name, metric in wanted.items()
    }
    assert math.isfinite(found["nll"].value)
