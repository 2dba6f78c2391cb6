"""The part of a network that a flow is over, as the matrix A of theta = m + A x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import gaussian_prior, varying
from posterity.inference.last_layer import last_layer
from posterity.problem.problem import NetworkProblem, Problem
from posterity.random import Random
from posterity.tree import Tree, member

__all__ = ["PARTS", "part_spread"]

PARTS = ("last-layer", "subspace")


def part_spread(
    problem: Problem,
    theta: Tree,
    over: str | Sequence[str] | None,
    columns: int,
    init_std: float,
    batch: Any,
    random: Random,
) -> Tree:
    """A by tensors: [members, *shape] stds, or for a subspace [members, *shape, columns], orthonormal times `init_std`.

    Raises:
        CompatibilityError: no such tensor, no last layer, or a subspace of more columns than weights.
    """
    free = varying(problem, theta)
    if over == "subspace":
        return _columns(free, columns, init_std, random.fold("subspace"))
    spread = {}
    for name in _names(problem, theta, free, over, batch):
        precision, _ = gaussian_prior(problem, name)
        std = min(init_std, precision**-0.5 if precision > 0 else math.inf)
        spread[name] = torch.full_like(free[name], std, memory_format=torch.contiguous_format)
    return spread


def _names(problem: Problem, theta: Tree, free: Tree, over: str | Sequence[str] | None, batch: Any) -> list[str]:
    if over is None:
        return list(free)
    if over == "last-layer":
        if not isinstance(problem, NetworkProblem):
            raise CompatibilityError("a bare density has no last layer: pass over=None or names of its tensors")
        one = batch[0] if isinstance(batch, list) else batch
        layer = last_layer(problem, member(theta, 0), problem.read(one))
        return [layer.weight] + ([layer.bias] if layer.bias else [])
    if unknown := [name for name in over if name not in free]:
        raise CompatibilityError(f"over= names {unknown[0]!r}, which q cannot be over: it has {list(free)}")
    if not over:
        raise CompatibilityError("over= names no tensor")
    return [name for name in free if name in over]


def _columns(free: Tree, columns: int, init_std: float, random: Random) -> Tree:
    members, total = len(next(iter(free.values()))), sum(leaf[0].numel() for leaf in free.values())
    if columns > total:
        raise CompatibilityError(f"a subspace of {columns} dimensions does not fit {total} weights: lower subspace_dim")
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in free}
    for k in range(members):
        rows = [random.fold(n).fold(k).normal((leaf[k].numel(), columns), like=leaf) for n, leaf in free.items()]
        basis = torch.linalg.qr(torch.cat(rows)).Q.mul_(init_std)
        for (name, leaf), part in zip(free.items(), basis.split([len(row) for row in rows])):
            parts[name].append(part.reshape(*leaf.shape[1:], columns))
    return {name: torch.stack(part) for name, part in parts.items()}
