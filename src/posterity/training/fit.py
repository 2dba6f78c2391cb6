"""`fit`: a network and data in, a `BayesianModel` out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.group import ALONE
from posterity.inference.algorithm import Algorithm
from posterity.model import BayesianModel, load
from posterity.posterior.storage import CHECKPOINT, load_checkpoint, load_manifest, prepare_folder
from posterity.problem.likelihoods import Likelihood
from posterity.problem.priors import Prior
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.loop import Budget, Callback, check_settings
from posterity.training.placed import placed
from posterity.training.prepared import Prepared, built, chosen
from posterity.training.progress import watching
from posterity.training.settings import settings_of
from posterity.training.stages import Stages, manifest_hash
from posterity.training.survey import Survey
from posterity.tree import count, weights

__all__ = ["fit"]


def fit(
    network: nn.Module | Callable[[], nn.Module],
    data: Any,
    likelihood: Likelihood | str = "categorical",
    method: Algorithm | None = None,
    prior: Prior | str | float = 1.0,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    validation: Any = None,
    batch_size: int | None = None,
    data_size: int | None = None,
    data_weight: float = 1.0,
    class_weight: Any = None,
    sample_weight: Any = None,
    target: str | int | None = None,
    output: Any = None,
    start: Any = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: str = "float32",
    clip: float | None = None,
    side_by_side: str = "auto",
    accumulation: int = 1,
    patience: int | None = None,
    max_failures: int = 10,
    callbacks: Sequence[Callback] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    distribute: str | None = None,
) -> BayesianModel:
    """Fit a posterior over the weights of a network.

    Args:
        network: any `nn.Module` (it is never changed), or a function without arguments that builds one (then the members
            of an ensemble are built, not reset).
        data: a `DataLoader`, a `Dataset`, or `(inputs, targets)` of tensors, arrays, frames or lists. Batches are
            `(inputs, targets)`, `(x1, x2, targets)`, or dicts with `target=` their target's key.
        likelihood: a name ("categorical", "bernoulli", "multilabel", "gaussian", "heteroscedastic", "student-t",
            "poisson", "tokens") or a `Likelihood`.
        method: an algorithm; `MAP()` unless given.
        prior: a `Prior`, or the std of a normal one.
        epochs, steps: how long; one of them, 10 epochs unless given. With stages (Laplace after MAP) they count the first.
        validation: like `data`; or, for data given whole, the share of rows to hold out, in (0, 1).
        batch_size: rows per batch where `data` brings none; 64 unless given.
        data_size: N, where the data has no length (or stands for more rows than it has).
        data_weight: w; every row counts w times (w N is the effective number of rows).
        class_weight: per class, or "balanced"; multiplies the log-likelihood of rows of that class.
        sample_weight: [rows] for data given whole; else the weights' key or position in a batch.
        target: the target's key or position in a batch.
        output: which of several outputs the likelihood sees: an index, a key or attribute, or a function.
        start: weights to start at: a fitted model, its run folder, a state dict, `Snapshot`s, or a list of these.
        seed: of everything random in this fit and, unless overridden, in its predictions.
        device: where to compute; where the network is unless given.
        precision: "float32" or "bf16" (autocast of the forward only).
        clip: largest norm of the mean loss's gradient.
        side_by_side: how the members of an ensemble, or chains, are evaluated: "flat" (perceptrons: one product per layer),
            "vmap", "loop" (one after the other), or "auto", the fastest that the network allows. They agree to rounding.
        accumulation: batches per step; their rows count as one batch.
        patience: stop after so many epochs without a better validation NLL.
        max_failures: non-finite steps in a row that end the fit; fewer are skipped and counted.
        callbacks: called with each epoch's line of the history.
        out: folder of the run: checkpoints on the way, the whole run at the end.
        resume: go on from the checkpoint in `out`, or return the finished run in it; start where there is neither.
        checkpoint_every: steps between checkpoints; by default each epoch and each minute.
        progress: show a progress line on stderr; on terminals only unless given.
        distribute: over the ranks of `torch.distributed`, each of which calls `fit` with the same arguments and gets the
            same model: "rows" (each has a share of every batch) or "members" (each has some members or chains). The seed
            finds what it finds in one process, to rounding; dropout and batch statistics are each rank's own. "draws" is
            "rows" where every rank draws weights of its own, for variational methods: less noise a step. "shards" is for a
            network that is too large for a rank to train: each has rows of every weight and of its state (FSDP2), and the
            noise in them is its own; `device` has those, and the fitted posterior, whole, and checkpoints are in the host's
            memory. For one member of a method that treats weights apart. Rank 0 writes `out`, on a disk that all see.
            None: this process works alone.

    Raises:
        DataError: empty, non-finite or misshapen data; one class; no length and no `data_size`.
        CompatibilityError, PriorError: parts that do not go together.
        NonFiniteError: the loss stopped being finite.
        StorageError: `out` holds something else.
    """
    method = chosen(method)
    if epochs is not None and steps is not None:
        raise CompatibilityError("give epochs= or steps=, not both")
    counts = {"epochs": epochs, "steps": steps, "patience": patience, "checkpoint_every": checkpoint_every}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise CompatibilityError(f"{name} must be at least 1, got {value}")
    if not isinstance(seed, Integral) or seed < 0:
        raise CompatibilityError(f"seed must be a whole number of at least 0, got {seed}")
    if accumulation < 1:
        raise CompatibilityError(f"accumulation must be at least 1, got {accumulation}")
    if resume and out is None:
        raise CompatibilityError("resume=True needs out=, the folder of the run to go on with")
    if patience is not None and validation is None:
        raise CompatibilityError("patience= needs validation=: nothing else tells when to stop")
    seed = int(seed)  # numpy's integers are no JSON
    random = Random(seed)
    placement = placed(distribute, method)
    if clip is not None and placement.own_draws:
        raise CompatibilityError("clip= is of the mean gradient, and with distribute='draws' ranks have their own")
    with placement.group.in_turn():
        folder = None if out is None else prepare_folder(out) if placement.writes else Path(out)

    builder, module = built(network, random)
    prepared = Prepared(
        module, data, likelihood, random, validation=validation, batch_size=batch_size, data_size=data_size,
        class_weight=class_weight, sample_weight=sample_weight, target=target, output=output,
        device=placement.device(device),
    )  # fmt: skip
    found = prepared.found
    problem = prepared.problem(
        prior, data_weight=data_weight, precision=precision, clip=clip, side_by_side=side_by_side
    )
    problem, placement = placement.problem(problem, device)
    if problem.group.size > 1 and prepared.network.running_statistics_in_training():
        warnings.warn(
            "every rank normalises its own rows of a batch, so that this is not the fit of one process; that of "
            "distribute='members' is, and that of a network without batch normalisation",
            PosterityWarning,
            stacklevel=2,
        )
    prepared.probe(problem)

    whole = 10 if epochs is None and steps is None else epochs
    plan = prepared.plan(whole, steps, accumulation)
    stages = method.stages(plan) if start is None else method.stages_from_start(plan)
    for algorithm, _ in stages:
        algorithm.check(problem, found.first)
    settings = settings_of(problem, method, plan, whole, steps, seed, accumulation, patience)
    if placement.own_draws:
        settings["distribute"] = "draws"
    if resume and folder is not None:
        with placement.group.in_turn():
            finished = _finished(folder, module, settings, output, device)
        if finished is not None:
            return finished
    budget = Budget(whole, accumulation, patience, checkpoint_every, max_failures, None if data_size else found.rows)
    run = Stages(problem, prepared.training, prepared.held_out, random, folder, settings, callbacks, placement)
    with watching(progress if placement.writes else False) as watch:
        watch.say(_headline(problem.whole, method, found))
        posterior, history, snapshots, writer = run.run(stages, plan, budget, start, builder, resume, watch)
    problem = problem.whole
    problem.group = problem.drawing = ALONE
    model = BayesianModel(problem, posterior, settings=settings, history=history, snapshots=snapshots)
    if folder is not None and placement.writes:
        model.save(folder, shards=None if writer is None else writer.close())
        (folder / CHECKPOINT).unlink(missing_ok=True)
    placement.group.wait()
    return model


def _headline(problem: NetworkProblem, method: Algorithm, found: Survey) -> str:
    size = count(weights(problem.start()))
    members = f" x {method.members} members" if method.members > 1 else ""
    return (
        f"{method.title}{members}: {size:,} weights, N = {problem.data_size:,} rows, data_weight {problem.data_weight:g}, "
        f"{problem.likelihood.name} likelihood, {problem.prior.name} prior, {found.batches} batches an epoch"
    )


def _finished(
    folder: Path, module: nn.Module, settings: dict[str, Any], output: Any, device: Any
) -> BayesianModel | None:
    """The run in `folder`, where it is this fit's. A kill after the save and before the checkpoint went leaves both."""
    found = manifest_hash(folder)
    if found is None:
        return None
    if (folder / CHECKPOINT).exists() and load_checkpoint(folder)[1]["position"]["replaces"] == found:
        return None
    check_settings({key: v for key, v in load_manifest(folder).items() if key in settings}, settings, folder)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    warnings.warn(f"{folder} holds this fit, finished: it is returned as it is", PosterityWarning, stacklevel=3)
    return load(folder, module, output=output, device=device)
