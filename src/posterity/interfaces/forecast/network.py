"""The network of a forecast: one of the ready-made forecasters, and what known columns add at each time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.interfaces.methods import hint
from posterity.models.dlinear import dlinear
from posterity.models.koopa import dominant_frequencies, koopa
from posterity.models.lstm import lstm

__all__ = ["NETWORKS", "Forecaster", "describe", "forecaster"]

NETWORKS: Mapping[str, Callable[..., nn.Module]] = {"koopa": koopa, "dlinear": dlinear, "lstm": lstm}
_UNITS = 16  # of the hidden layer that known columns go through


class Forecaster(nn.Module):
    """[rows, lookback, channels], and [rows, horizon, known] where something is known ahead, to [rows, horizon].

    The first channel of `body`'s forecast, plus a perceptron of the known columns of each time, the same for all times.
    """

    def __init__(self, body: nn.Module, known: int) -> None:
        super().__init__()
        self.body = body
        self.known = nn.Sequential(nn.Linear(known, _UNITS), nn.ReLU(), nn.Linear(_UNITS, 1)) if known else None

    def forward(self, past: Tensor, future: Tensor | None = None) -> Tensor:
        """[rows, horizon] standardised."""
        added = 0.0 if self.known is None or future is None else self.known(future)[..., 0]
        return self.body(past)[..., 0] + added  # the body last: its last layer is the network's


def forecaster(name: str, past: Tensor, horizon: int, known: int, **options: Any) -> Callable[[], nn.Module]:
    """A function that builds the network of a name for training windows `past` [rows, lookback, channels].

    Raises CompatibilityError with the names there are.
    """
    if name not in NETWORKS:
        raise CompatibilityError(
            f"no network for forecasts is called {name!r}: {hint(name, NETWORKS)}there are {', '.join(NETWORKS)}"
        )
    if name == "koopa" and "frequencies" not in options:
        options["frequencies"] = dominant_frequencies(past)
    _, lookback, channels = past.shape
    return lambda: Forecaster(NETWORKS[name](channels, lookback, horizon, **options), known)


def describe(name: str, network: nn.Module) -> str:
    """Its name and how many numbers can be trained."""
    weights = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    return f"{name}, {weights:,} weights"
