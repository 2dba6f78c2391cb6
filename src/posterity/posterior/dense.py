"""A correlated normal over a few tensors, the last layer's as a rule; everything else is a point.

Dense        vec(theta) = mean + F z,                z ~ N(0, I_P),   F F^T = covariance
Kronecker    [W | b]    = M + U (S * Z) V^T,         Z ~ N(0, I),     U, V orthogonal, S the stds in their basis
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.posterior.layer_moments import DenseLayer, KroneckerLayer, linear_names
from posterity.posterior.moments import Correlated, Deterministic, Moment, Normal
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.random import Random
from posterity.tree import Tree, pick

__all__ = ["Dense", "Kronecker"]


class Dense(Posterior):
    """A normal with a full covariance over the named tensors, flattened and joined in this order.

    Args:
        point: every tensor; those named are the means.
        names: the tensors that vary.
        factor: [P, P] any square root of the covariance, F F^T.
    """

    kind: ClassVar[str] = "dense"

    def __init__(self, point: Tree, names: tuple[str, ...], factor: Tensor) -> None:
        # As a stored one comes back: the layout of a matrix moves the last bit of its products.
        self.point, self.names, self.factor = point, names, factor.contiguous()

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i in range(DRAWS if n is None else n):
            z = random.fold(i).normal((self.factor.shape[1],), like=self.factor)
            yield {**self.point, **self._split(self.factor @ z, add=True)}

    def _split(self, flat: Tensor, add: bool) -> Tree:
        sizes = [self.point[name].numel() for name in self.names]
        parts = {k: part.view_as(self.point[k]) for k, part in zip(self.names, flat.split(sizes))}
        return {k: (self.point[k] + part).to(self.point[k]) for k, part in parts.items()} if add else parts

    def mean(self) -> Tree:
        return self.point

    def moments(self) -> dict[str, Moment]:
        stds, layer = self._split(torch.linalg.vector_norm(self.factor, dim=1), add=False), self.layer
        return _moments(self.point, stds, layer)

    @property
    def layer(self) -> DenseLayer | None:
        """Weight and bias as those of a Linear, where they are all that varies."""
        own = linear_names({name: self.point[name].shape for name in self.names})
        if not own:
            return None
        rows = dict(zip(self.names, self.factor.split([self.point[name].numel() for name in self.names])))
        return DenseLayer(*(rows[name].unflatten(0, self.point[name].shape) for name in own))

    def tensors(self) -> Tree:
        return {**{f"point/{k}": v for k, v in self.point.items()}, "factor": self.factor}

    def meta(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Dense:
        return cls(pick(tensors, "point/"), tuple(meta["names"]), tensors["factor"])


class Kronecker(Posterior):
    """A matrix normal in the eigenbasis of its two factors, over one Linear's weight and, if it has one, bias.

    Args:
        point: every tensor; those named are the means.
        names: (weight,) or (weight, bias).
        rows, columns: [k, k] and [h, h] (h counts the bias) orthogonal eigenvectors.
        stds: [k, h] standard deviations in that basis.
    """

    kind: ClassVar[str] = "kronecker"

    def __init__(self, point: Tree, names: tuple[str, ...], rows: Tensor, columns: Tensor, stds: Tensor) -> None:
        self.point, self.names = point, names
        self.rows, self.columns, self.stds = (matrix.contiguous() for matrix in (rows, columns, stds))

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i in range(DRAWS if n is None else n):
            z = random.fold(i).normal(tuple(self.stds.shape), like=self.stds)
            shifts = self._split(self.rows @ (self.stds * z) @ self.columns.T)
            yield {**self.point, **{k: (self.point[k] + shift).to(self.point[k]) for k, shift in shifts.items()}}

    def _split(self, matrix: Tensor) -> Tree:
        width = self.point[self.names[0]].shape[1]
        return {
            k: part.reshape(self.point[k].shape) for k, part in zip(self.names, (matrix[:, :width], matrix[:, width:]))
        }

    def mean(self) -> Tree:
        return self.point

    def moments(self) -> dict[str, Moment]:
        stds = self._split((self.rows.square() @ self.stds.square() @ self.columns.T.square()).sqrt())
        return _moments(self.point, stds, self.layer)

    @property
    def layer(self) -> KroneckerLayer:
        """Weight and bias as those of a Linear."""
        return KroneckerLayer(self.rows, self.columns, self.stds)

    def tensors(self) -> Tree:
        parts = {"rows": self.rows, "columns": self.columns, "stds": self.stds}
        return {**{f"point/{k}": v for k, v in self.point.items()}, **parts}

    def meta(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Kronecker:
        point = pick(tensors, "point/")
        return cls(point, tuple(meta["names"]), tensors["rows"], tensors["columns"], tensors["stds"])


def _moments(point: Tree, stds: Tree, layer: DenseLayer | KroneckerLayer | None) -> dict[str, Moment]:
    found: dict[str, Moment] = {name: Deterministic(leaf) for name, leaf in point.items()}
    for name, std in stds.items():
        found[name] = Normal(point[name], std) if layer is None else Correlated(point[name], std, layer)
    return found
