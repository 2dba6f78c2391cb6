"""Members, or chains, apart: every rank has some of them, and all rows; little is sent but draws, losses and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from posterity.errors import DataError
from posterity.inference.algorithm import Algorithm
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.checkpoint import flatten, restore
from posterity.training.placement import Placement, Whole, rank_0_says
from posterity.training.position import Position

__all__ = ["ByMembers"]


@dataclass(frozen=True)
class ByMembers(Placement):
    """Consecutive members on each rank, in the order of ranks."""

    def problem(self, whole: NetworkProblem, device: Any) -> tuple[NetworkProblem, Placement]:
        return whole, self

    def _mine(self, members: int) -> range:
        return self.group.share(members)

    def algorithm(self, whole: Algorithm) -> Algorithm:
        return replace(whole, members=len(self._mine(whole.members)))

    def data(self, random: Random, members: int) -> Random:
        return random.beside(self._mine(members).start)

    noise = data

    def state(self, whole: Any, members: int) -> Any:
        mine = self._mine(members)
        flat = {
            name: leaf[mine.start : mine.stop].clone() if _has_members(leaf, members) else leaf
            for name, leaf in flatten(whole).items()
        }
        return restore(whole, flat)

    def joined(self, state: Whole, members: int) -> Whole:
        own = len(self._mine(members))
        flat = {
            name: self.group.joined(leaf) if _has_members(leaf, own) else leaf for name, leaf in flatten(state).items()
        }
        return restore(state, flat)

    def position(self, whole: Position, members: int) -> Position:
        mine = slice(self._mine(members).start, self._mine(members).stop)
        first = self.group.rank == 0
        return replace(
            whole, consumed=whole.consumed[mine], failures=whole.failures[mine],
            skipped=whole.skipped if first else 0, left_out=whole.left_out if first else 0,
        )  # fmt: skip

    def whole_position(self, own: Position) -> Position:
        """
        Raises:
            DataError: the ranks are not at one step.
        """
        every: list[Position] = self.group.every(own)
        if len({one.step for one in every}) > 1:
            raise DataError(
                f"the members on different ranks have done {[one.step for one in every]} steps: batches are left out for "
                "some and not for others. Use distribute='rows', or data without batches of one row or of ignored targets"
            )
        return replace(
            every[0],
            consumed=[count for one in every for count in one.consumed],
            failures=[count for one in every for count in one.failures],
            sums=_weighted([one.sums for one in every], [len(one.consumed) for one in every]),
            skipped=sum(one.skipped for one in every),
        )

    def row(self, own: Mapping[str, Any], members: int) -> dict[str, Any]:
        every = self.group.every(dict(own))
        numbers = [{name: v for name, v in one.items() if isinstance(v, float)} for one in every]
        skipped = sum(one["skipped"] for one in every)
        return {**every[0], **_weighted(numbers, self.group.every(members)), "skipped": skipped}

    def nll(self, own: Tensor) -> Tensor:
        return self.group.joined(own)

    def agreed(self, step: int, due: bool) -> bool:
        return rank_0_says(self.group, step, due)

    def check(self, state: Any, step: int) -> None:
        """Nothing: ranks have other members."""


def _has_members(leaf: Tensor, members: int) -> bool:
    return leaf.dim() > 0 and leaf.shape[0] == members


def _weighted(every: Sequence[Mapping[str, float]], share: Sequence[int]) -> dict[str, float]:
    """The mean of each number over the ranks that have it."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in every for name in one):
        pairs = [(one[name], part) for one, part in zip(every, share) if name in one]
        found[name] = sum(value * part for value, part in pairs) / sum(part for _, part in pairs)
    return found
