"""SIGKILL at random moments of fits and of saves, and what is there afterwards.

A fit is forked, killed after a random share of the time that a whole one takes, and resumed by the next fork; one that
comes to its end is compared with the run that was never killed, file by file, and the next begins. A process that saves
over one run again and again says which save returned last: that one or the next must be there, whole.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from posterity.bench.bench import Row
from posterity.errors import PosterityError, PosterityWarning
from posterity.inference.algorithm import Algorithm
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.map import MAP
from posterity.inference.sghmc import SGHMC
from posterity.model import BayesianModel, load
from posterity.posterior.point import Point
from posterity.posterior.storage import CHECKPOINT, MANIFEST, load_checkpoint
from posterity.random import Random
from posterity.training.fit import fit

__all__ = ["FITS", "killed_fits", "killed_saves"]

FITS: dict[str, Algorithm] = {
    "map": MAP(),
    "ensemble": DeepEnsemble(2),
    "sghmc": SGHMC(members=2, warmup=10, draws_per_chain=10, thin=2),
}
WIDTH = 400  # of the hidden layer: about 14,000 weights
MOMENTS = ("before", "writing", "between", "after")


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(23, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 11))


def _fit(method: Algorithm, folder: Path) -> BayesianModel:
    x = Random(0).fold("kills").normal((210, 23))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosterityWarning)  # that a run is finished
        return fit(
            _network, (x, x[:, :11].argmax(1)), "categorical", method, epochs=5, batch_size=21, seed=0, progress=False,
            out=folder, resume=True, checkpoint_every=2,
        )  # fmt: skip


def killed_fits(name: str, kills: int) -> list[Row]:
    """One row: `kills` of the fit of this name that landed, by where they did, and what was lost or came out otherwise."""
    chance, found = random.Random(name), Counter[str]()
    with tempfile.TemporaryDirectory() as root:
        whole = Path(root, "whole")
        began = time.monotonic()
        _ends(lambda: _fit(FITS[name], whole))
        lasts, wanted = time.monotonic() - began, _hashes(whole)
        folder, reached = Path(root, "0"), -1.0
        while found["kills"] < kills:
            code, pid = _killed(lambda folder=folder: _fit(FITS[name], folder), lasts * chance.random())  # type: ignore[misc]
            if code == -signal.SIGKILL:
                found["kills"] += 1
                found[_moment(folder, pid)] += 1
                now = _progress(folder)
                found["lost"] += now < reached
                reached = now
                continue
            found["lost"] += code != 0  # it could not be resumed
            found["runs"] += 1
            found["different"] += _hashes(folder) != wanted
            folder, reached = Path(root, str(found["runs"])), -1.0
        _ends(lambda: _fit(FITS[name], folder))
        found["runs"] += 1
        found["different"] += _hashes(folder) != wanted
    return [_row(name, found, lasts)]


def _row(name: str, found: Counter[str], seconds: float) -> Row:
    counts = {key: found[key] for key in (*MOMENTS, "runs", "lost", "different")}
    return {"what": name, "tries": found["kills"], **counts, "seconds": seconds}


def _ends(work: Callable[[], object]) -> None:
    """Run `work` in a forked child to its end."""
    if code := os.waitstatus_to_exitcode(os.waitpid(_forked(work), 0)[1]):
        raise PosterityError(f"a run that nobody killed ended with {code}")


def _killed(work: Callable[[], object], after: float) -> tuple[int, int]:
    """Run `work` in a child that is killed after so many seconds: -9, or its exit code where it was quicker; its number."""
    pid = _forked(work)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)  # it is not waited for yet: the number is its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pid


def _forked(work: Callable[[], object]) -> int:
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _moment(folder: Path, pid: int) -> str:
    """Where a process was killed: before its first file, while it wrote one, between two, or after the run was whole."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if any(name.endswith(".tmp") and f".{pid}." in name for name in names):
        return "writing"
    return "after" if MANIFEST in names else "between" if CHECKPOINT in names else "before"


def _progress(folder: Path) -> float:
    """How far the run of a folder is: -1 where there is none, or none that can be read."""
    if (folder / MANIFEST).exists():
        return float("inf")
    try:
        position = load_checkpoint(folder)[1]["position"]
    except PosterityError:
        return -1
    return float(position["step"] + 1_000_000 * position["stage"])


def killed_saves(kills: int) -> list[Row]:
    """One row: `kills` of a process that saves one model after another over the same run."""
    chance, found = random.Random("saves"), Counter[str]()
    x = Random(0).fold("kills").normal((21, 23))
    model = fit(_network(), (x, x[:, :11].argmax(1)), "categorical", MAP(), steps=1, seed=0, progress=False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "run")
        reached, pace = 0, 0.0
        while found["kills"] < kills:
            reader, writer = os.pipe()
            pid = _forked(lambda reached=reached, writer=writer: _saves(model, folder, reached, writer))  # type: ignore[misc]
            os.close(writer)
            time.sleep(pace * chance.uniform(0, 5))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with os.fdopen(reader, "rb") as said:
                returned = reached + len(said.read())
            found["kills"] += 1
            found[_moment(folder, pid)] += 1
            held = _held(folder) if (folder / MANIFEST).exists() else 0
            found["lost"] += held is None or held < returned
            found["different"] += held is not None and held > returned + 1
            reached = held or 0
            pace = pace or _pace(model, root)
        found["runs"] = reached
    return [_row("saves", found, time.monotonic() - began)]


def _saves(model: BayesianModel, folder: Path, last: int, writer: int) -> None:
    """Save without end, one byte into the pipe after each save that returned."""
    while True:
        last += 1
        _filled(model, last).save(folder)
        os.write(writer, b".")


def _filled(model: BayesianModel, value: int) -> BayesianModel:
    """The model with this number in all of its weights and as its seed."""
    model.posterior = Point({name: torch.full_like(leaf, value) for name, leaf in model.posterior.tensors().items()})
    model.snapshots, model.settings["seed"] = [], value
    return model


def _held(folder: Path) -> int | None:
    """The number of the run in a folder; None where it is not one and the same everywhere, or cannot be read."""
    try:
        model = load(folder, _network())
    except PosterityError:
        return None
    values = {int(value) for leaf in model.posterior.tensors().values() for value in leaf.unique()}
    return values.pop() if values == {model.settings["seed"]} else None


def _pace(model: BayesianModel, root: str) -> float:
    began = time.monotonic()
    _filled(model, 0).save(Path(root, "pace"))
    return time.monotonic() - began
