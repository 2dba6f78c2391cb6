"""Point weights under dropout: a draw is the weights and the seed of its masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.posterior.moments import Deterministic, Moment
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.random import Random
from posterity.tree import MASKS, Tree

__all__ = ["Masked"]


class Masked(Posterior):
    """Networks with units dropped: all draws share their weights, and draw i of a `Random` always has the same masks.

    Args:
        theta: every tensor, the changed buffers among them; by itself the mean, which drops nothing.
    """

    kind: ClassVar[str] = "mc-dropout"

    def __init__(self, theta: Tree) -> None:
        self.theta = theta

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        stream = random.fold("masks")
        for i in range(DRAWS if n is None else n):
            yield {**self.theta, MASKS: torch.tensor(stream.fold(i).seed)}

    def mean(self) -> Tree:
        return self.theta

    def moments(self) -> dict[str, Moment]:
        """Of the weights alone, which do not vary."""
        return {name: Deterministic(leaf) for name, leaf in self.theta.items()}

    def tensors(self) -> Tree:
        return dict(self.theta)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Masked:
        return cls(dict(tensors))
