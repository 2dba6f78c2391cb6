"""Matrices whose rows and columns are scaled at random: W = Wbar * (s r^T), with s and r normal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.random import Random
from posterity.tree import Tree, pick

__all__ = ["RankOne", "scaled"]


def scaled(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Wbar * (s r^T) of [..., m, *rest] with s [..., m] and r [..., n], n the product of the rest; a new tensor."""
    flat = matrix.reshape(*rows.shape, -1)
    return (flat * rows.unsqueeze(-1)).mul_(columns.unsqueeze(-2)).view(matrix.shape)


class RankOne(Posterior):
    """Independent normals over the scales s and r of each matrix; everything else is a point.

    Args:
        point: every tensor: Wbar of the matrices, weights that do not vary, changed buffers.
        scale_means, scale_stds: "row/<name>" [m] and "column/<name>" [n] of each matrix [m, *rest].
        stds: of tensors that vary by themselves (weights that no forward reaches), shaped like their means in `point`.
    """

    kind: ClassVar[str] = "rank-one"

    def __init__(self, point: Tree, scale_means: Tree, scale_stds: Tree, stds: Tree) -> None:
        self.point, self.scale_means, self.scale_stds, self.stds = point, scale_means, scale_stds, stds
        self._names = list(pick(scale_means, "row/"))

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i in range(DRAWS if n is None else n):
            stream = random.fold(i)
            scales, alone = stream.normals(self.scale_stds), stream.normals(self.stds)
            for key, std in self.scale_stds.items():
                scales[key].mul_(std).add_(self.scale_means[key])
            own = {name: alone[name].mul_(std).add_(self.point[name]) for name, std in self.stds.items()}
            yield {**self.point, **self._scaled(scales), **own}

    def _scaled(self, scales: Tree) -> Tree:
        return {k: scaled(self.point[k], scales[f"row/{k}"], scales[f"column/{k}"]) for k in self._names}

    def mean(self) -> Tree:
        return {**self.point, **self._scaled(self.scale_means)}

    def moments(self) -> dict[str, Moment]:
        """Exact: var W = Wbar^2 (E s^2 E r^2 - (E s E r)^2) for each entry, entries of a row or column being correlated."""
        found: dict[str, Moment] = {}
        for name, mean in self.mean().items():
            if name in self._names:
                found[name] = Normal(mean, self._std(name))
            else:
                found[name] = Normal(mean, self.stds[name]) if name in self.stds else Deterministic(mean)
        return found

    def _std(self, name: str) -> Tensor:
        square = self.point[name].square()
        (row, row_var), (column, column_var) = (
            (self.scale_means[key].square(), self.scale_stds[key].square()) for key in (f"row/{name}", f"column/{name}")
        )
        # E s^2 E r^2 - (E s E r)^2 without the cancellation
        return scaled(square, row_var, column + column_var).add_(scaled(square, row, column_var)).sqrt_()

    def tensors(self) -> Tree:
        parts = {"point": self.point, "mean": self.scale_means, "std": self.scale_stds, "alone": self.stds}
        return {f"{part}/{name}": leaf for part, tree in parts.items() for name, leaf in tree.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> RankOne:
        return cls(*(pick(tensors, f"{part}/") for part in ("point", "mean", "std", "alone")))
