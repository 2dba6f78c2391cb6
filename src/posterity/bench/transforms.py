"""Maps between R^n and constrained numbers, with the log-determinant that a density picks up on the way.

    log p_u(u) = log p_x(x(u)) + log |det dx / du|

`forward` takes [..., size] and gives [..., width] with [...] the log-determinant; `inverse` goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posterity.tree import Tree

__all__ = [
    "Bounded",
    "Ordered",
    "Positive",
    "PositiveOrdered",
    "Real",
    "Simplex",
    "Stick",
    "Transform",
    "forward",
    "inverse",
]


class Transform(Protocol):
    """One named group of numbers."""

    @property
    def size(self) -> int:
        """Numbers without constraints."""

    @property
    def width(self) -> int:
        """Numbers under the constraint."""

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The constrained values and log |det dx / du|."""

    def inverse(self, x: Tensor) -> Tensor:
        """The unconstrained values."""


@dataclass(frozen=True)
class Real:
    """Any numbers."""

    size: int = 1

    @property
    def width(self) -> int:
        return self.size

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return u, u.new_zeros(u.shape[:-1])

    def inverse(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Positive(Real):
    """x = exp(u) > 0."""

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.exp(), u.sum(-1)

    def inverse(self, x: Tensor) -> Tensor:
        return x.log()


@dataclass(frozen=True)
class Bounded(Real):
    """x = low + (high - low) / (1 + exp(-u)), strictly between low and high."""

    low: float = 0.0
    high: float = 1.0

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        span = self.high - self.low
        slopes = span * (logsigmoid(u) + logsigmoid(-u)).exp()
        return self.low + span * u.sigmoid(), slopes.log().sum(-1)

    def inverse(self, x: Tensor) -> Tensor:
        return (x - self.low).log() - (self.high - x).log()


@dataclass(frozen=True)
class Ordered(Real):
    """x_1 = u_1, x_k = x_(k-1) + exp(u_k): increasing."""

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([u[..., :1], u[..., 1:].exp()], -1).cumsum(-1), u[..., 1:].sum(-1)

    def inverse(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x.diff(dim=-1).log()], -1)


@dataclass(frozen=True)
class PositiveOrdered(Real):
    """x_1 = exp(u_1), x_k = x_(k-1) + exp(u_k): positive and increasing."""

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return u.exp().cumsum(-1), u.sum(-1)

    def inverse(self, x: Tensor) -> Tensor:
        return x.diff(dim=-1, prepend=torch.zeros_like(x[..., :1])).log()


@dataclass(frozen=True)
class Stick(Real):
    """n positive numbers with a sum below one, broken off a stick: x_k = z_k prod over j < k of (1 - z_j).

    z_k = 1 / (1 + exp(-u_k) (n + 1 - k)), so that u = 0 gives n + 1 equal pieces.
    """

    def pieces(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """[..., n + 1] logs of the pieces, the remainder last, and log |det| by the first n."""
        shifted = u - self._shift(u)
        taken, left = logsigmoid(shifted), logsigmoid(-shifted).cumsum(-1)
        before = torch.cat([torch.zeros_like(left[..., :1]), left[..., :-1]], -1)
        logs = torch.cat([taken + before, left[..., -1:]], -1)
        return logs, (taken + left).sum(-1)  # dx_k / du_k = z_k (1 - z_k) prod over j < k of (1 - z_j)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        logs, log_det = self.pieces(u)
        return logs[..., :-1].exp(), log_det

    def inverse(self, x: Tensor) -> Tensor:
        left = 1 - x.cumsum(-1)
        return x.log() - left.log() + self._shift(x)

    def _shift(self, like: Tensor) -> Tensor:
        return torch.arange(self.size, 0, -1, dtype=like.dtype, device=like.device).log()


@dataclass(frozen=True)
class Simplex:
    """`width` positive numbers with sum one; the density is by the first width - 1 of them."""

    width: int

    @property
    def size(self) -> int:
        return self.width - 1

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        logs, log_det = Stick(self.size).pieces(u)
        return logs.exp(), log_det

    def inverse(self, x: Tensor) -> Tensor:
        return Stick(self.size).inverse(x[..., :-1])


def forward(layout: Mapping[str, Transform], u: Tensor) -> tuple[Tree, Tensor]:
    """[..., sum of sizes] -> the named constrained values, each [..., width], and [...] log |det|."""
    parts = u.split([transform.size for transform in layout.values()], -1)
    both = {name: transform.forward(part) for (name, transform), part in zip(layout.items(), parts)}
    log_det = torch.stack([log_det for _, log_det in both.values()]).sum(0)
    return {name: value for name, (value, _) in both.items()}, log_det


def inverse(layout: Mapping[str, Transform], values: Tree) -> Tensor:
    """The named constrained values -> [..., sum of sizes]."""
    return torch.cat([transform.inverse(values[name]) for name, transform in layout.items()], -1)
