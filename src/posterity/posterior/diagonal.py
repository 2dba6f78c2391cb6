"""A fully factorised normal: theta = mean + std * z, z ~ N(0, I)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import DRAWS, Posterior
from posterity.problem import priors
from posterity.random import Random
from posterity.tree import Tree, pick, weights

__all__ = ["Diagonal"]


class Diagonal(Posterior):
    """Independent normals.

    Args:
        means: every tensor, the changed buffers among them.
        stds: standard deviations of those that vary, shaped like their means.
    """

    kind: ClassVar[str] = "diagonal"

    def __init__(self, means: Tree, stds: Tree) -> None:
        self.means, self.stds = means, stds

    @property
    def finite(self) -> int | None:
        return None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for i in range(DRAWS if n is None else n):
            noise = random.fold(i).normals(self.stds)
            yield {**self.means, **{k: noise[k].mul_(std).add_(self.means[k]) for k, std in self.stds.items()}}

    def mean(self) -> Tree:
        return self.means

    def moments(self) -> dict[str, Moment]:
        return {k: Normal(m, self.stds[k]) if k in self.stds else Deterministic(m) for k, m in self.means.items()}

    def divergence(self, prior: priors.Prior) -> float:
        """KL(q || p) in nats against a normal prior: sum of log(p/s) + (s^2 + (m - c)^2) / (2 p^2) - 1/2, in float64."""
        if not isinstance(prior, priors.Normal):
            raise CompatibilityError(
                f"the KL in closed form needs a normal prior, got {prior.name}: fit with po.Normal()"
            )
        varied = weights(self.means)
        if fixed := sorted(name for name in varied if name not in self.stds or bool((self.stds[name] == 0).any())):
            raise CompatibilityError(
                f"the KL is infinite: the weights {fixed} have no spread; fit a method that gives one to every weight, or "
                "freeze them (requires_grad_(False)) before the fit"
            )
        return max(0.0, sum(float(prior.kl(name, mean, self.stds[name])) for name, mean in varied.items()))

    def tensors(self) -> Tree:
        return {**{f"mean/{k}": v for k, v in self.means.items()}, **{f"std/{k}": v for k, v in self.stds.items()}}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Diagonal:
        return cls(pick(tensors, "mean/"), pick(tensors, "std/"))
