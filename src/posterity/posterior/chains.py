"""The draws of several chains, side by side: a finite posterior that knows which draw is whose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from posterity.posterior.draws import Draws, Positions, Streamed
from posterity.posterior.shards import load_draws
from posterity.tree import Tree, member

__all__ = ["Chains"]


class Chains(Streamed):
    """Positions of chains that ran side by side; those of lost chains are kept on the disk and left out of everything.

    Draw i is position `i % per_chain` of kept chain `i // per_chain`, so that any number of draws is spread over the chains.

    Args:
        source: what all chains left, in the order of time: position 0 of every chain, position 1 of every chain, ...
        every: the number of chains that ran.
        names: the members whose chains are kept, ascending, at least one.
        about: how the chains went, JSON; see `SGHMC`.
    """

    kind: ClassVar[str] = "chains"

    def __init__(self, source: Streamed | Draws, every: int, names: Sequence[int], about: Mapping[str, Any]) -> None:
        self.source = source
        self.every, self.names, self.about = every, list(names), dict(about)
        positions = source.reader if isinstance(source, Streamed) else _Held(source)
        self._positions: Positions = positions
        super().__init__(_ByChain(positions, every, self.names))

    @property
    def chains(self) -> int:
        """The number of kept chains."""
        return len(self.names)

    @property
    def per_chain(self) -> int:
        """Draws of each chain."""
        return len(self.reader) // self.chains

    def stored(self) -> Iterator[Tree]:
        return iter(self._positions)

    def meta(self) -> dict[str, Any]:
        return {"every": self.every, "names": self.names, "about": self.about}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Chains:
        source = Streamed(load_draws(meta["folder"], device=meta["device"]))
        return cls(source, meta["every"], meta["names"], meta["about"])


class _Held:
    """Draws in memory, read like those on the disk."""

    def __init__(self, draws: Draws) -> None:
        self._stacked, self._length = draws.stacked, draws.finite or 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Tree:
        return member(self._stacked, index)


class _ByChain:
    """Positions in the order of time, read chain by chain."""

    def __init__(self, positions: Positions, every: int, names: Sequence[int]) -> None:
        self._positions, self._every, self._names = positions, every, names
        self._length = len(positions) // every

    def __len__(self) -> int:
        return self._length * len(self._names)

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Tree:
        chain, position = divmod(range(len(self))[index], self._length)
        return self._positions[position * self._every + self._names[chain]]
