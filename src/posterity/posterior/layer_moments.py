"""Correlated normal weights of one Linear, y = W x + b: the covariance of its outputs, exact for every x.

Cov(y) = G G^T,   G = [F_W x + F_b]      Dense:     vec [W | b] = mean + F z,                z ~ N(0, I_P)
Cov(y) = U diag(d) U^T,  d_i = sum_j S_ij^2 (V^T [x, 1])_j^2      Kronecker: [W | b] = mean + U (S * Z) V^T
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["DenseLayer", "KroneckerLayer", "Layer", "linear_names"]

MEMORY = 2**26  # bytes of G that are held at once


class DenseLayer(NamedTuple):
    """Any covariance, by a square root of it."""

    weight: Tensor  # [k, n, P] the rows of F that belong to W
    bias: Tensor | None = None  # [k, P] those of b

    @property
    def noise(self) -> torch.Size:
        """The shape of z."""
        return self.weight.shape[2:]

    def shift(self, z: Tensor, n: int) -> tuple[Tensor, Tensor | None]:
        """[k, n] and [k] of W and b beyond their means, at z."""
        z = z.to(self.weight.dtype)
        return self.weight @ z, None if self.bias is None else self.bias @ z

    def variance(self, x: Tensor, biased: bool) -> Tensor:
        """[..., k] of each output, of x [..., n]; without `biased` of W x alone."""
        shifts = self.bias if biased and self.bias is not None else torch.zeros_like(self.weight[:, 0])
        return torch.stack([(x @ root + shift).square().sum(-1) for root, shift in zip(self.weight, shifts)], -1)

    def covariance(self, x: Tensor, biased: bool) -> Tensor:
        """[rows, k, k] of x [rows, n]."""
        if torch.compiler.is_compiling():  # into a graph, which knows no number of rows
            return self._covariance(x, biased)
        k, _, size = self.weight.shape
        parts = x.split(max(1, MEMORY // (4 * k * size)))
        return torch.cat([self._covariance(part, biased) for part in parts])

    def _covariance(self, x: Tensor, biased: bool) -> Tensor:
        g = torch.einsum("rn,knp->rkp", x, self.weight)
        if biased and self.bias is not None:
            g = g + self.bias
        return g @ g.mT


class KroneckerLayer(NamedTuple):
    """A matrix normal in the eigenbasis of its factors."""

    rows: Tensor  # [k, k] U
    columns: Tensor  # [h, h] V; h counts the bias, which is last
    stds: Tensor  # [k, h] S

    @property
    def noise(self) -> torch.Size:
        """The shape of Z."""
        return self.stds.shape

    def shift(self, z: Tensor, n: int) -> tuple[Tensor, Tensor | None]:
        """[k, n] and [k] of W and b beyond their means, at Z."""
        both = self.rows @ (self.stds * z.to(self.stds.dtype)) @ self.columns.mT
        return both[:, :n], both[:, n] if n < both.shape[1] else None

    def variance(self, x: Tensor, biased: bool) -> Tensor:
        """[..., k] of each output, of x [..., n]; without `biased` of W x alone."""
        return self._along(x, biased) @ self.rows.square().mT

    def covariance(self, x: Tensor, biased: bool) -> Tensor:
        """[rows, k, k] of x [rows, n]."""
        return (self.rows * self._along(x, biased).unsqueeze(-2)) @ self.rows.mT

    def _along(self, x: Tensor, biased: bool) -> Tensor:
        n = x.shape[-1]
        inside = x @ self.columns[:n]
        if biased and n < len(self.columns):
            inside = inside + self.columns[n]
        return inside.square() @ self.stds.square().mT


Layer: TypeAlias = DenseLayer | KroneckerLayer


def linear_names(shapes: dict[str, torch.Size]) -> Sequence[str]:
    """The name of the weight, and of the bias if there is one, where these tensors are those of one Linear; else nothing."""
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if len(matrices) != 1 or len(shapes) > 2:
        return ()
    (weight,) = matrices
    stem, _, last = weight.rpartition(".")
    bias = f"{stem}.bias" if stem else "bias"
    others = shapes.keys() - {weight}
    if last != "weight" or not others <= {bias} or any(shapes[name] != shapes[weight][:1] for name in others):
        return ()
    return (weight, *others)
