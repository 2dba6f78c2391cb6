"""A problem over the factors of another one's matrices.

Its trees hold `<name>::left` [m, r] and `<name>::right` [*rest, r] in the place of a matrix `<name>` (and a constant
`<name>::base` where the factors are a change of it); everything else is as it was. Algorithms see a flat tree like any
other, and the network a `Factored` weight.

The prior of one factor entry is N(0, sqrt(v / r)), v the prior variance of an entry of the matrix: the sum of r products
then has the variance v. A scale mixture is that of the factors' own entries, as in Toure and Stephens (2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from posterity.problem.carrier import leaves, part_name, rebuild, stem
from posterity.problem.factored import Factored
from posterity.problem.factored_change import FactoredChange
from posterity.problem.info import Info
from posterity.problem.local_noise import LocallyNoisy
from posterity.problem.priors import Laplace, Normal, Prior, ScaleMixture
from posterity.problem.problem import Problem, stacked_nlls
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["FACTORS", "FactoredProblem", "factor_prior", "factor_std"]

FACTORS = ("left", "right")
CARRIERS = Factored, FactoredChange, LocallyNoisy  # what `rebuild` makes of such a tree


def factor_std(weight_std: float, rank: int) -> float:
    """p with r p^4 = v: the std of a factor's entries that gives those of W the std `weight_std`.

    >>> factor_std(1.0, 16)
    0.5
    """
    return (weight_std**2 / rank) ** 0.25


def factor_prior(prior: Prior, theta: Tree, centers: Tree) -> Prior:
    """`prior` for a tree of factors; `centers` of the factors, where it is centred on the start."""
    if isinstance(prior, Laplace | ScaleMixture):
        return replace(prior, centers=centers)
    if not isinstance(prior, Normal):
        return prior
    ranks = {stem(name): leaf.shape[-1] for name, leaf in theta.items() if name.endswith(part_name("", "right"))}
    own = {name: std for name, std in prior.stds.items() if name not in ranks}
    factors = {part_name(name, part): factor_std(prior.stds[name], r) for name, r in ranks.items() for part in FACTORS}
    rest = {name: center for name, center in prior.centers.items() if name not in ranks}
    return replace(prior, stds={**own, **factors}, centers={**rest, **centers})


class FactoredProblem:
    """`problem` as one over a tree like `theta`, some of whose matrices are factors.

    Args:
        problem: over dense weights.
        theta: a tree of factors, with or without a leading member axis.
        centers: what its prior centres factors on.
    """

    def __init__(self, problem: Problem, theta: Tree, centers: Tree) -> None:
        self.inner = problem
        self.data_size, self.data_weight, self.idle = problem.data_size, problem.data_weight, problem.idle
        self.drawing = problem.drawing
        self.prior = factor_prior(problem.prior, theta, centers)

    def nll(self, theta: Tree, batch: Any, random: Random) -> tuple[Tensor, Tree, Info]:
        """As of the inner problem; the gradient by the factors."""
        loss, gradient, info = self.inner.nll(rebuild(theta), batch, random)
        return loss, leaves(gradient), info

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        return stacked_nlls(self, thetas, batches, randoms)

    def outputs(self, theta: Tree, inputs: Any, random: Random | None = None, train: bool = False) -> Any:
        return self.inner.outputs(rebuild(theta), inputs, random, train)

    def start(self) -> Tree:
        """The inner problem's: dense."""
        return self.inner.start()

    def starts(self, members: int, init: str, random: Random) -> list[Tree]:
        return self.inner.starts(members, init, random)

    def hvp(self, theta: Tree, batch: Any, random: Random, vector: Tree) -> Tree:
        return self.inner.hvp(theta, batch, random, vector)
