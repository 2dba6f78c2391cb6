"""A fit on tensors that are not there: of each stage its start, its first step, its last, and what it leaves.

Survey and first batch are real; the rest follows `fit` and `Stages`, so that the same is held at the same time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch, tensors_in
from posterity.problem.data import Source
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.loop import validation_nll
from posterity.training.memory.imagined import Imagined
from posterity.training.memory.imagined_shards import emitted
from posterity.training.prepared import Prepared, built, chosen
from posterity.training.starts import member_starts

__all__ = ["ImaginedFit"]

_READ = (
    "validation", "batch_size", "data_size", "class_weight", "sample_weight", "target", "output", "device",
)  # fmt: skip
_ATTEMPTS = 3  # more steps for a posterior that needs several
_POSED = ("data_weight", "precision", "clip", "side_by_side")


class ImaginedFit:
    """The fit of these arguments. Raises what that one does before its first step."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.asked, self.method = asked, chosen(asked["method"])
        self.imagined = Imagined()
        self.random = Random(asked["seed"])
        self.state = self.step = self.between = self.disk = 0
        with self.imagined:
            self.builder, module = built(asked["network"], self.random)
        options = {name: asked[name] for name in _READ}
        self.prepared = Prepared(module, asked["data"], asked["likelihood"], self.random, **options)
        self.prepared.training = _Seen(self.prepared.training, self.prepared.found.first)
        if (held_out := self.prepared.held_out) is not None:
            self.prepared.held_out = _Seen(held_out, next(held_out.epoch(self.random)))
        tensors = {id(one): one for one in (*module.parameters(), *module.buffers())}
        self.network = sum(one.nbytes for one in tensors.values())

    def measured(self) -> dict[str, int]:
        """The bytes of a `MemoryEstimate`."""
        with self.imagined:
            network = self.prepared.network
            network.trainable = {name: self.imagined.like(one) for name, one in network.trainable.items()}
            network.replace_constants({name: self.imagined.like(one) for name, one in network.constants.items()})
            self._network_itself = self.imagined.peak = self.imagined.live
            kept = self._run()
            gc.collect()
            fitted = self.imagined.live - self._network_itself
            del kept
        found = {name: getattr(self, name) for name in ("network", "state", "step", "between", "disk")}
        return {**found, "fitted": fitted}

    def _run(self) -> Any:
        """What the fitted model keeps."""
        asked, first = self.asked, self.prepared.found.first
        problem = self.prepared.problem(asked["prior"], **{name: asked[name] for name in _POSED})
        self.prepared.probe(problem)
        start = asked["start"]
        plan = self.prepared.plan(asked["epochs"], asked["steps"], asked["accumulation"])
        stages = self.method.stages(plan) if start is None else self.method.stages_from_start(plan)
        for algorithm, _ in stages:
            algorithm.check(problem, first)
        given = member_starts(problem, stages[0][0], start, self.builder, self.random.fold("starts"))
        starts = given = tree_map_only(Tensor, self.imagined.like, given)
        problem.prior = problem.prior.bind(given[0].theta if isinstance(given[0], Snapshot) else given[0])
        snapshots: list[Any] = []
        state = shards = None
        for index, (algorithm, own) in enumerate(stages):
            stream = self.random.fold(f"stage {index} {algorithm.name}")
            state = algorithm.init(problem, starts, stream.fold("init"), own)
            self._outside()
            held_out = self.prepared.held_out if index == 0 or len(stages) == 1 else None
            state = self._steps(problem, algorithm, state, own, stream, held_out)
            if type(algorithm).emit is not Algorithm.emit:
                shards, self.disk = emitted(algorithm, state, own)
            if any(isinstance(one, Snapshot) for one in algorithm.snapshots(state)):
                snapshots = algorithm.snapshots(state)
            if index + 1 < len(stages):
                starts = algorithm.snapshots(state)
            self._outside()
        posterior = self._posterior(problem, algorithm, state, own, stream, shards)
        return problem, posterior, snapshots

    def _steps(
        self, problem: NetworkProblem, algorithm: Algorithm, state: Any, plan: Plan, stream: Random, held_out: Any
    ) -> Any:
        """The state after the first step and the last, which finds what the first left; each is validated."""
        batches = self.asked["accumulation"] * algorithm.members * _bytes(self.prepared.found.first)
        for t in sorted({0, plan.steps - 1}):
            state = self._stepped(problem, algorithm, _at(state, t), stream)
            held = self.imagined.live - self._network_itself
            more = self._peak() - held + batches
            if held + more > self.state + self.step:
                self.state, self.step = held, more
            if held_out is not None:
                nll = validation_nll(problem, algorithm.point(state), held_out, self.random)
                state = algorithm.validated(state, nll)
            algorithm.watch(problem, state)
            self._outside()
        return state

    def _stepped(self, problem: NetworkProblem, algorithm: Algorithm, state: Any, stream: Random) -> Any:
        first, parts = self.prepared.found.first, self.asked["accumulation"]
        batches = [first if parts == 1 else [first] * parts for _ in range(algorithm.members)]
        with problem.network.session(train=True):
            state, _ = algorithm.step(problem, state, batches, stream)
        return state

    def _posterior(
        self, problem: NetworkProblem, algorithm: Algorithm, state: Any, plan: Plan, stream: Random, shards: Any
    ) -> Posterior:
        """The last step again and again, until what comes of it no longer grows: SWAG's deviations."""
        size, posterior = -1, None
        for attempt in range(plan.steps + 1):
            self._peak()  # there is no such step in a fit
            try:
                posterior = algorithm.posterior(state, shards)
            except CompatibilityError:
                if attempt == _ATTEMPTS:
                    raise
            else:
                before, size = size, sum(one.nbytes for one in posterior.tensors().values())
                if before == size:
                    break
                self._outside()
            posterior = None
            state = self._stepped(problem, algorithm, _at(state, plan.steps - 1), stream)
        self._peak()
        return algorithm.posterior(state, shards) if posterior is None else posterior

    def _outside(self) -> None:
        self.between = max(self.between, self._peak())

    def _peak(self) -> int:
        """Above the network, since it was asked last."""
        found = self.imagined.peak - self._network_itself
        self.imagined.peak = self.imagined.live
        return found


class _Seen(Source):
    """A source of one batch, which was read before."""

    def __init__(self, source: Source, batch: Batch) -> None:
        super().__init__([batch], source.reader, source.what)

    def epoch(self, random: Random, skip: int = 0) -> Iterator[Batch]:
        yield self.loader[0]


def _at(state: Any, step: int) -> Any:
    return state._replace(step=torch.tensor(step)) if "step" in state._fields else state


def _bytes(batch: Batch) -> int:
    return sum(one.nbytes for _, one in tensors_in((batch.inputs, batch.targets, batch.weight)))
