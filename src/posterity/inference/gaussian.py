"""What the variational methods over diagonal normals share: noisy weights, idle weights, the posterior."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posterity.inference.algorithm import gaussian_prior, varying
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.mixture import mixture
from posterity.posterior.posterior import Posterior
from posterity.problem.problem import Problem
from posterity.random import Random
from posterity.tree import CHUNK, Tree, chunks, clone, empty_like, member, weights

__all__ = ["diagonal_posterior", "noisy", "prior_where_idle", "typical_std"]


def noisy(mean: Tree, spread: Tree, to_std: Callable[..., Tensor], random: Random, step: int) -> Tree:
    """theta = mean + std z for the leaves of `spread`, where std = to_std(spread, out=buffer); the others are the mean.

    The noise of a tensor has the address (purpose, name, member, step), so layers and members do not share streams.
    """
    thetas = empty_like(spread)
    noise = random.fold("noise")
    for name, theta in thetas.items():
        scratch = torch.empty(min(theta[0].numel(), CHUNK), dtype=theta.dtype, device=theta.device)
        stream = noise.fold(name)
        for k in range(theta.shape[0]):
            generator = stream.fold(k).fold(step).generator(theta.device)
            for out, m, s in chunks(theta[k], mean[name][k], spread[name][k]):
                std = to_std(s, out=scratch[: s.numel()])
                torch.addcmul(m, out.normal_(generator=generator), std, out=out)
    return {**mean, **thetas}


def prior_where_idle(problem: Problem, mean: Tree, init_std: float) -> tuple[Tree, Tree]:
    """Means and stds with the prior in place of weights that no forward reaches; the stds hold those only."""
    mean, stds = dict(mean), {}
    used = varying(problem, mean)
    for name, leaf in weights(mean).items():
        if name not in used:
            precision, center = gaussian_prior(problem, name)
            stds[name] = torch.full_like(leaf, precision**-0.5 if precision > 0 else init_std)
            mean[name] = torch.zeros_like(leaf) + center if precision > 0 else leaf
    return mean, stds


def diagonal_posterior(mean: Tree, stds: Tree, members: int) -> Posterior:
    """One diagonal normal, or an equal mixture of one per member."""
    return mixture([Diagonal(clone(member(mean, k)), clone(member(stds, k))) for k in range(members)])


def typical_std(stds: Tree) -> float:
    """The geometric mean of all stds."""
    total = sum(float(std.double().log().sum()) for std in stds.values())
    return float(torch.tensor(total / sum(std.numel() for std in stds.values())).exp())
