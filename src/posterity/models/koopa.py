"""Koopa: a series as two dynamics that are linear in learned coordinates. Liu et al. (2023), arXiv 2305.18803.

    x_inv = irfft(rfft(x) on the dominant frequencies),  x_var = x - x_inv          Fourier filter
    y_inv = decode(K encode(x_inv))                       K learned: the same for all times
    z_j = encode(segment j of x_var),  z_{j+1} ~ K z_j    K by least squares over the segments of each window (eDMD)
    y_var = decode(K^i z_n), i = 1, 2, ...
    x <- x_var - decode(z_1, K z_1, ..., K z_{n-1})       the next block forecasts what this one does not explain
    y = sum of y_inv + y_var over blocks

Windows are normalised by their own mean and std. The least squares have a small ridge, which makes the operator smooth where
there are fewer segments than coordinates, as there nearly always are: it is then the smallest one that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from posterity.errors import DataError
from posterity.models.forecasters import centred, check_sizes, check_windows

__all__ = ["Koopa", "dominant_frequencies", "koopa"]

_RIDGE = 1e-3  # of the mean squared length of a segment's coordinates


def dominant_frequencies(windows: Tensor, share: float = 0.2) -> tuple[int, ...]:
    """The frequencies of largest mean amplitude over the training windows, in order.

    Args:
        windows: [rows, lookback, channels] of the training part only.
        share: in (0, 1], of the lookback // 2 + 1 frequencies; at least one.

    >>> time = torch.arange(24.0)[None, :, None]
    >>> dominant_frequencies(torch.sin(2 * torch.pi * 3 * time / 24), share=0.05)
    (3,)
    """
    if windows.ndim != 3 or len(windows) == 0:
        raise DataError(
            f"training windows are [rows, lookback, channels] with at least a row, got {list(windows.shape)}"
        )
    if not 0 < share <= 1:
        raise DataError(f"the share of dominant frequencies must be in (0, 1], got {share:g}")
    amplitude = torch.fft.rfft(centred(windows)[0], dim=1).abs().mean((0, 2))
    count = max(1, round(share * len(amplitude)))
    return tuple(sorted(amplitude.topk(count).indices.tolist()))


def koopa(
    channels: int,
    lookback: int,
    horizon: int,
    *,
    frequencies: Sequence[int] | None = None,
    segment: int | None = None,
    blocks: int = 2,
    width: int = 64,
    coordinates: int = 32,
) -> nn.Module:
    """[rows, lookback, channels] to [rows, horizon, channels].

    Args:
        frequencies: of the time-invariant part, as `dominant_frequencies` finds them; the slowest fifth unless given.
        segment: times in a segment of the time-variant part; a quarter of the lookback unless given.
        width: hidden units of the encoders and decoders.
        coordinates: numbers that the operators act on.

    Raises DataError: a size below 1, a lookback below 2, a frequency that the lookback does not have, a segment that
    leaves fewer than two.
    """
    check_sizes(
        channels=channels, lookback=lookback, horizon=horizon, blocks=blocks, width=width, coordinates=coordinates
    )
    if lookback < 2:
        raise DataError("koopa needs a lookback of at least 2: its dynamics are a step from segment to segment")
    count = lookback // 2 + 1
    if frequencies is None:
        frequencies = range(max(1, round(0.2 * count)))
    if outside := [f for f in frequencies if not 0 <= f < count]:
        raise DataError(f"a lookback of {lookback} has the frequencies 0 to {count - 1}, not {outside[0]}")
    segment = max(1, lookback // 4) if segment is None else segment
    if not 1 <= segment < lookback:
        raise DataError(f"a segment must be shorter than the lookback of {lookback} and at least 1, got {segment}")
    return Koopa(channels, lookback, horizon, frequencies, segment, blocks, width, coordinates)


class Koopa(nn.Module):
    """The network that `koopa` builds."""

    def __init__(
        self, channels: int, lookback: int, horizon: int, frequencies: Iterable[int], segment: int, blocks: int,
        width: int, coordinates: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.channels, self.lookback = channels, lookback
        keep = torch.zeros(lookback // 2 + 1)
        keep[list(frequencies)] = 1.0
        self.keep: Tensor
        self.register_buffer("keep", keep[:, None], persistent=False)
        self.invariant = nn.ModuleList(_Invariant(lookback, horizon, width, coordinates) for _ in range(blocks))
        self.variant = nn.ModuleList(
            _Variant(channels, lookback, horizon, segment, width, coordinates) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[rows, lookback, channels] to [rows, horizon, channels]."""
        left, mean, std = centred(check_windows(x, self.lookback, self.channels))
        forecasts = []
        for invariant, variant in zip(self.invariant, self.variant):
            steady = torch.fft.irfft(torch.fft.rfft(left, dim=1) * self.keep, n=self.lookback, dim=1)
            changing = left - steady
            explained, ahead = variant(changing)
            forecasts += [ahead, invariant(steady)]
            left = changing - explained
        return mean + std * torch.stack(forecasts).sum(0)


class _Invariant(nn.Module):
    """decode(K encode(x)) of each channel, K learned."""

    def __init__(self, lookback: int, horizon: int, width: int, coordinates: int) -> None:
        super().__init__()
        self.encode = _perceptron(lookback, width, coordinates)
        self.operator = nn.Linear(coordinates, coordinates, bias=False)
        self.decode = _perceptron(coordinates, width, horizon)
        nn.init.eye_(self.operator.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, lookback, channels] to [rows, horizon, channels]."""
        return self.decode(self.operator(self.encode(x.transpose(1, 2)))).transpose(1, 2)


class _Variant(nn.Module):
    """Segments of a window moved on by the operator that fits them."""

    def __init__(self, channels: int, lookback: int, horizon: int, segment: int, width: int, coordinates: int) -> None:
        super().__init__()
        self.channels, self.lookback, self.horizon, self.segment = channels, lookback, horizon, segment
        self.encode = _perceptron(segment * channels, width, coordinates)
        self.decode = _perceptron(coordinates, width, segment * channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, lookback, channels] to its reconstruction and the forecast [rows, horizon, channels]."""
        missing = -self.lookback % self.segment
        whole = torch.cat([x[:, :1].expand(-1, missing, -1), x], 1) if missing else x
        z = self.encode(whole.unflatten(1, (-1, self.segment)).flatten(2))
        before, after = z[:, :-1], z[:, 1:]
        # K^T = before^T (before before^T + ridge)^-1 after, applied without being formed
        gram = before @ before.transpose(1, 2)
        ridge = _RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1) + 1e-6
        identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        weights = torch.linalg.solve(gram + ridge[:, None, None] * identity, after)
        moved = gram @ weights
        steps, z_next = [], z[:, -1:]
        for _ in range(-(-self.horizon // self.segment)):
            z_next = z_next @ before.transpose(1, 2) @ weights
            steps.append(z_next)
        back = self._times(self.decode(torch.cat([z[:, :1], moved], 1)))
        return back[:, missing:], self._times(self.decode(torch.cat(steps, 1)))[:, : self.horizon]

    def _times(self, segments: Tensor) -> Tensor:
        """[rows, segments, segment * channels] to [rows, times, channels]."""
        return segments.unflatten(2, (self.segment, self.channels)).flatten(1, 2)


def _perceptron(inputs: int, width: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))
