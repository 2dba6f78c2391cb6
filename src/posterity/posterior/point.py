"""One set of weights: what maximum a posteriori training leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from posterity.posterior.moments import Deterministic, Moment
from posterity.posterior.posterior import Posterior, evenly
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["Point"]


class Point(Posterior):
    """All mass on `theta`: epistemic uncertainty is exactly zero."""

    kind: ClassVar[str] = "point"

    def __init__(self, theta: Tree) -> None:
        self.theta = theta

    @property
    def finite(self) -> int | None:
        return 1

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for _ in evenly(n, 1):
            yield self.theta

    def mean(self) -> Tree:
        return self.theta

    def moments(self) -> dict[str, Moment]:
        return {name: Deterministic(leaf) for name, leaf in self.theta.items()}

    def tensors(self) -> Tree:
        return dict(self.theta)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Point:
        return cls(dict(tensors))
