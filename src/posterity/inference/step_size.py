"""How far a chain may step: the curvature's limit, and the gradient noise that a step lets in.

    lambda = the largest |eigenvalue| of M^-1/2 (grad^2 U) M^-1/2, by power iteration on Hessian-vector products
    V      = (w N)^2 max(nu - mu^2, 0) B_snapshot / B, the variance of the gradient of U on batches of B rows

Both come for nothing or nearly so: V from Adam's moments of the mean loss at the snapshot, lambda from 20 products at the
start, on the first batch. Where U is not convex it bounds both signs of curvature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.inference.algorithm import Start, gaussian_prior, optimizer_statistics
from posterity.problem.batches import Batch
from posterity.problem.problem import Problem, batch_rows
from posterity.random import Random
from posterity.tree import Tree, member, rows, split

__all__ = ["gradient_noise", "largest_curvature"]


def gradient_noise(problem: Problem, start: Start, theta: Tree, names: Sequence[str]) -> Tensor:
    """[members, d] B V: the variance of grad U at the start times the rows of a batch.

    Raises:
        CompatibilityError: a start without the optimizer's statistics.
    """
    scale = (problem.data_weight * problem.data_size) ** 2
    each = []
    for one in optimizer_statistics(start, theta[names[0]].shape[0], "noise_correction=True"):
        spread = {name: (one.second[name] - one.first[name].square()).clamp(min=0.0)[None] for name in names}
        each.append(rows(spread, names) * (scale * float(one.batch_size)))
    return torch.cat(each).to(theta[names[0]])


def largest_curvature(
    problem: Problem, theta: Tree, names: Sequence[str], mass: Tensor, batch: Any, random: Random, products: int = 20
) -> float:
    """lambda of one chain at `theta` under [d] masses, on one batch; 0 where U is flat, infinity where it overflows."""
    root = mass.sqrt()
    prior = torch.cat([root.new_full((theta[name].numel(),), gaussian_prior(problem, name)[0]) for name in names])
    scale = problem.data_weight * problem.data_size
    like = {name: theta[name].unsqueeze(0) for name in names}
    still = {name: torch.zeros_like(leaf) for name, leaf in theta.items()}
    v = random.fold("power").normal(tuple(root.shape), like=root)
    norm = v.norm()
    for _ in range(products):
        w = v.div_(norm).div(root)
        along = still | member(split(w.unsqueeze(0), like, names), 0)
        hessian = _hvp(problem, theta, batch, random, along)
        v = rows({name: hessian[name].unsqueeze(0) for name in names}, names)[0].mul_(scale)
        v.addcmul_(prior, w).div_(root)
        norm = v.norm()
        if not (math.isfinite(float(norm)) and float(norm) > 0.0):
            break
    return float(norm) if math.isfinite(float(norm)) else math.inf


def _hvp(problem: Problem, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
    """Of the mean over the parts of an accumulated batch."""
    if not isinstance(batch, list):
        return problem.hvp(theta, batch, random, vector)
    total: Tree = {}
    for part in batch:
        assert isinstance(part, Batch)
        share = part.rows / batch_rows(batch)
        for name, leaf in problem.hvp(theta, part, random, vector).items():
            total[name] = total[name].add_(leaf, alpha=share) if name in total else leaf * share
    return total
