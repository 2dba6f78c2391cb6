"""A group of D features, x ~ (m, v), centred or not, over its root mean square; also where that is written by hand.

    c = m - mean(m),   E s^2 = mean(c^2) + (1 - 1/D) mean(v)            mean(v) throughout where nothing is centred
    mean  c / sqrt(E s^2 + eps)
    var   ((1 - 2/D) v + mean(v) / D) / (E s^2 + eps)

To second order, which rows that one feature dominates need, S = E s^2 + eps varies with the features:

    P = (4 mean(c^2 v) + 2 mean(v^2)) / D   Var s^2,           q = 2 (c v - mean(c v)) / D     Cov(x, s^2)
    mean  (c (1 + 3 P / 8 S^2) - q / 2 S) / sqrt(S)
    var   ((1 - 2/D) v + mean(v) / D - c q / S + c^2 P / 4 S^2) / S

x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) is the same: each step remembers what it is of, since x and its own norm
are anything but independent.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from posterity.prediction.propagation.run import at_site, current
from posterity.prediction.propagation.value import MeanVar, Value, join, split

__all__ = ["Step", "by_hand", "normalised", "squares_of", "step_on"]

Stage = Literal["squares", "mean square", "norm", "inverse norm"]


def normalised(x: Value, dims: tuple[int, ...], eps: float | Tensor, centred: bool = True) -> Value:
    """x over its root mean square along `dims`, at a site."""
    x = at_site(x)
    mean, var = split(x)
    size = 1
    for dim in dims:
        size *= mean.shape[dim]
    c = mean - mean.mean(dims, keepdim=True) if centred else mean
    power = c.square().mean(dims, keepdim=True)
    if var is None:
        return c * torch.rsqrt(power + eps)
    average = var.mean(dims, keepdim=True)
    lost = 1 / size if centred else 0.0
    rule = current().rules.norms
    if rule != "mean":
        power = power + (1 - lost) * average
    power = power + eps
    own = (1 - 2 * lost) * var + lost * average
    if rule == "second-order":
        c, own = _second_order(c, own, var, power, dims, size, centred)
    return join(c * torch.rsqrt(power), own / power)


def _second_order(
    c: Tensor, own: Tensor, var: Tensor, power: Tensor, dims: tuple[int, ...], size: int, centred: bool
) -> tuple[Tensor, Tensor]:
    """The numerators of mean and variance."""
    of_power = (4 * (c.square() * var).mean(dims, keepdim=True) + 2 * var.square().mean(dims, keepdim=True)) / size
    shared = c * var - (c * var).mean(dims, keepdim=True) if centred else c * var
    ratio, pull = of_power / power.square(), 2 * shared / (size * power)
    return c * (1 + 3 * ratio / 8) - pull / 2, (own - c * pull + c.square() * ratio / 4).clamp_min(0.0)


class Step(NamedTuple):
    """What a step on the way to a norm by hand remembers.

    Args:
        of: the mean of what was squared.
    """

    of: Tensor
    stage: Stage
    dims: tuple[int, ...] = ()
    eps: Any = 0.0


def squares_of(x: MeanVar, found: MeanVar) -> MeanVar:
    """x^2, remembering x."""
    found.about = Step(x.mean, "squares")
    return found


def step_on(before: Any, stage: Stage, found: Value, dims: tuple[int, ...] = (), eps: Any = 0.0) -> Value:
    """`found` as the next step where `before` is the one that comes before it.

    Args:
        stage: the mean of the squares over `dims`, kept; that plus eps; its root, or the inverse of that.
    """
    about = before.about if isinstance(before, MeanVar) else None
    wanted = "squares" if dims else "mean square"
    number = isinstance(eps, float | int) or (isinstance(eps, Tensor) and eps.ndim == 0)
    if isinstance(about, Step) and about.stage == wanted and isinstance(found, MeanVar) and number:
        found.about = Step(about.of, stage, dims or about.dims, about.eps + eps)
    return found


def by_hand(x: Any, norm: Any, stage: Stage) -> Value | None:
    """x over its own norm; nothing where the second is not that of the first."""
    about = norm.about if isinstance(norm, MeanVar) else None
    if isinstance(about, Step) and about.stage == stage and isinstance(x, MeanVar) and about.of is x.mean:
        return normalised(x, about.dims, about.eps, centred=False)
    return None
