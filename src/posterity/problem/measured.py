"""What batches say of weights on one rank, and on all of them together.

nll = sum over ranks of rows_r nll_r / sum of rows_r        and so its gradient: that of one process with all rows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.group import ALONE, Group
from posterity.problem.info import Info
from posterity.tree import BUFFER, CHUNK, Tree, clone

__all__ = ["Measured", "check_differentiable", "in_one", "joined", "norms", "over_ranks_", "reached_late", "settled"]


class Measured(NamedTuple):
    """For K members, each on its own rows."""

    nll: Tensor  # [K] mean negative log-likelihood
    gradient: Tree  # [K, ...]
    rows: list[int]  # per member, of this rank


def in_one(gradients: Iterable[Tree], members: int) -> Tree:
    """[members, ...] the members' trees as they come, in one allocation; a view of a single one."""
    found: Tree = {}
    for k, gradient in enumerate(gradients):
        if members == 1:
            return {name: leaf.unsqueeze(0) for name, leaf in gradient.items()}
        for name, leaf in gradient.items():
            found.setdefault(name, leaf.new_empty((members, *leaf.shape)))[k].copy_(leaf)
    return found


def joined(each: Iterable[Measured], members: int) -> Measured:
    """Single members as they come, together."""
    nlls: list[Tensor] = []
    rows: list[int] = []

    def gradients() -> Iterable[Tree]:
        for one in each:
            nlls.append(one.nll)
            rows.extend(one.rows)
            yield {name: leaf[0] for name, leaf in one.gradient.items()}

    gradient = in_one(gradients(), members)
    return Measured(torch.cat(nlls), gradient, rows)


@torch.no_grad()
def settled(
    found: Measured, buffers: Tree, group: Group, clip: float | None, apart: bool = False, cut: Group = ALONE
) -> tuple[Tensor, Tree, Info]:
    """What all ranks found as one, its gradient no longer than `clip`; gradients are written over.

    `buffers` [K, ...] are those after the forward: what ranks have of them is averaged, as their rows are. Where the ranks
    have draws `apart`, gradients stay their own, and are such that their mean over the ranks is that over the rows. Each
    rank of `cut` has its rows of every gradient.
    """
    nll, gradient, rows = found
    norm = norms(list(gradient.values())) if apart or group.size == 1 else None
    if group.size > 1:
        buffers = clone(buffers)
        counts = torch.tensor(rows, dtype=torch.float64, device=nll.device)
        over_ranks_(group, list(gradient.values()), counts, apart)
        group.mean_([nll, *([] if norm is None else [norm]), *buffers.values()], counts)
    norm = norms(list(gradient.values())) if norm is None else norm
    if cut.size > 1:
        norm = cut.sum_(norm.square()).sqrt()
    if clip is not None and bool((over := norm > clip).any()):
        factor = torch.where(over, clip / norm, 1.0)
        for leaf in gradient.values():
            leaf.mul_(factor.to(leaf.dtype).reshape(-1, *[1] * (leaf.dim() - 1)))
    told = nll.float()
    kept = {BUFFER + name: value for name, value in buffers.items()}
    return told, gradient, Info(told, norm, torch.isfinite(nll + norm), kept)


def check_differentiable(loss: Tensor) -> None:
    """Raise CompatibilityError where no trainable weight has a part in the loss."""
    if not loss.requires_grad:
        raise CompatibilityError("the loss does not depend on any trainable weight: is the forward under no_grad?")


def reached_late(name: str) -> CompatibilityError:
    """A weight has a gradient that was idle when the problem was probed."""
    return CompatibilityError(
        f"{name!r} was taken for unused: none of the first batches reached it, and this one does. Probe with batches that "
        "reach every weight: larger ones, or shuffled"
    )


def over_ranks_(group: Group, tensors: Sequence[Tensor], rows: Tensor, apart: bool) -> None:
    """Average [K, ...] over the ranks as their `rows` [K] are many; or, `apart`, weight one's own for a plain mean."""
    if not apart:
        group.mean_(tensors, rows)
        return
    weight = rows * group.size / group.sum_(rows.clone())
    for tensor in tensors:
        tensor.mul_(weight.to(tensor).reshape(-1, *[1] * (tensor.dim() - 1)))


def norms(gradient: list[Tensor]) -> Tensor:
    """[K] Euclidean norms."""
    rows = [leaf.reshape(len(leaf), -1) for leaf in gradient]
    if sum(leaf.numel() for leaf in gradient) <= CHUNK and len({leaf.dtype for leaf in gradient}) == 1:
        return torch.linalg.vector_norm(torch.cat(rows, 1), dim=1)  # two calls instead of one for each
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]), dim=0)
