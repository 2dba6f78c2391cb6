"""Several posteriors of one network, each with the same weight: what an ensemble of a variational method leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.posterior.moments import Moment
from posterity.posterior.posterior import DRAWS, NO_MEAN, Posterior, evenly, posterior_from
from posterity.problem.priors import Prior
from posterity.random import Random
from posterity.tree import Tree, pick

__all__ = ["Mixture", "mixture"]


class Mixture(Posterior):
    """Equal parts of its components; draw i comes from component i modulo their number."""

    kind: ClassVar[str] = "mixture"

    def __init__(self, components: Sequence[Posterior]) -> None:
        self.components = list(components)

    @property
    def finite(self) -> int | None:
        """Their number, where each is a point."""
        return len(self.components) if all(component.finite == 1 for component in self.components) else None

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        if self.finite is not None:
            for k in evenly(n, self.finite):
                yield next(self.components[k].draws(1, random))
            return
        n = max(DRAWS, len(self.components)) if n is None else n
        k = len(self.components)
        streams = [c.draws(-(-(n - i) // k), random.fold(f"component {i}")) for i, c in enumerate(self.components[:n])]
        for i in range(n):
            yield next(streams[i % k])

    def mean(self) -> Tree:
        raise CompatibilityError(NO_MEAN)

    def moments(self) -> dict[str, Moment]:
        raise CompatibilityError(NO_MEAN)

    def divergence(self, prior: Prior) -> float:
        """The mean KL of the K components in nats: an upper bound of KL(q || p), by convexity, at most log K above it."""
        return sum(component.divergence(prior) for component in self.components) / len(self.components)

    @property
    def size(self) -> int:
        return sum(c.size for c in self.components)

    def tensors(self) -> Tree:
        return {f"{i}/{k}": v for i, c in enumerate(self.components) for k, v in c.tensors().items()}

    def meta(self) -> dict[str, Any]:
        return {"components": [{"kind": c.kind, "meta": c.meta()} for c in self.components]}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Mixture:
        parts = enumerate(meta["components"])
        return cls([posterior_from(part["kind"], pick(tensors, f"{i}/"), part["meta"]) for i, part in parts])


def mixture(components: Sequence[Posterior]) -> Posterior:
    """The one component, or a mixture of several."""
    return components[0] if len(components) == 1 else Mixture(components)
