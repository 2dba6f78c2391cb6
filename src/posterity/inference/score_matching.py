"""What the families of score-based variational inference share.

    q_{t+1} = argmin over q of  E[ alpha_t |grad log q - grad log q_t|^2 + |grad log q - s(theta)|^2 ],    theta ~ q_t

    s(theta) = grad log p(theta | data) = grad log p(theta) - w N g,    g = grad of the mean NLL of a batch

with alpha_t rising linearly to a constant. q_t is frozen: no gradient passes through a draw, there is no second derivative
by theta, and a noisy s adds a constant to the objective and nothing to its expected gradient. At q = q_t the first term has
no gradient: it acts only where q_t is older than q. Kim (2026), arXiv 2602.05873.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.inference.algorithm import Start, each_start, gaussian_prior, varying
from posterity.problem.priors import SMALLEST
from posterity.problem.problem import Info, Problem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import BUFFER, Tree, split, weights

__all__ = [
    "alpha_at",
    "check_positive",
    "check_proximal",
    "joined",
    "joined_info",
    "noise_limit",
    "normal_rows",
    "put_back_",
    "refresh_",
    "score_rows",
    "start_stds",
    "varied",
]

FLOOR = 1e-4  # of a default rate


def check_positive(**values: float) -> None:
    """Raise ValueError for a hyperparameter that is not finite and > 0, or too small for its powers in float32."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be finite and > 0, got {value}")
        if value < SMALLEST:
            raise ValueError(f"{name} must be at least {SMALLEST}, got {value}: float32 loses its powers")


def check_proximal(alpha: float, warmup: float, lag: int, inner_steps: int) -> None:
    """Raise ValueError for a setting of the proximal term out of range."""
    if not (0.0 <= alpha <= 1.0 and 0.0 <= warmup <= 1.0):
        raise ValueError(f"alpha and alpha_warmup must lie in [0, 1], got {alpha} and {warmup}")
    if lag < 1 or inner_steps < 1:
        raise ValueError(f"lag and inner_steps must be at least 1, got {lag} and {inner_steps}")


def alpha_at(alpha: float, warmup: float, step: int, steps: int) -> float:
    """The proximal weight: linear from 0 to `alpha` over the first `warmup` share of the steps.

    >>> [alpha_at(0.8, 0.5, step, 8) for step in (0, 2, 4, 7)]
    [0.0, 0.4, 0.8, 0.8]
    """
    return alpha if step >= warmup * steps else alpha * step / (warmup * steps)


def refresh_(old: Tree, now: Tree, lag: int, step: int) -> None:
    """Write q over the q_t that is held (empty where none is), every `lag` steps."""
    if step % lag == 0:
        for name, leaf in old.items():
            leaf.copy_(now[name])


def noise_limit(problem: Problem, rows: int, most: float) -> float:
    """The largest step size that mini-batch noise allows: 2 B / (w N), in [1e-4, most].

    The scores of a batch have a variance of about w N / B in units of the posterior's, and a whitened step of size h leaves
    h w N / (2 B) of it in the mean.
    """
    return min(max(2.0 * rows / (problem.data_weight * problem.data_size), FLOOR), most)


def start_stds(
    problem: Problem, start: Start, mean: Tree, init_std: float, snapshot_scale: float = 1.0
) -> dict[str, Tensor]:
    """[members, ...] stds at the start of the leaves that vary, from a snapshot's second moment where there is one.

        snapshot:    std = snapshot_scale / sqrt(w N B nu + 1 / p^2), at most 0.1 p     nu = E[g^2] of batches of B rows
        else:        std = init_std, at most p                                          p = the prior's std

    Under a flat prior `init_std` is the most. B nu is about the mean squared gradient of one row, the Fisher information.
    """
    size = problem.data_weight * problem.data_size
    members = next(iter(mean.values())).shape[0]
    stds = {}
    for name, leaf in varying(problem, mean).items():
        precision, _ = gaussian_prior(problem, name)
        prior_std = precision**-0.5 if precision > 0 else math.inf
        stds[name] = torch.full_like(leaf, min(init_std, prior_std), memory_format=torch.contiguous_format)
        for k, one in enumerate(each_start(start, members)):
            if isinstance(one, Snapshot) and name in one.second:
                most = min(0.1 * prior_std, init_std if precision == 0 else math.inf)
                curvature = one.fisher(name, size, precision).to(leaf)
                stds[name][k].copy_(curvature.rsqrt_().mul_(snapshot_scale).clamp_(max=most))
    return stds


# --- families that join the tensors: rows of draws ---------------------------------------------------------------------


def varied(mean: Tree, idle: Tree) -> list[str]:
    """The names of the weights that q varies over, in order: all but those that no forward reaches."""
    return [name for name in weights(mean) if name not in idle]


def joined(tree: Mapping[str, Tensor], names: Sequence[str], k: int) -> Tensor:
    """[d] the named tensors of member k, flattened, one after the other."""
    return torch.cat([tree[name][k].reshape(-1) for name in names])


def put_back_(tree: Mapping[str, Tensor], names: Sequence[str], k: int, flat: Tensor) -> None:
    """Write [d] over the named tensors of member k, as `joined` reads them."""
    for name, part in split(flat, tree, names).items():
        tree[name][k].copy_(part)


def normal_rows(tree: Mapping[str, Tensor], names: Sequence[str], draws: int, random: Random, k: int, t: int) -> Tensor:
    """[draws, d] standard normal, each tensor's from a stream of its own."""
    noise = random.fold("noise")
    return torch.cat(
        [noise.fold(n).fold(k).fold(t).normal((draws, tree[n][k].numel()), like=tree[n]) for n in names], dim=1
    )


def drawn(problem: Problem, draws: int) -> int:
    """How many draws a step has, of which every rank that draws its own takes `draws`."""
    return draws * problem.drawing.size


def score_rows(
    problem: Problem, mean: Tree, names: Sequence[str], rows: Tensor, batch: Any, random: Random, k: int, t: int
) -> tuple[Tensor, Info]:
    """[draws, d] -s(theta) / (w N) of member k at the given rows, all on one batch; Info of the one member.

    The member's step is finite where all of its draws are, and its buffers are those after the first. Ranks with draws of
    their own take their share of the rows, and hear of those of the others.
    """
    mine = problem.drawing.share(len(rows))
    rows = rows[mine.start : mine.stop]
    draws, share = len(rows), 1.0 / (problem.data_weight * problem.data_size)
    buffers = {n: leaf[k].expand(draws, *leaf.shape[1:]).clone() for n, leaf in mean.items() if n.startswith(BUFFER)}
    idle = {
        n: leaf[k].expand(draws, *leaf.shape[1:]) for n, leaf in mean.items() if n not in names and n not in buffers
    }
    thetas = split(rows, mean, names)
    steps = random.fold("step")
    streams = [(steps if i == 0 else steps.fold(f"draw {i}")).fold(k).fold(t) for i in mine]
    _, gradient, info = problem.nlls({**thetas, **idle, **buffers}, [batch] * draws, streams)
    for name in names:
        precision, center = gaussian_prior(problem, name)
        if precision > 0:
            gradient[name].add_(thetas[name] - center, alpha=precision * share)
    flat = problem.drawing.joined(torch.cat([gradient[name].reshape(draws, -1) for name in names], dim=1))
    kept = {name: value[:1] for name, value in info.buffers.items()}
    whole = info.finite.all()[None] & torch.isfinite(flat).all().to(info.finite.device)
    return flat, Info(info.nll.mean()[None], info.gradient_norm.mean()[None], whole, kept)


def joined_info(infos: Sequence[Info]) -> Info:
    """Those of the members as one."""
    return Info(
        torch.cat([info.nll for info in infos]),
        torch.cat([info.gradient_norm for info in infos]),
        torch.cat([info.finite for info in infos]),
        {name: torch.cat([info.buffers[name] for info in infos]) for name in infos[0].buffers},
    )
