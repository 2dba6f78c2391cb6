"""What one step says about itself."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from posterity.tree import Tree

__all__ = ["Info"]


class Info(NamedTuple):
    """What a person wants to watch of one step, per member."""

    nll: Tensor  # [members] mean negative log-likelihood of the batch, nats per row
    gradient_norm: Tensor  # [members] before clipping
    finite: Tensor  # [members] bool: the loss and its gradient are finite
    buffers: Tree  # [members, ...] new values of the buffers that the forward changed
    extra: dict[str, Tensor] = {}  # an algorithm's own numbers, () or [members]  # noqa: RUF012
    lost: Tensor | None = None  # [members] bool: given up by the algorithm, and no longer waited for
