"""Outputs whose means and covariance are known, row by row."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Joint", "root", "root_by_columns"]


class Joint(NamedTuple):
    """What a network says of some rows.

    Args:
        parts: means of each output that the likelihood reads, [rows, ...].
        cov: [rows, n, n] of all n numbers of a row, those of the first part first.
        single: whether the network returns the one part, not a tuple.
    """

    parts: tuple[Tensor, ...]
    cov: Tensor
    single: bool

    @property
    def mean(self) -> Tensor:
        """[rows, n]"""
        return torch.cat([part.reshape(len(part), -1) for part in self.parts], 1)

    @property
    def var(self) -> Tensor:
        """[rows, n]"""
        return self.cov.diagonal(dim1=1, dim2=2)

    def at(self, factor: Tensor, z: Tensor) -> Any:
        """The outputs at mean + factor z, z [n] of a standard normal, factor the `root` of the covariance."""
        pieces = (factor @ z.to(factor)).split([part[0].numel() for part in self.parts], 1)
        found = tuple(part + piece.reshape(part.shape).to(part) for part, piece in zip(self.parts, pieces))
        return found[0] if self.single else found


def root(cov: Tensor) -> Tensor:
    """[rows, n, n] float64 lower triangular L with L L^T = cov but for 1e-6 of each variance; 0 where there is none."""
    correlation, std = _correlation(cov)
    return torch.linalg.cholesky(correlation) * std[:, :, None]


def root_by_columns(cov: Tensor) -> Tensor:
    """`root` in operations that an exported file knows: a column after the other."""
    correlation, std = _correlation(cov)
    order = torch.arange(cov.shape[-1], device=cov.device)
    found = correlation[:, :, :0]
    for j in range(cov.shape[-1]):
        column = correlation[:, :, j] - (found * found[:, j : j + 1]).sum(-1)
        column = torch.where(order >= j, column, 0.0) / column[:, j : j + 1].sqrt()
        found = torch.cat([found, column.unsqueeze(-1)], -1)
    return found * std[:, :, None]


def _correlation(cov: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, n, n] with something more on its diagonal, and [rows, n] stds, in float64."""
    cov = cov.double()
    std = cov.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt()
    scale = std.clamp_min(1e-150)
    correlation = cov / scale[:, :, None] / scale[:, None, :]
    free = torch.diag_embed(torch.where(std > 0.0, 1e-6, 1.0))  # without a variance there is no correlation
    return correlation + free, std
