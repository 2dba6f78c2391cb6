"""Adam's update, shared by the algorithms that use it.

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2,    x <- x - h m^ / (sqrt(v^) + eps)

with the bias-corrected m^ = m / (1 - b1^t), v^ = v / (1 - b2^t). Kingma and Ba (2015), algorithm 1. A whole update is one
pass of torch's fused kernel: it reads four trees and writes three, with no temporary and no call per tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from posterity.tree import Tree, first

__all__ = ["Adam"]


class Adam(NamedTuple):
    """The scalars of one step; `t` counts from 1."""

    step_size: float
    t: int
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def first_correction(self) -> float:
        return 1.0 - self.beta1**self.t

    @property
    def second_correction(self) -> float:
        return 1.0 - self.beta2**self.t

    def moments_(self, gradient: Tensor, m: Tensor, v: Tensor) -> None:
        """Update both moments of one tensor, or of a chunk of it, in place."""
        m.lerp_(gradient, 1.0 - self.beta1)
        v.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)

    def step_(self, gradient: Tensor, m: Tensor, v: Tensor, out: Tensor) -> Tensor:
        """What to subtract from one tensor, or from a chunk of it, written to `out`; both moments are updated in place."""
        self.moments_(gradient, m, v)
        root = torch.mul(v, 1.0 / self.second_correction, out=out).sqrt_().add_(self.eps)
        return torch.div(m, root, out=out).mul_(self.step_size / self.first_correction)

    def update_(self, x: Tree, gradient: Tree, m: Tree, v: Tree, alive: Tensor | None = None) -> None:
        """Update the leaves of `x` that have moments, and those, in place; all leaves contiguous.

        With `alive` ([K] bool) the leading axis is K members, and dead members are left as they are.
        """
        columns = [[tree[name] for name in m] for tree in (x, gradient, m, v)]
        if alive is not None:
            rows = alive.nonzero().flatten().tolist()
            columns = [[leaf[k] for leaf in column for k in rows] for column in columns]
        values, gradients, firsts, seconds = columns
        if not values:
            return
        before = torch.full((len(values),), self.t - 1.0, device=first(m).device)  # the kernel counts one on
        adam(
            values,
            gradients,
            firsts,
            seconds,
            max_exp_avg_sqs=[],
            state_steps=list(before.unbind()),
            fused=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=self.step_size,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )
