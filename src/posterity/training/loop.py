"""The loop: batches in, steps, validation, checkpoints; one stage of an algorithm at a time.

Everything that a resumed run needs is in `Position` and the algorithm's State; everything else is derived from the seed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, NonFiniteError, StorageError
from posterity.history import History
from posterity.inference.algorithm import Algorithm, Plan
from posterity.posterior.files import strict_json
from posterity.posterior.shards import ShardWriter
from posterity.posterior.storage import save_checkpoint
from posterity.problem.batches import Batch
from posterity.problem.data import Source
from posterity.problem.problem import Info, NetworkProblem
from posterity.random import Random
from posterity.training.placement import HERE, Placement
from posterity.training.position import Position
from posterity.training.progress import Watch
from posterity.tree import Tree, member

__all__ = ["Budget", "account", "check_settings", "end_epoch", "run_stage", "validation_nll"]

Callback = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Budget:
    """How long a stage runs, and what it does on the way."""

    epochs: int | None  # None: until `plan.steps`
    accumulation: int = 1
    patience: int | None = None  # epochs without a better validation NLL of any member
    checkpoint_every: int | None = None  # steps; None: at the end of an epoch, or after a minute
    max_failures: int = 10  # non-finite steps in a row
    rows: int | None = None  # per epoch, where the survey knows


@dataclass
class _Checkpoints:
    folder: Path | None
    every: int | None
    settings: dict[str, Any]
    carried: Tree
    placement: Placement
    members: int  # of all ranks
    last: float = field(default_factory=time.monotonic)

    def due(self, step: int) -> bool:
        if self.folder is None:
            return False
        if self.every:
            return step % self.every == 0
        return self.placement.agreed(step, time.monotonic() - self.last > 60.0)

    def save(self, position: Position, state: Any, writer: ShardWriter | None) -> None:
        if self.folder is None:
            return
        if writer is not None:
            writer.flush()
            position.draws, position.digest = len(writer), writer.digest
        whole = self.placement.whole_position(position)
        flat = self.placement.flat(state, self.members)
        self.last = time.monotonic()
        if self.placement.writes:
            tensors = {**flat, **self.carried}
            content = {"position": strict_json(vars(whole), null=True), "settings": self.settings}
            save_checkpoint(self.folder, tensors, content)


def run_stage(
    problem: NetworkProblem,
    algorithm: Algorithm,
    plan: Plan,
    state: Any,
    position: Position,
    source: Source,
    random: Random,
    budget: Budget,
    *,
    validation: Source | None,
    folder: Path | None,
    settings: dict[str, Any],
    writer: ShardWriter | None,
    watch: Watch,
    callbacks: Sequence[Callback] = (),
    carried: Tree | None = None,
    placement: Placement = HERE,
) -> tuple[Any, History]:
    """Run one stage from `position` to its end; returns the last State and the history of all stages so far.

    `carried` goes into every checkpoint as it is: what earlier stages left. State and position are of all members, before
    and after; on the way every rank has those that `placement` gives it.

    Raises:
        NonFiniteError: `budget.max_failures` non-finite steps of a member in a row.
        DataError: an epoch that disagrees with the survey, or without any batch that can be trained on.
    """
    whole = algorithm.members
    position.failures = position.failures or [0] * whole
    position.consumed = position.consumed or [0] * whole
    checkpoints = _Checkpoints(folder, budget.checkpoint_every, settings, carried or {}, placement, whole)
    algorithm, state = placement.algorithm(algorithm), placement.state(state, whole)
    position = placement.position(position, whole)
    data, stream = placement.data(random, whole), placement.noise(random, whole)
    members = algorithm.members
    history = History(position.history)
    watch.stage(algorithm.name, plan.steps, position.step)
    if position.step == 0:
        checkpoints.save(position, state, writer)  # also a dry run: what cannot be saved is found out now
    with problem.network.session(train=True):
        while not _done(position, plan, budget):
            fresh = not any(position.consumed)
            streams = [_stream(problem, source, data, position, k) for k in range(members)]
            steps_before = position.step
            for batches in _batches(streams, budget.accumulation):
                state, info = algorithm.step(problem, state, batches, stream)
                account(position, info, budget.max_failures)
                placement.check(state, position.step + 1)
                if (emitted := algorithm.emit(state)) is not None:
                    emitted = placement.joined(emitted, whole)
                    if writer is not None:
                        writer.extend(emitted)
                position.step += 1
                if position.step == 1 and (line := algorithm.told(state)):
                    watch.say(line)
                watch.step(position.step, epoch=position.epoch + 1, nll=_nll(info), skipped=position.skipped)
                if budget.epochs is None and position.step >= plan.steps:
                    break
                if checkpoints.due(position.step):
                    checkpoints.save(position, state, writer)
            else:  # batches left out shorten one member's epoch and not another's: N is counted on the first's
                for _ in streams[0]:
                    pass
            if fresh and position.step == steps_before:
                raise DataError(
                    "an epoch had no batch that can be trained on: every target is ignored, or every batch has one row"
                )
            _check_rows(position, budget, source, members)
            state, row = end_epoch(problem, algorithm, state, position, validation, random, placement)
            history.append(row)
            position.history = list(history)
            for callback in callbacks if placement.writes else ():
                callback(dict(row))
            if not _done(position, plan, budget):
                checkpoints.save(position, state, writer)
    return placement.joined(state, whole), history


def _done(position: Position, plan: Plan, budget: Budget) -> bool:
    if budget.patience is not None and position.stale >= budget.patience:
        return True
    return position.step >= plan.steps if budget.epochs is None else position.epoch >= budget.epochs


def _stream(problem: NetworkProblem, source: Source, random: Random, position: Position, k: int) -> Iterator[Batch]:
    """Member k's batches of this epoch that can be trained on; counts what it hands out and what it leaves out."""
    several = problem.network.running_statistics_in_training()
    address = random.fold("data").fold(k).fold(position.epoch)
    for batch in source.epoch(address, skip=position.consumed[k]):
        position.consumed[k] += 1
        if k == 0:
            position.rows += batch.rows
        if (several and batch.rows < 2 * problem.group.size) or bool(problem.likelihood.void(batch.targets).all()):
            position.left_out += k == 0
            continue
        yield batch


def _batches(streams: list[Iterator[Batch]], accumulation: int) -> Iterator[list[Any]]:
    """One batch per member (a list of them with accumulation), until the shortest stream ends."""
    while True:
        step = [list(itertools.islice(stream, accumulation)) for stream in streams]
        if not all(step):
            return
        yield [parts[0] if accumulation == 1 else parts for parts in step]


def _nll(info: Info) -> float:
    finite = info.nll[info.finite]
    return float(finite.mean()) if finite.numel() else float("nan")


def account(position: Position, info: Info, max_failures: int) -> None:
    """Add one step to the sums of its epoch.

    Raises:
        NonFiniteError: the last `max_failures` steps of a member were not finite.
    """
    finite = (info.finite if info.lost is None else info.finite | info.lost.to(info.finite)).tolist()
    position.failures = [0 if fine else count + 1 for fine, count in zip(finite, position.failures)]
    if not all(finite):
        position.skipped += 1
        if (worst := max(position.failures)) >= max_failures:
            k = position.failures.index(worst)
            raise NonFiniteError(
                f"the loss or its gradient was not finite {worst} steps in a row (member {k}, epoch {position.epoch}, "
                f"batch {position.consumed[k] - 1}): lower the learning rate, clip the gradient, or scale the inputs"
            )
    if bool(info.finite.any()):
        _add(position.sums, "nll", _nll(info))
        _add(position.sums, "gradient_norm", float(info.gradient_norm[info.finite].mean()))
        for name, value in info.extra.items():
            _add(position.sums, name, float(value.float().mean()))
        _add(position.sums, "steps", 1.0)


def _add(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value


def _check_rows(position: Position, budget: Budget, source: Source, members: int) -> None:
    partial = budget.epochs is None
    if budget.rows is not None and not partial and position.epoch == 0 and position.rows != budget.rows:
        raise DataError(
            f"the survey counted {budget.rows} training rows per epoch and the first epoch gave {position.rows}; "
            "use a loader with a fixed length, or give data_size="
        )


def end_epoch(
    problem: NetworkProblem,
    algorithm: Algorithm,
    state: Any,
    position: Position,
    validation: Source | None,
    random: Random,
    placement: Placement = HERE,
) -> tuple[Any, dict[str, Any]]:
    """The state, told the validation NLL if there is any, and the epoch's line of the history."""
    steps = position.sums.pop("steps", 0.0)
    row: dict[str, Any] = {"stage": algorithm.name, "epoch": position.epoch, "step": position.step}
    row |= {name: total / steps for name, total in position.sums.items()} if steps else {"nll": float("nan")}
    row |= placement.watched(algorithm, problem, state)
    if "kl" in row:
        row["elbo"] = -problem.data_weight * problem.data_size * row["nll"] - row["kl"]
    if validation is not None:
        nll = validation_nll(problem, algorithm.point(state), validation, random)
        state = algorithm.validated(state, nll)
        nll = placement.nll(nll)
        row["val_nll"] = float(nll.mean())
        before = position.best or [math.inf] * len(nll)
        position.best = [min(old, new) if math.isfinite(new) else old for old, new in zip(before, nll.tolist())]
        position.stale = 0 if position.best != before else position.stale + 1
    row |= {"skipped": position.skipped, "left_out": position.left_out}
    row = placement.row(row, algorithm.members)
    row = {name: math.nan if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}
    position.epoch += 1
    position.consumed, position.sums = [0] * algorithm.members, {}
    position.rows = position.skipped = position.left_out = 0
    return state, row


def validation_nll(problem: NetworkProblem, thetas: Tree, source: Source, random: Random) -> Tensor:
    """[members] mean negative log-likelihood per row in evaluation mode, in network units."""
    members, group = next(iter(thetas.values())).shape[0], problem.group
    total, rows = torch.zeros(members, dtype=torch.float64), 0
    with torch.inference_mode(), problem.network.session(train=False):
        for i, batch in enumerate(source.epoch(random.fold("validation"))):
            rows += batch.rows
            if (own := problem.turn(i, batch)) is None:
                continue
            for k in range(members):
                theta = member(thetas, k)
                log_prob = problem.row_log_probs(theta, problem.outputs(theta, own), own.targets)
                total[k] -= log_prob[: own.rows].double().sum().cpu()
    if rows == 0:
        raise DataError("the validation data has no rows")
    return group.sum_(total.to(problem.network.device)).cpu() / rows


def check_settings(saved: dict[str, Any], now: dict[str, Any], where: Path) -> None:
    """Raise where a checkpoint belongs to another fit, naming what differs."""
    different = sorted(key for key in saved.keys() | now.keys() if saved.get(key) != now.get(key))
    if different:
        shown = "; ".join(f"{key}: {saved.get(key)!r} there, {now.get(key)!r} here" for key in different[:3])
        raise StorageError(f"{where} holds another fit, and resume=True continues the same one only ({shown})")
