"""A finite posterior: the members of an ensemble, or the positions of chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.posterior.moments import Deterministic, Moment, Normal
from posterity.posterior.posterior import NO_MEAN, Posterior, evenly
from posterity.posterior.shards import load_draws
from posterity.random import Random
from posterity.tree import BUFFER, Tree, first, member

__all__ = ["Draws", "Positions", "Streamed"]


class Positions(Protocol):
    """Draws that are read one at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Tree: ...

    def __iter__(self) -> Iterator[Tree]: ...


class Draws(Posterior):
    """Draws held in memory.

    Args:
        stacked: every tensor with a leading axis of K draws.
    """

    kind: ClassVar[str] = "draws"

    def __init__(self, stacked: Tree) -> None:
        self.stacked = stacked

    @property
    def finite(self) -> int | None:
        return first(self.stacked).shape[0]

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for k in evenly(n, first(self.stacked).shape[0]):
            yield member(self.stacked, k)

    def mean(self) -> Tree:
        if self.finite == 1:
            return member(self.stacked, 0)
        raise CompatibilityError(NO_MEAN)

    def moments(self) -> dict[str, Moment]:
        varying = {k: v for k, v in self.stacked.items() if not k.startswith(BUFFER)}
        fixed: dict[str, Moment] = {k: Deterministic(v[0]) for k, v in self.stacked.items() if k.startswith(BUFFER)}
        return {**fixed, **{k: Normal(v.mean(0), v.std(0, correction=0)) for k, v in varying.items()}}

    def tensors(self) -> Tree:
        return dict(self.stacked)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Draws:
        return cls(dict(tensors))


class Streamed(Posterior):
    """Draws on the disk, read one at a time: memory does not grow with their number."""

    kind: ClassVar[str] = "streamed"

    def __init__(self, reader: Positions) -> None:
        self.reader = reader

    @property
    def finite(self) -> int | None:
        return len(self.reader)

    def stored(self) -> Iterator[Tree]:
        """What a saved run holds, in its order."""
        return iter(self.reader)

    def draws(self, n: int | None, random: Random) -> Iterator[Tree]:
        for k in evenly(n, len(self.reader)):
            yield self.reader[k]

    def mean(self) -> Tree:
        if self.finite == 1:
            return self.reader[0]
        raise CompatibilityError(NO_MEAN)

    def moments(self) -> dict[str, Moment]:
        """In two passes over the draws, in float64."""
        count = len(self.reader)
        means = {name: leaf.double() for name, leaf in self.reader[0].items()}
        for i in range(1, count):
            means = {name: means[name] + leaf.double() for name, leaf in self.reader[i].items()}
        means = {name: leaf / count for name, leaf in means.items()}
        squares = {name: torch.zeros_like(leaf) for name, leaf in means.items()}
        for draw in self.reader:
            squares = {name: squares[name] + (leaf.double() - means[name]).square() for name, leaf in draw.items()}
        varying = {
            k: Normal(means[k].float(), (v / count).sqrt().float())
            for k, v in squares.items()
            if not k.startswith(BUFFER)
        }
        fixed: dict[str, Moment] = {k: Deterministic(v) for k, v in self.reader[0].items() if k.startswith(BUFFER)}
        return {**fixed, **varying}

    def tensors(self) -> Tree:
        return {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Streamed:
        return cls(load_draws(meta["folder"], device=meta["device"]))
