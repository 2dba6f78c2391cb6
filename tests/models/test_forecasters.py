"""Koopa, DLinear, the LSTM and the naive forecast: shapes, what each can do by its definition, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import DataError, ShapeError
from posterity.models.dlinear import dlinear
from posterity.models.koopa import Koopa, dominant_frequencies, koopa
from posterity.models.lstm import lstm
from posterity.models.seasonal_naive import seasonal_naive, seasonal_naive_std

ROWS, LOOKBACK, HORIZON, CHANNELS = 11, 17, 7, 3
BUILDERS = {"koopa": koopa, "dlinear": dlinear, "lstm": lstm}


def windows(seed: int = 0, lookback: int = LOOKBACK) -> Tensor:
    return torch.randn(ROWS, lookback, CHANNELS, generator=torch.Generator().manual_seed(seed))


def built(name: str, **options: int) -> nn.Module:
    torch.manual_seed(0)
    return BUILDERS[name](CHANNELS, LOOKBACK, HORIZON, **options)


@pytest.mark.parametrize("name", BUILDERS)
def test_shapes_gradients_and_rows_on_their_own(name: str) -> None:
    network, x = built(name), windows()
    y = network(x)
    assert y.shape == (ROWS, HORIZON, CHANNELS)
    assert torch.allclose(network(x[5:6])[0], y[5], atol=1e-5)
    y.square().sum().backward()
    unmoved = {name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert unmoved == set()


@pytest.mark.parametrize("name", BUILDERS)
def test_a_forecast_moves_with_the_level_of_its_window(name: str) -> None:
    network, x = built(name), windows()
    # float32 rounds 100 to 8e-6; three layers and the normalisation multiply that by less than 100
    assert torch.allclose(network(x + 100.0), network(x) + 100.0, atol=1e-3)


@pytest.mark.parametrize("name", BUILDERS)
def test_other_windows_and_sizes_are_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=r"\[rows, 17, 3\]"):
        built(name)(windows()[:, 1:])
    with pytest.raises(DataError, match="horizon of at least 1"):
        BUILDERS[name](CHANNELS, LOOKBACK, 0)


def test_the_dominant_frequencies_are_those_that_the_series_has() -> None:
    t = torch.arange(24.0)
    x = torch.stack(
        [torch.sin(2 * torch.pi * 2 * t / 24 + p) + 0.5 * torch.cos(2 * torch.pi * 7 * t / 24) for p in (0, 1)]
    )
    assert dominant_frequencies(x[..., None], share=2 / 13) == (2, 7)
    with pytest.raises(DataError, match="share"):
        dominant_frequencies(x[..., None], share=0.0)


def test_the_variant_part_moves_segments_by_the_operator_that_fits_them() -> None:
    """Segments z_j = K^j z_0 of a linear system in the coordinates themselves: reconstruction and forecast are exact."""
    turn, period = torch.tensor(0.7), 3
    angle = turn * torch.arange(8.0)
    z = torch.stack([torch.cos(angle), torch.sin(angle), torch.ones(8)], 1)  # rotation and a constant, rank 3
    network = koopa(1, 6 * period, 2 * period, segment=period, coordinates=period, blocks=1)
    assert isinstance(network, Koopa)
    part = network.variant[0]
    part.encode, part.decode = nn.Identity(), nn.Identity()
    back, ahead = part(z[:6].flatten()[None, :, None])
    # the ridge is 1e-3 of a diagonal of 2 against eigenvalues of at least 0.5 in five pairs of segments
    assert torch.allclose(back.flatten(), z[:6].flatten(), atol=0.02)
    assert torch.allclose(ahead.flatten(), z[6:].flatten(), atol=0.03)


def test_the_filter_splits_a_window_without_loss() -> None:
    network = koopa(1, 24, 5, frequencies=(1,), blocks=1)
    assert isinstance(network, Koopa)
    t = torch.arange(24.0)
    slow, fast = torch.sin(2 * torch.pi * t / 24), torch.sin(2 * torch.pi * 5 * t / 24)
    seen: list[Tensor] = []
    for part in (network.invariant[0], network.variant[0]):
        part.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    network((slow + fast)[None, :, None])
    changing, steady = (part.flatten() for part in seen)  # the variant part is called first
    std = torch.sqrt(torch.tensor(1.0 + 1e-5))  # two waves of variance 1/2
    assert torch.allclose(steady * std, slow, atol=1e-5)
    assert torch.allclose(changing * std, fast, atol=1e-5)


def test_koopa_refuses_what_a_lookback_does_not_have() -> None:
    with pytest.raises(DataError, match="frequencies 0 to 8, not 9"):
        koopa(1, LOOKBACK, HORIZON, frequencies=(1, 9))
    with pytest.raises(DataError, match="shorter than the lookback"):
        koopa(1, LOOKBACK, HORIZON, segment=LOOKBACK)
    with pytest.raises(DataError, match="odd"):
        dlinear(1, LOOKBACK, HORIZON, kernel=4)


@pytest.mark.parametrize("name", BUILDERS)
def test_they_learn_a_season(name: str) -> None:
    """A wave of period 8 with noise of std 0.1: a forecast by the mean alone has an error of 0.7."""
    torch.manual_seed(0)
    wave = torch.sin(2 * torch.pi * torch.arange(150.0) / 8) + 0.1 * torch.randn(150)
    cut = wave.unfold(0, 24 + 3, 1)
    x, y = cut[:, :24, None], cut[:, 24:]
    build: Callable[..., nn.Module] = BUILDERS[name]
    network = nn.Sequential(build(1, 24, 3, **({"blocks": 1} if name == "koopa" else {})), nn.Flatten())
    method = po.MAP(learning_rate=0.01)
    model = po.fit(network, (x[:96], y[:96]), "gaussian", method, epochs=25, batch_size=32, progress=False, seed=1)
    error = (model.predict(x[-20:]).mean - y[-20:]).square().mean().sqrt()
    assert error < 0.35


def test_the_naive_forecast_repeats_the_last_season_of_every_channel() -> None:
    x = windows()
    found = seasonal_naive(x, HORIZON, season=5)
    assert found.shape == (ROWS, HORIZON, CHANNELS)
    assert torch.equal(found[:, :5], x[:, -5:])
    assert torch.equal(found[:, 5:], x[:, -5:-3])
    assert torch.equal(seasonal_naive(x, HORIZON), x[:, -1:].expand(-1, HORIZON, -1))
    with pytest.raises(DataError, match="whole season"):
        seasonal_naive(x, HORIZON, season=LOOKBACK + 1)


def test_the_naive_spread_is_that_of_its_errors() -> None:
    y = torch.tensor([1.0, 2.0, 4.0, float("nan"), 5.0])
    one, two, five = seasonal_naive_std(y, 5, season=1)[[0, 1, 4]].tolist()
    assert one == pytest.approx(((1 + 4) / 2) ** 0.5)  # 2 - 1, 4 - 2; the pairs with the gap are left out
    assert two == pytest.approx(((9 + 1) / 2) ** 0.5)  # 4 - 1, 5 - 4
    assert five != five
    assert seasonal_naive_std(y, 2, season=2)[0] == pytest.approx(5**0.5)
