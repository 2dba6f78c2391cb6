"""A fully factorised normal: theta = mean + std * z, z ~ N(0, I)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.random import Random
from posterity.tree import Tree, pick

__all__ = ["Diagonal"]


class Diagonal(Posterior):
    """Independent normals.

    Args:
        means: every tensor, the changed buffers among them.
        stds: standard deviations of those that vary, shaped like their means.
    """

    kind: ClassVar[str] = "diagonal"

    def __init__(self, means: Tree, stds: Tree) -> None:
        self.means, self.stds = means, stds

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i in range(DRAWS if n is None else n):
            noise = random.fold(i).normals(self.stds)
            yield {**self.means, **{k: noise[k].mul_(std).add_(self.means[k]) for k, std in self.stds.items()}}

    def mean(self) -> Tree:
        return self.means

    def moments(self) -> dict[str, Moment]:
        return {k: Normal(m, self.stds[k]) if k in self.stds else Deterministic(m) for k, m in self.means.items()}

    def tensors(self) -> Tree:
        return {**{f"mean/{k}": v for k, v in self.means.items()}, **{f"std/{k}": v for k, v in self.stds.items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Diagonal:
        return cls(pick(tensors, "mean/"), pick(tensors, "std/"))
