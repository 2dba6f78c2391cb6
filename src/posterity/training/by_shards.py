"""Weights apart: every rank has some rows of each weight and of all beside it, and its share of the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from posterity.group import ALONE
from posterity.inference.algorithm import Algorithm, varying
from posterity.posterior.posterior import Posterior, posterior_from
from posterity.problem.cut import Cut
from posterity.problem.problem import NetworkProblem
from posterity.problem.sharded import ShardedProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.checkpoint import flatten
from posterity.training.placement import Placement, rank_0_says
from posterity.tree import Tree, count

__all__ = ["ByShards"]


@dataclass(frozen=True)
class ByShards(Placement):
    """The shards of FSDP2, which are cut once there is a problem."""

    cut: Cut = field(default_factory=lambda: Cut({}, ALONE))

    def device(self, asked: Any) -> Any:
        """Where it is: what is cut goes where it was asked for."""
        return None

    def problem(self, whole: NetworkProblem, device: Any) -> tuple[NetworkProblem, Placement]:
        own = ShardedProblem(whole, self.group, device)
        return own, replace(self, cut=own.cut)

    def noise(self, random: Random, members: int) -> Random:
        return random.fold(f"shard {self.group.rank}") if self.group.rank > 0 else random

    def start(self, whole: Tree | Snapshot) -> Tree | Snapshot:
        return Snapshot.of(self.cut.own(whole.flat())) if isinstance(whole, Snapshot) else self.cut.own(whole)

    def restored(self, checkpoint: Tree) -> Tree:
        return self.cut.own(checkpoint, axis=1)

    def flat(self, state: Any, members: int) -> Tree:
        return self.cut.whole(flatten(state), axis=1, keep=self.writes)

    def snapshot(self, own: Snapshot) -> Snapshot:
        return Snapshot.of(self.cut.whole(own.flat()))

    def posterior(self, own: Posterior) -> Posterior:
        return posterior_from(own.kind, self.cut.whole(own.tensors()), own.meta())

    def watched(self, algorithm: Algorithm, problem: NetworkProblem, state: Any) -> dict[str, float]:
        """A KL adds up over the ranks; a std is a geometric mean over weights."""
        every = self.group.every(algorithm.watch(problem, state))
        weights = self.group.every(count(varying(problem, algorithm.point(state))))
        share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        found = {name: torch.tensor([one[name] for one in every], dtype=torch.float64) for name in every[0]}
        return {name: float(x.sum() if name == "kl" else (x.log() @ share).exp()) for name, x in found.items()}

    def agreed(self, step: int, due: bool) -> bool:
        return rank_0_says(self.group, step, due)

    def check(self, state: Any, step: int) -> None:
        """Nothing: ranks have other rows."""
