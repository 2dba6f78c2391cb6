"""Where the parts of a fit are, when several processes work on it.

    "rows"      every rank has every member, and its share of the rows of each batch; gradients are averaged
    "draws"     the same, and every rank draws weights of its own: statistics of the draws are averaged
    "members"   every rank has some members, or chains, and all rows: `by_members.py`
    "shards"    every rank has some rows of every weight, and its share of a batch's: `by_shards.py`

By rows or members every draw has the address that it has in one process, so what is found is what one process finds. By
draws a step has as many draws as ranks, and less noise. By shards the noise in a rank's rows is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from posterity.group import ALONE, Group
from posterity.inference.algorithm import Algorithm
from posterity.posterior.posterior import Posterior
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.checkpoint import flatten
from posterity.training.position import Position
from posterity.tree import Tree

__all__ = ["HERE", "Placement", "rank_0_says"]

CHECK_CLOCK = 32  # steps between two looks at rank 0's clock

Whole = TypeVar("Whole")


@dataclass(frozen=True)
class Placement:
    """All members and all weights on every rank, which share rows: also the placement of a process alone.

    Args:
        group: the ranks.
        own_draws: whether each draws weights of its own.
        check_every: steps between two comparisons of the ranks' states; 0: never.
    """

    group: Group = ALONE
    own_draws: bool = False
    check_every: int = 0

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's folder and talks to the person who waits."""
        return self.group.rank == 0

    # --- what is computed on --------------------------------------------------------------------------------------

    def device(self, asked: Any) -> Any:
        """Where the network that is read goes, of where the fit is to compute."""
        return asked

    def problem(self, whole: NetworkProblem, device: Any) -> tuple[NetworkProblem, Placement]:
        """What this rank computes on, and the placement of it."""
        whole.group = self.group
        return whole, self

    def drawing(self, algorithm: Algorithm) -> Group:
        """The ranks that draw weights of their own in a stage of `algorithm`."""
        return self.group if self.own_draws and algorithm.own_draws else ALONE

    def algorithm(self, whole: Algorithm) -> Algorithm:
        """`whole` for the members that this rank has."""
        return whole

    def data(self, random: Random, members: int) -> Random:
        """The streams of the batches of this rank's members."""
        return random

    def noise(self, random: Random, members: int) -> Random:
        """The streams of what is drawn for the members and weights that this rank has."""
        return random

    # --- trees -------------------------------------------------------------------------------------------------------

    def start(self, whole: Tree | Snapshot) -> Tree | Snapshot:
        """This rank's part of where a member starts."""
        return whole

    def restored(self, checkpoint: Tree) -> Tree:
        """This rank's weights of a checkpoint, of all members."""
        return checkpoint

    def state(self, whole: Any, members: int) -> Any:
        """This rank's members of a state of all."""
        return whole

    def joined(self, state: Whole, members: int) -> Whole:
        """The inverse of `state`, on every rank: of a state, or of draws with a leading axis of members."""
        return state

    def flat(self, state: Any, members: int) -> Tree:
        """The state of all, as a checkpoint holds it, on the rank that writes; collective."""
        return flatten(self.joined(state, members))

    def snapshot(self, own: Snapshot) -> Snapshot:
        """The inverse of `start`, on every rank."""
        return own

    def posterior(self, own: Posterior) -> Posterior:
        """The posterior of all weights, on every rank."""
        return own

    # --- numbers -----------------------------------------------------------------------------------------------------

    def position(self, whole: Position, members: int) -> Position:
        """`whole` as this rank counts on."""
        return whole

    def whole_position(self, own: Position) -> Position:
        """The inverse of `position`, on every rank."""
        return own

    def watched(self, algorithm: Algorithm, problem: NetworkProblem, state: Any) -> dict[str, float]:
        """What an algorithm says of a state, of the weights of all ranks."""
        return algorithm.watch(problem, state)

    def row(self, own: Mapping[str, Any], members: int) -> dict[str, Any]:
        """An epoch's line of the history, of this rank's `members`, for all: numbers are means over members."""
        return dict(own)

    def nll(self, own: Tensor) -> Tensor:
        """[members] of all members, of those of this rank."""
        return own

    # --- agreement ---------------------------------------------------------------------------------------------------

    def agreed(self, step: int, due: bool) -> bool:
        """Whether a checkpoint is due that all ranks take part in."""
        return due

    def check(self, state: Any, step: int) -> None:
        """Compare the ranks' states every `check_every` steps.

        Raises:
            PosterityError: they differ.
        """
        if self.check_every and step % self.check_every == 0:
            self.group.check_same(flatten(state), f"the state after step {step}")


HERE = Placement()


def rank_0_says(group: Group, step: int, due: bool) -> bool:
    """`due` of rank 0, who is asked every few steps: all ranks answer alike."""
    return step % CHECK_CLOCK == 0 and bool(group.every(due)[0])
