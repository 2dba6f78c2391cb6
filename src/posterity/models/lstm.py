"""A recurrent forecaster: an LSTM reads the lookback, and a linear map of its last state says the whole horizon.

y = x_last + std (W h + b), h the state after the window, seen with mean 0 and std 1. Hochreiter and Schmidhuber (1997).
"""

from __future__ import annotations

from torch import Tensor, nn

from posterity.models.forecasters import centred, check_sizes, check_windows

__all__ = ["LSTM", "lstm"]


def lstm(channels: int, lookback: int, horizon: int, *, width: int = 32, layers: int = 1) -> nn.Module:
    """[rows, lookback, channels] to [rows, horizon, channels].

    Raises DataError: a size below 1.
    """
    check_sizes(channels=channels, lookback=lookback, horizon=horizon, width=width, layers=layers)
    return LSTM(channels, lookback, horizon, width, layers)


class LSTM(nn.Module):
    """The network that `lstm` builds."""

    def __init__(self, channels: int, lookback: int, horizon: int, width: int, layers: int) -> None:
        super().__init__()
        self.channels, self.lookback, self.horizon = channels, lookback, horizon
        self.cells = nn.LSTM(channels, width, layers, batch_first=True)
        self.head = nn.Linear(width, horizon * channels)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, lookback, channels] to [rows, horizon, channels]."""
        z, _, std = centred(check_windows(x, self.lookback, self.channels))
        states, _ = self.cells(z)
        ahead = self.head(states[:, -1]).unflatten(1, (self.horizon, self.channels))
        return x[:, -1:] + std * ahead
