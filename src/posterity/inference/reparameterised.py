"""The data's part of the gradient of the evidence lower bound, by reparameterisation: theta = m + s z, s = exp(rho).

shared       by m: g,               by rho: s z g                        g at theta, one draw a step for all rows
antithetic   by m: (g + g') / 2,    by rho: s z (g - g') / 2             g' at m - s z: twice the cost, less noise
local        by the means and stds of `LocallyNoisy` factors, with noise per row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from posterity.inference.adam_normals import joined_draws
from posterity.inference.algorithm import gradients
from posterity.problem.batches import Batch
from posterity.problem.carrier import is_constant, stem
from posterity.problem.factored_problem import FactoredProblem
from posterity.problem.problem import Info
from posterity.random import Random
from posterity.tree import Tree, tree_map, weights

__all__ = ["NOISES", "Noise", "data_gradients"]

Noise = Literal["shared", "antithetic", "local"]
NOISES: tuple[Noise, ...] = ("shared", "antithetic", "local")


def data_gradients(
    noise: Noise,
    problem: FactoredProblem,
    mean: Tree,
    log_std: Tree,
    thetas: Tree,
    batches: Sequence[Batch],
    random: Random,
    t: int,
) -> tuple[Tree, Tree, Info]:
    """Of the mean NLL by every mean and by the log stds, [members, ...], each in memory of its own.

    Args:
        mean, log_std: [members, ...]; `log_std` of what varies.
        thetas: a draw of them.
    """
    if noise == "local":
        return _local(problem, mean, log_std, thetas, batches, random, t)
    _, gradient, info = gradients(problem, thetas, batches, random, t)
    moved = {name: thetas[name] - mean[name] for name in log_std}
    if noise == "shared":
        return gradient, {name: move.mul_(gradient[name]) for name, move in moved.items()}, info
    mirrored = {**thetas, **{name: mean[name] - move for name, move in moved.items()}}
    _, other, other_info = gradients(problem, mirrored, batches, random, t)
    by_log_std = {name: move.mul_(gradient[name] - other[name]).mul_(0.5) for name, move in moved.items()}
    return tree_map(lambda g, o: g.add_(o).mul_(0.5), gradient, other), by_log_std, joined_draws([info, other_info])


def _local(
    problem: FactoredProblem, mean: Tree, log_std: Tree, thetas: Tree, batches: Sequence[Batch], random: Random, t: int
) -> tuple[Tree, Tree, Info]:
    stds = {name: rho.exp() for name, rho in log_std.items() if stem(name) != name}
    given = {name: leaf for name, leaf in thetas.items() if name not in stds}
    for name, std in stds.items():
        given[f"{name}_mean"], given[f"{name}_std"] = mean[name], std
    _, gradient, info = gradients(problem, given, batches, random, t)
    by_log_std = {
        name: gradient[f"{name}_std"].mul_(stds[name])
        if name in stds
        else (thetas[name] - mean[name]).mul_(gradient[name])
        for name in log_std
    }
    by_mean = {
        name: gradient[f"{name}_mean" if name in stds else name] for name in weights(thetas) if not is_constant(name)
    }
    return by_mean, by_log_std, info
