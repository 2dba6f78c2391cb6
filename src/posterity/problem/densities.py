"""A bare log density as a problem: what samplers and variational methods are tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.group import ALONE
from posterity.problem.priors import Flat, Prior
from posterity.problem.problem import Info, stacked_nlls
from posterity.random import Random
from posterity.tree import Tree, clone, squared_norms

__all__ = ["Density"]


class Density:
    """An unnormalised log density over a tree of tensors.

        U(theta) = -log p(theta):  data_size 1, data_weight 1, a flat prior

    Args:
        log_density: takes a Tree, returns a scalar tensor; differentiable.
        start: tensors of the right shapes and dtype, where algorithms start.
        batched: `log_density` also takes tensors with a leading axis [K], of as many points, and returns [K]; members
            and draws then share one call.

    >>> target = Density(lambda t: -0.5 * (t["x"] - 2.0).square().sum(), {"x": torch.zeros(3)})
    >>> value, gradient, _ = target.nll(target.start(), None, Random(0))
    >>> value.item(), gradient["x"].tolist()
    (6.0, [-2.0, -2.0, -2.0])
    """

    data_size = 1
    data_weight = 1.0
    idle: frozenset[str] = frozenset()

    def __init__(
        self, log_density: Callable[[Tree], Tensor], start: Mapping[str, Tensor], batched: bool = False
    ) -> None:
        self.log_density = log_density
        self.batched = batched
        self._start = clone(start)
        self.prior: Prior = Flat()
        self.drawing = ALONE

    def start(self) -> Tree:
        return clone(self._start)

    def starts(self, members: int, init: str, random: Random) -> list[Tree]:
        return [self.start() for _ in range(members)]

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        value, gradient = self._differentiated(theta)
        return value, gradient, _info(value[None], {name: leaf[None] for name, leaf in gradient.items()})

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        if not self.batched:
            return stacked_nlls(self, thetas, batches, randoms)
        values, gradients = self._differentiated(thetas)
        return values, gradients, _info(values, gradients)

    def _differentiated(self, theta: Tree) -> tuple[Tensor, Tree]:
        plain = {name: leaf.detach().requires_grad_() for name, leaf in theta.items()}
        with torch.enable_grad():
            value = -self.log_density(plain)
        found = torch.autograd.grad(value.sum(), list(plain.values()), allow_unused=True)
        # Copies: two leaves can be given one gradient, and algorithms write over theirs, in memory order.
        pairs = zip(plain.items(), found)
        return value.detach(), clone({n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs})

    def outputs(self, theta: Tree, inputs: Any, random: Random | None = None, train: bool = False) -> Any:
        raise CompatibilityError("a bare density has no network, hence no outputs")

    def hvp(self, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
        names = list(theta)

        def log_density(*values: Tensor) -> Tensor:
            return -self.log_density(dict(zip(names, values)))

        _, product = torch.autograd.functional.hvp(log_density, tuple(theta.values()), tuple(vector[n] for n in names))
        return dict(zip(names, product))


def _info(values: Tensor, gradients: Tree) -> Info:
    norms = squared_norms(gradients).sqrt()
    return Info(values, norms, torch.isfinite(values) & torch.isfinite(norms), {})
