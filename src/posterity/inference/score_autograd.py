"""What the score-based families share whose gradient has no closed form: mixtures and flows.

    loss(q) = sum over draws of c_i |D_i (grad log q - beta s)|^2 + alpha c_i |D_i (grad log q - grad log q_t)|^2

at draws theta_i ~ q_t of weights c_i that sum to one, with D_i the scale of q_t at theta_i (frozen), which makes the loss
free of units. grad log q is taken with its graph, and the loss goes backward to the parameters through it: exact, where a
finite difference is not. beta tempers the target: p^beta is flat at first, and q still finds all of its modes.

q must be smooth in theta: where grad log q jumps (rectifiers, spline knots), the moving jump is not in the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterity.inference.adam import Adam
from posterity.inference.score_matching import drawn, score_rows
from posterity.problem.densities import Density
from posterity.problem.problem import Info, Problem
from posterity.random import Random
from posterity.tree import Tree, split

__all__ = ["Rows", "adam_steps", "beta_at", "check_temper", "clip_", "score_loss", "scored", "slope", "tempered"]

GROUP = 2**26  # numbers of all weights' gradients that are held at once


def check_temper(temper: float | None, beta: float, max_grad: float) -> None:
    """Raise ValueError for settings of the tempered target out of range."""
    if temper is not None and not 0.0 <= temper <= 1.0:
        raise ValueError(f"temper must lie in [0, 1], got {temper}")
    if not 0.0 < beta <= 1.0:
        raise ValueError(f"temper_start must lie in (0, 1], got {beta}")
    if not max_grad > 0:
        raise ValueError(f"max_grad must be > 0, got {max_grad}")


def beta_at(share: float, start: float, step: int, steps: int) -> float:
    """The power of the target: from `start` to 1, evenly in its logarithm, over the first `share` of the steps.

    >>> [round(beta_at(0.5, 0.01, step, 8), 3) for step in (0, 2, 4, 7)]
    [0.01, 0.1, 1.0, 1.0]
    """
    return 1.0 if step >= share * steps else start ** (1.0 - step / (share * steps))


def tempered(problem: Problem, share: float | None, start: float, step: int, steps: int) -> float:
    """beta at a step; a share of None is half of the run on a bare density and nothing on a network."""
    if share is None:
        share = 0.5 if isinstance(problem, Density) else 0.0
    return beta_at(share, start, step, steps)


class Rows(NamedTuple):
    """The target at some draws."""

    score: Tensor  # [draws, k] s by the coordinates of the draws
    log_p: (
        Tensor | None
    )  # [draws] log p up to a constant; None where there is a network, whose batches say it with noise
    info: Info  # of the one member


def scored(
    problem: Problem,
    mean: Tree,
    names: Sequence[str],
    x: Tensor,
    to_theta: Callable[[Tensor], Tensor],
    pull: Callable[[Tensor], Tensor],
    batch: Any,
    random: Random,
    k: int,
    t: int,
) -> Rows:
    """The scores of member k's draws x [draws, k], in groups that fit.

    `to_theta` makes rows of the named tensors [n, d] of coordinates [n, k]; `pull` takes a score [n, d] back to [n, k].
    """
    draws = len(x)
    if isinstance(problem, Density):
        streams = [random.fold("step").fold(f"draw {i}").fold(k).fold(t) for i in range(draws)]
        values, gradient, info = problem.nlls(split(to_theta(x), mean, names), [batch] * draws, streams)
        score = pull(-torch.cat([gradient[name].reshape(draws, -1) for name in names], dim=1))
        finite = (info.finite.all() & torch.isfinite(score).all())[None]
        return Rows(score, -values, Info(info.nll.mean()[None], info.gradient_norm.mean()[None], finite, {}))
    size = problem.data_weight * problem.data_size
    size_of_all = drawn(problem, sum(leaf[0].numel() for leaf in mean.values()))
    group = drawn(problem, max(1, GROUP // size_of_all))
    parts, infos = [], []
    for a in range(0, draws, group):
        address = random if a == 0 else random.fold(f"group {a}")
        h, info = score_rows(problem, mean, names, to_theta(x[a : a + group]), batch, address, k, t)
        parts.append(pull(h.mul_(-size)))
        infos.append(info)
    finite = torch.cat([info.finite for info in infos]).all()[None]
    nll = torch.cat([info.nll for info in infos]).mean()[None]
    norm = torch.cat([info.gradient_norm for info in infos]).mean()[None]
    return Rows(torch.cat(parts), None, Info(nll, norm, finite, infos[0].buffers))


def slope(log_q: Callable[[Tensor], Tensor], x: Tensor, graph: bool = False) -> Tensor:
    """[n, k] grad log q at x [n, k], with its graph or without."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(log_q(x).sum(), x, create_graph=graph)[0]


def score_loss(
    gradient: Tensor, score: Tensor, weight: Tensor, scale: Tensor | float, old: Tensor | None, alpha: float
) -> Tensor:
    """() the objective at draws of weights [n]; `old` is grad log q_t, None where q = q_t and the second term is zero."""
    loss = (weight * ((gradient - score) * scale).square().sum(-1)).sum()
    if old is not None and alpha > 0:
        loss = loss + alpha * (weight * ((gradient - old) * scale).square().sum(-1)).sum()
    return loss


def clip_(gradients: Mapping[str, Tensor], most: float) -> float:
    """Scale the gradients to a Euclidean norm of at most `most` together, in place; the norm before."""
    norm = math.sqrt(sum(float(leaf.square().sum()) for leaf in gradients.values()))
    if math.isfinite(norm) and norm > most:
        for leaf in gradients.values():
            leaf.mul_(most / norm)
    return norm


def adam_steps(
    adam: Adam, gradients: Mapping[str, Tensor], first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> Tree:
    """What to subtract from each parameter; the moments [shaped alike] are updated in place."""
    return {n: adam.step_(g, first[n], second[n], torch.empty_like(g)) for n, g in gradients.items()}
