"""Batches dealt to the ranks in turn, so that every row is predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from posterity.group import ALONE, Group
from posterity.problem.batches import Batch

__all__ = ["Turns"]


class Turns:
    """This rank's batches of those that are dealt, and where in the data each of them begins.

    >>> turns = Turns(Group(1, 2))
    >>> [batch.inputs for batch in turns.deal([Batch("a", rows=7), Batch("b", rows=5), Batch("c", rows=2)])], turns.starts
    (['b'], [7])
    """

    def __init__(self, group: Group = ALONE) -> None:
        self.group = group
        self.starts: list[int] = []
        self.rows = 0  # of all ranks, so far

    def deal(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for index, batch in enumerate(batches):
            if index % self.group.size == self.group.rank:
                self.starts.append(self.rows)
                yield batch
            self.rows += batch.rows
