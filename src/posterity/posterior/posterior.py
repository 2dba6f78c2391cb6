"""What every posterior can do: give draws of weights, a mean, moments, and its tensors for storage."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from posterity.errors import CompatibilityError, PosterityWarning, StorageError
from posterity.posterior.files import understood
from posterity.posterior.moments import Moment
from posterity.problem.priors import Prior
from posterity.random import Random
from posterity.tree import Tree, count

__all__ = ["DRAWS", "NO_MEAN", "Posterior", "evenly", "posterior_from"]

DRAWS = 32  # of a continuous posterior, where the caller names no number
NO_MEAN = "the average of an ensemble's weights is no network: use via='draws'"

_KINDS: dict[str, type[Posterior]] = {}


class Posterior(ABC):
    """A distribution over the weights of one network.

    A draw is a Tree without leading axis: weights, changed buffers, the likelihood's own parameters. Draw d of a given
    `Random` is always the same tensors, whatever n is.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _KINDS[cls.kind] = cls

    def __repr__(self) -> str:
        draws = "" if self.finite is None else f", {self.finite} draws"
        return f"{type(self).__name__}({self.size:,} numbers{draws})"

    @property
    def size(self) -> int:
        """How many numbers describe it; constants that were there before the fit do not count."""
        return count(self.tensors())

    @property
    @abstractmethod
    def finite(self) -> int | None:
        """The number of different draws, or None where there is no end to them."""

    @abstractmethod
    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        """`n` draws one by one (None: all of a finite posterior, else 32)."""

    @abstractmethod
    def mean(self) -> Tree:
        """The mean weights, or the one set of a point.

        Raises:
            CompatibilityError: members whose average is no network (an ensemble).
        """

    @abstractmethod
    def moments(self) -> dict[str, Moment]:
        """Moments of each weight tensor by name; buffers are deterministic."""

    def divergence(self, prior: Prior) -> float:
        """KL(q || p) >= 0 over all weights, in nats, in closed form; or an upper bound of it, where a family says so.

        Args:
            prior: bound to the network's tensors, as a problem's is.

        Raises:
            CompatibilityError: a family or a prior without a closed form, or weights without spread (it is infinite).
        """
        raise CompatibilityError(
            f"no closed-form KL of a {self.kind} posterior from its prior: fit one that has it, such as po.MeanFieldVI()"
        )

    @abstractmethod
    def tensors(self) -> Tree:
        """Everything that `from_tensors` needs, flat."""

    def meta(self) -> dict[str, Any]:
        """JSON beside the tensors."""
        return {}

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Posterior:
        """The inverse of `tensors` and `meta`."""


def posterior_from(kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Posterior:
    """A posterior of a saved kind.

    Raises:
        StorageError: this version knows no such kind, or the tensors are not those of one.
    """
    with understood(f"a posterior of the kind {kind!r} in the run"):
        if kind not in _KINDS:
            raise StorageError(f"the run holds a posterior of the kind {kind!r}; this version knows {sorted(_KINDS)}")
        return _KINDS[kind].from_tensors(tensors, meta)


def evenly(n: int | None, count: int) -> list[int]:
    """Indices of `n` of `count` draws, evenly spread and without repeats; more than there are is capped, and said.

    >>> evenly(3, 7), evenly(None, 3)
    ([0, 2, 4], [0, 1, 2])
    """
    if n is None:
        return list(range(count))
    if n > count:
        warnings.warn(
            f"{n} draws were asked for and this posterior has {count}: all of them are used",
            PosterityWarning,
            stacklevel=3,
        )
    n = min(n, count)
    return [i * count // n for i in range(n)]
