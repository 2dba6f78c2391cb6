"""Killed and resumed equals uninterrupted, to the bit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posterity.errors import PosterityWarning
from posterity.inference.algorithm import Algorithm
from posterity.model import BayesianModel
from posterity.posterior.posterior import Posterior
from posterity.posterior.storage import CHECKPOINT, load_checkpoint
from posterity.random import Random
from posterity.testing.case import Case
from posterity.testing.expect import expect, same
from posterity.testing.worlds import Fuse, batch_norm_network, inputs, labels, loader
from posterity.training.fit import fit
from posterity.tree import Tree

__all__ = ["all_draws", "killed_and_compared", "killed_and_resumed", "same_model"]

EPOCHS = 4
Fit = Callable[[Algorithm, Fuse | None, Path, bool], BayesianModel]


def killed_and_resumed(case: Case) -> None:
    """A process that fits is killed in the middle of an epoch, the one that resumes it as well, and what the third makes of
    it equals an uninterrupted fit: every tensor of the posterior and the snapshots, the history, the predictions.

    The loader shuffles with its own generator, its rows are augmented by torch's, numpy's and Python's generators, the
    network normalises batches and drops out, a step accumulates two batches, and there is validation data.
    """
    killed_and_compared(case.algorithm, augmented_fit)


def augmented_fit(algorithm: Algorithm, fuse: Fuse | None, folder: Path, resume: bool) -> BayesianModel:
    x = inputs(7, seed=5)
    return fit(
        batch_norm_network(), loader(fuse), "categorical", algorithm, epochs=EPOCHS, accumulation=2,
        validation=(x, labels(x)), out=folder, resume=resume, checkpoint_every=1,
    )  # fmt: skip


def killed_and_compared(algorithm: Algorithm, fit_it: Fit, shares: tuple[float, ...] = (0.4, 0.65)) -> None:
    """Kill `fit_it` after a share of the rows that it reads, its successor after another share, and compare the third."""
    with tempfile.TemporaryDirectory() as name:
        whole, parts = Path(name, "whole"), Path(name, "parts")
        reads = Fuse()
        wanted = fit_it(algorithm, reads, whole, False)
        before = 0
        for share in shares:
            _killed(fit_it, algorithm, int(share * reads.count), parts, before > 0)
            position = load_checkpoint(parts)[1]["position"]
            steps = position["step"] + 1000 * position["stage"]
            expect(steps > before, f"nothing was saved before the kill: a checkpoint of step {steps} after {before}")
            before = steps
        again = Fuse()
        found = fit_it(algorithm, again, parts, True)
        expect(again.count < reads.count, "the resumed fit read as many rows as a whole one: it began anew")
        same_model(found, wanted, "of the resumed fit")
        left = sorted(path.name for path in parts.iterdir())
        same(left, sorted(path.name for path in whole.iterdir()), "the files of the resumed run")
        expect(CHECKPOINT not in left, "a finished run keeps its checkpoint")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosterityWarning)  # that the run is finished
            same_model(fit_it(algorithm, None, parts, True), wanted, "of the finished run, resumed")


def _killed(fit_it: Fit, algorithm: Algorithm, at: int, folder: Path, resume: bool) -> None:
    """Run `fit_it` in a process that is killed when it reads row number `at`."""
    # A fork spares the import of torch; it cannot go on with an accelerator's threads.
    forks = "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_available()
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: this child is killed soon
        process = context.Process(target=_dies, args=(fit_it, algorithm, at, folder, resume))
        process.start()
    process.join(120)
    expect(process.exitcode not in (None, 0, 1), f"the process was to be killed and ended with {process.exitcode}")
    process.close()


def _dies(fit_it: Fit, algorithm: Algorithm, at: int, folder: Path, resume: bool) -> None:
    torch.set_num_threads(1)  # a forked child has no pool of threads
    fit_it(algorithm, Fuse(at, _kill), folder, resume)


def _kill() -> None:
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def all_draws(posterior: Posterior, draws: int = 3) -> list[Tree]:
    """Every draw of a finite posterior, else a few."""
    return list(posterior.draws(posterior.finite or draws, Random(0)))


def same_model(found: BayesianModel, wanted: BayesianModel, what: str) -> None:
    """Posterior, snapshots, history and predictions, to the bit."""
    same(found.posterior.tensors(), wanted.posterior.tensors(), f"the posterior {what}")
    same(all_draws(found.posterior), all_draws(wanted.posterior), f"the draws {what}")
    same([s.flat() for s in found.snapshots], [s.flat() for s in wanted.snapshots], f"the snapshots {what}")
    same(list(found.history), list(wanted.history), f"the history {what}")
    x = inputs(11, seed=9)
    same(_said(found.predict(x)), _said(wanted.predict(x)), f"the prediction {what}")


def _said(pred: Any) -> dict[str, Any]:
    return {name: getattr(pred, name) for name in pred.row_axis}
