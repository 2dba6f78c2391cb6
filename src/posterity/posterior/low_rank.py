"""A normal whose covariance is diagonal plus low rank: theta = mean + std z + U x, z ~ N(0, I), x ~ N(0, I_r)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.posterior.diagonal import Diagonal
from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import Posterior
from posterity.random import Random
from posterity.tree import Tree, first, pick

__all__ = ["LowRankPlusDiagonal"]


class LowRankPlusDiagonal(Posterior):
    """A normal with covariance diag(std^2) + U U^T over its tensors, flattened and joined.

    Args:
        means: every tensor, the changed buffers among them.
        stds: of the diagonal part of those that vary, shaped like their means.
        factors: [*shape, r] the rows of U that belong to a tensor; a tensor that has none varies independently.

    Raises:
        ValueError: no factors, several ranks, or a factor without a std.
    """

    kind: ClassVar[str] = "low-rank"

    def __init__(self, means: Tree, stds: Tree, factors: Tree) -> None:
        if not factors.keys() <= stds.keys() or len({factor.shape[-1] for factor in factors.values()}) != 1:
            raise ValueError("factors need one rank, and a std for each of their tensors")
        self.means, self.stds = means, stds
        # As stored ones come back: the layout of a matrix moves the last bit of its products.
        self.factors = {name: factor.contiguous() for name, factor in factors.items()}

    @property
    def rank(self) -> int:
        return first(self.factors).shape[-1]

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i, draw in enumerate(Diagonal(self.means, self.stds).draws(n, random)):
            shared = random.fold("low rank").fold(i).normal((self.rank,), like=first(self.factors))
            for name, factor in self.factors.items():
                draw[name].add_(factor @ shared)
            yield draw

    def mean(self) -> Tree:
        return self.means

    def moments(self) -> dict[str, Moment]:
        return {
            name: Normal(mean, self._std(name)) if name in self.stds else Deterministic(mean)
            for name, mean in self.means.items()
        }

    def _std(self, name: str) -> Tensor:
        if name not in self.factors:
            return self.stds[name]
        return torch.hypot(self.stds[name], torch.linalg.vector_norm(self.factors[name], dim=-1))

    def tensors(self) -> Tree:
        parts = {"mean": self.means, "std": self.stds, "factor": self.factors}
        return {f"{part}/{name}": leaf for part, tree in parts.items() for name, leaf in tree.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> LowRankPlusDiagonal:
        return cls(pick(tensors, "mean/"), pick(tensors, "std/"), pick(tensors, "factor/"))
