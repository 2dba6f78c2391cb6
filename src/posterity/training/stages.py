"""The stages of one fit, one after the other: where each starts, what it leaves to the next and to the disk."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posterity.history import History
from posterity.inference.algorithm import Algorithm, Plan
from posterity.posterior.draws import Streamed
from posterity.posterior.posterior import Posterior
from posterity.posterior.shards import ShardReader, ShardWriter
from posterity.posterior.storage import CHECKPOINT, MANIFEST, load_checkpoint, load_manifest
from posterity.problem.data import Source
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.checkpoint import carried, left_behind, restore
from posterity.training.loop import Budget, Callback, check_settings, run_stage
from posterity.training.placement import Placement
from posterity.training.position import Position
from posterity.training.progress import Watch
from posterity.training.starts import member_starts
from posterity.tree import Tree

__all__ = ["Stages", "manifest_hash"]


class Stages:
    """What all stages of one fit share."""

    def __init__(
        self, problem: NetworkProblem, training: Source, validation: Source | None, random: Random,
        folder: Path | None, settings: dict[str, Any], callbacks: Sequence[Callback], placement: Placement,
    ) -> None:  # fmt: skip
        self.problem, self.training, self.validation, self.random = problem, training, validation, random
        self.folder, self.settings, self.callbacks, self.placement = folder, settings, callbacks, placement

    def run(
        self,
        stages: list[tuple[Algorithm, Plan]],
        plan: Plan,
        budget: Budget,
        start: Any,
        builder: Any,
        resume: bool,
        watch: Watch,
    ) -> tuple[Posterior, History, list[Snapshot], ShardWriter | None]:
        saved = self._checkpoint() if resume else None
        self.placement.group.wait()  # nobody writes before all have read
        position = saved[1] if saved else Position(replaces=manifest_hash(self.folder))
        starts = self._given(stages[0][0], start, builder)
        left = left_behind(saved[0]) if saved else []
        snapshots: list[Tree | Snapshot] = list(left)
        starts = left or starts
        writer = None
        state: Any = None
        for index in range(position.stage, len(stages)):
            algorithm, own_plan = stages[index]
            stream = self.random.fold(f"stage {index} {algorithm.name}")
            self.problem.drawing = self.placement.drawing(algorithm)
            state = algorithm.init(self.problem, starts, stream.fold("init"), own_plan)
            if saved is not None:
                state, saved = restore(state, saved[0]), None
            handed_on = carried(starts) if index > 0 else None
            starts = []  # the first are not kept beside the state of a large network
            own_budget = budget if own_plan is plan else _fixed(budget, own_plan)
            emits = algorithm.emit(state) is not None or type(algorithm).emit is not Algorithm.emit
            if emits and (self.folder is None or self.placement.writes):
                folder = self.folder or tempfile.mkdtemp()
                writer = ShardWriter(folder, resume_from=position.draws, digest=position.digest)
            state, history = run_stage(
                self.problem, algorithm, own_plan, state, position, self.training, stream, own_budget,
                validation=self.validation if index == 0 or len(stages) == 1 else None,
                folder=self.folder, settings=self.settings, writer=writer, watch=watch, callbacks=self.callbacks,
                carried=handed_on, placement=self.placement,
            )  # fmt: skip
            if any(isinstance(one, Snapshot) for one in algorithm.snapshots(state)):
                snapshots = algorithm.snapshots(state)
            if index + 1 < len(stages):
                starts = algorithm.snapshots(state)
                position = Position(stage=index + 1, history=list(history), replaces=position.replaces)
        posterior = stages[-1][0].posterior(state, self._shards(writer))
        del state  # before what is in shards is gathered
        posterior = self.placement.posterior(posterior)
        kept = [self.placement.snapshot(one) for one in snapshots if isinstance(one, Snapshot)]
        return posterior, history, kept, writer

    def _given(self, algorithm: Algorithm, start: Any, builder: Any) -> list[Tree | Snapshot]:
        """Where the members of the first stage start; a prior centred at the start means this one."""
        found = member_starts(self.problem.whole, algorithm, start, builder, self.random.fold("starts"))
        own = [self.placement.start(one) for one in found]
        for problem, first in ((self.problem.whole, found[0]), (self.problem, own[0])):
            problem.prior = problem.prior.bind(first.theta if isinstance(first, Snapshot) else first)
        return own

    def _shards(self, writer: ShardWriter | None) -> Streamed | None:
        """The draws on the disk; in a run's folder they are written by one rank and read by all."""
        if self.folder is not None:
            files, *_ = self.placement.group.every(None if writer is None else writer.close())
            return None if files is None else Streamed(ShardReader(self.folder, files))
        if writer is None:
            return None
        shards = Streamed(ShardReader(writer.folder, writer.close()))
        # draws without a run's folder live as long as their posterior
        weakref.finalize(shards.reader, shutil.rmtree, writer.folder, ignore_errors=True)
        return shards

    def _checkpoint(self) -> tuple[Tree, Position] | None:
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return None
        tensors, meta = load_checkpoint(self.folder)
        check_settings(meta["settings"], self.settings, self.folder)
        return self.placement.restored(tensors), Position.from_json(meta["position"])


def _fixed(budget: Budget, plan: Plan) -> Budget:
    """A stage with a plan of its own runs that many steps; one pass over the data where they are an epoch's."""
    return dataclasses.replace(budget, epochs=1 if plan.steps == plan.steps_per_epoch else None, patience=None)


def manifest_hash(folder: Path | None) -> str | None:
    there = folder is not None and (folder / MANIFEST).exists()
    return load_manifest(folder)["sha256"] if there and folder is not None else None
