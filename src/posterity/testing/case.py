"""One row of the contract: an algorithm, and what may be expected of it where the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from posterity.inference.algorithm import Algorithm

__all__ = ["SPREADS", "Case"]

SPREADS = ("exact", "diagonal", "point")


@dataclass(frozen=True)
class Case:
    """An algorithm under test.

    Args:
        algorithm: with the settings that most checks run; a few steps each.
        precise: the same method as it should be set where the truth is known (2 to 7 weights), or None for `algorithm`.
        steps: how many steps that takes.
        spread: what the family says of a correlated normal with precision P. "exact": its covariance; "diagonal":
            stds 1 / sqrt(P_ii) without correlations, the best independent normals in reverse KL; "point": the mode only.
        tolerance: of means in units of the wanted stds, of stds as a share of them, of correlations as they are.
        skip: check -> why it cannot apply.
        network: what is done to the networks that are fitted for what they are fed, if the method cannot work on any.

    Raises:
        ValueError: an unknown spread.
    """

    algorithm: Algorithm
    precise: Algorithm | None = None
    steps: int = 2000
    spread: str = "exact"
    tolerance: float = 0.1
    skip: Mapping[str, str] = field(default_factory=dict)
    network: Callable[[nn.Module], nn.Module] = lambda network: network

    def __post_init__(self) -> None:
        if self.spread not in SPREADS:
            raise ValueError(f"spread must be one of {SPREADS}, got {self.spread!r}")

    @property
    def exact(self) -> Algorithm:
        """What runs where the truth is known."""
        return self.precise or self.algorithm

    @property
    def emits(self) -> bool:
        """Whether the loop streams this algorithm's draws to shards."""
        return type(self.algorithm).emit is not Algorithm.emit

    def of(self, members: int) -> Algorithm:
        """The algorithm with another number of members."""
        return replace(self.algorithm, members=members)
