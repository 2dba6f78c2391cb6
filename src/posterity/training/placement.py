"""Where the parts of a fit are, when several processes work on it.

    "rows"      every rank has every member, and its share of the rows of each batch; gradients are averaged
    "draws"     the same, and every rank draws weights of its own: statistics of the draws are averaged
    "members"   every rank has some members, or chains, and all rows; nothing is sent but draws, losses and checkpoints

By rows or members every draw has the address that it has in one process, so what is found is what one process finds. By
draws a step has as many draws as ranks, and less noise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.group import ALONE, Group
from posterity.inference.algorithm import Algorithm
from posterity.random import Random
from posterity.training.checkpoint import flatten, restore
from posterity.training.position import Position

__all__ = ["DISTRIBUTE", "HERE", "Placement", "placed"]

DISTRIBUTE = ("rows", "draws", "members")
CHECK = "POSTERITY_CHECK_RANKS"  # steps between two comparisons of the ranks' states; a debugging aid
CHECK_CLOCK = 32  # steps between two looks at rank 0's clock

Whole = TypeVar("Whole")


@dataclass(frozen=True)
class Placement:
    """How members and rows are shared among the ranks of `group`."""

    group: Group = ALONE
    by_members: bool = False
    own_draws: bool = False
    check_every: int = 0  # steps; 0: never

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's folder and talks to the person who waits."""
        return self.group.rank == 0

    @property
    def rows(self) -> Group:
        """The ranks among which the rows of a batch are shared."""
        return ALONE if self.by_members else self.group

    def drawing(self, algorithm: Algorithm) -> Group:
        """The ranks that draw weights of their own in a stage of `algorithm`."""
        return self.group if self.own_draws and algorithm.own_draws else ALONE

    # --- members -----------------------------------------------------------------------------------------------------

    def mine(self, members: int) -> range:
        """The members that this rank has."""
        return self.group.share(members) if self.by_members else range(members)

    def algorithm(self, whole: Algorithm) -> Algorithm:
        """`whole` for the members that this rank has."""
        return replace(whole, members=len(self.mine(whole.members))) if self.by_members else whole

    def random(self, random: Random, members: int) -> Random:
        """The streams of these members."""
        return random.beside(self.mine(members).start)

    def state(self, whole: Any, members: int) -> Any:
        """This rank's members of a state of all."""
        if not self.by_members:
            return whole
        mine = self.mine(members)
        flat = {name: leaf[mine.start : mine.stop].clone() if _has_members(leaf, members) else leaf
                for name, leaf in flatten(whole).items()}  # fmt: skip
        return restore(whole, flat)

    def joined(self, state: Whole, members: int) -> Whole:
        """The inverse of `state`, on every rank: of a state, or of draws with a leading axis of members."""
        if not self.by_members:
            return state
        own = len(self.mine(members))
        flat = {name: self.group.joined(leaf) if _has_members(leaf, own) else leaf
                for name, leaf in flatten(state).items()}  # fmt: skip
        return restore(state, flat)

    # --- the position ------------------------------------------------------------------------------------------------

    def position(self, whole: Position, members: int) -> Position:
        """`whole` as this rank counts on."""
        if not self.by_members:
            return whole
        mine = slice(self.mine(members).start, self.mine(members).stop)
        first = self.group.rank == 0
        return replace(
            whole, consumed=whole.consumed[mine], failures=whole.failures[mine],
            skipped=whole.skipped if first else 0, left_out=whole.left_out if first else 0,
        )  # fmt: skip

    def whole_position(self, own: Position) -> Position:
        """The inverse of `position`, on every rank.

        Raises:
            DataError: the ranks are not at one step.
        """
        if not self.by_members:
            return own
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
        """An epoch's line of the history, of this rank's `members`, for all: numbers are means over members."""
        if not self.by_members:
            return dict(own)
        every = self.group.every(dict(own))
        numbers = [{name: v for name, v in one.items() if isinstance(v, float)} for one in every]
        skipped = {"skipped": sum(one["skipped"] for one in every)} if "skipped" in own else {}
        return {**every[0], **_weighted(numbers, self.group.every(members)), **skipped}

    def nll(self, own: Tensor) -> Tensor:
        """[members] of all members, of those of this rank."""
        return self.group.joined(own) if self.by_members else own

    def agreed(self, step: int, due: bool) -> bool:
        """Whether rank 0 says `due`, asked every few steps; all of them answer alike."""
        if not self.by_members:
            return due
        return step % CHECK_CLOCK == 0 and bool(self.group.every(due)[0])

    def check(self, state: Any, step: int) -> None:
        """Compare the ranks' states every `check_every` steps, where all should have the same.

        Raises:
            PosterityError: they differ.
        """
        if self.check_every and not self.by_members and step % self.check_every == 0:
            self.group.check_same(flatten(state), f"the state after step {step}")


HERE = Placement()


def placed(distribute: str | None, method: Algorithm) -> Placement:
    """The placement that `fit(distribute=)` asks for.

    Raises:
        CompatibilityError: another word; no ranks; fewer members than ranks; draws of a method that has none to share.
    """
    if distribute is None:
        return HERE
    if distribute not in DISTRIBUTE:
        raise CompatibilityError(f"distribute must be one of {', '.join(DISTRIBUTE)} or None, got {distribute!r}")
    group = Group.current()
    if distribute == "draws" and not method.own_draws:
        raise CompatibilityError(
            f"distribute='draws' is for variational methods, whose steps draw weights, and {method.title} is none: use "
            "distribute='rows'"
        )
    if distribute in ("rows", "draws"):
        return Placement(group, own_draws=distribute == "draws", check_every=int(os.environ.get(CHECK, "0")))
    if method.members < group.size:
        raise CompatibilityError(
            f"distribute='members' over {group.size} ranks needs as many members, and {method.title} has {method.members}: "
            "use distribute='rows'"
        )
    return Placement(group, by_members=True)


def _has_members(leaf: Tensor, members: int) -> bool:
    return leaf.dim() > 0 and leaf.shape[0] == members


def _weighted(every: Sequence[Mapping[str, float]], share: Sequence[int]) -> dict[str, float]:
    """The mean of each number over the ranks that have it."""
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in every for name in one):
        pairs = [(one[name], part) for one, part in zip(every, share) if name in one]
        found[name] = sum(value * part for value, part in pairs) / sum(part for _, part in pairs)
    return found
