"""Killed and resumed where it is hard: in a later stage, with workers, with targets missing, between any two operations on
files. The contract kills every algorithm in the middle of an epoch; these go beyond it.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.toy import SGLD
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.posterior.storage import CHECKPOINT, MANIFEST, load_checkpoint
from posterity.testing.expect import same
from posterity.testing.resume import all_draws, killed_and_compared, same_model
from posterity.testing.worlds import Augmented, Fuse, batch_norm_network, inputs, labels, loader, plain_network

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")

Method = po.Algorithm


def test_in_the_second_stage() -> None:
    """The third kill falls into Laplace's own pass: the snapshots of the MAP stage before it are there all the same."""
    folders: list[Path] = []

    def fit_it(method: Method, fuse: Fuse | None, folder: Path, resume: bool) -> po.BayesianModel:
        folders.append(folder)
        return po.fit(
            batch_norm_network(), loader(fuse), method=method, epochs=2, out=folder, resume=resume, checkpoint_every=1
        )

    # The survey and 3 epochs of 23 rows are read. 37 rows: epoch 0. 60, after another survey: epoch 1.
    # 23 + 23 + 14: the third has the rest of epoch 1 at most, and dies in Laplace's second batch.
    killed_and_compared(po.LastLayerLaplace(), fit_it, (37 / 92, 60 / 92, 0.59))
    assert len(folders) == 3


@pytest.mark.parametrize("persistent", [False, True], ids=["workers", "persistent-workers"])
def test_with_workers(persistent: bool, tmp_path: Path) -> None:
    """Two members read the same loader in turns, each with its own workers and the augmentation of its own address."""

    def batches(fuse: Fuse | None = None) -> DataLoader:
        return loader(fuse, num_workers=1, persistent_workers=persistent)

    def fit_it(folder: Path, resume: bool, stop: bool = False) -> po.BayesianModel:
        options: dict[str, Any] = {"out": folder, "resume": resume, "checkpoint_every": 1}
        return po.fit(_Stops(stop), batches(), method=po.DeepEnsemble(2), epochs=2, **options)

    whole = fit_it(tmp_path / "whole", False)
    with pytest.raises(KeyboardInterrupt):
        fit_it(tmp_path / "parts", False, stop=True)
    assert load_checkpoint(tmp_path / "parts")[1]["position"]["step"] == 2
    same_model(fit_it(tmp_path / "parts", True), whole, "of the resumed fit")


class _Stops(torch.nn.Module):
    """Interrupts the fit in its third step: in forward 1 + 2 * 2 + 1, after the probe and two steps of two members."""

    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.body, self.fuse = batch_norm_network(), Fuse(7 if stop else None, self._interrupt)

    @staticmethod
    def _interrupt() -> None:
        raise KeyboardInterrupt

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.fuse.burn()
        return self.body(x)


def test_with_a_number_of_steps_and_patience() -> None:
    """`steps=` ends in the middle of an epoch; patience counts on over the kill."""
    x, y = inputs(7, seed=5), labels(inputs(7, seed=5))

    def in_steps(method: Method, fuse: Fuse | None, folder: Path, resume: bool) -> po.BayesianModel:
        return po.fit(
            plain_network(), loader(fuse), method=method, steps=10, out=folder, resume=resume, checkpoint_every=3
        )

    killed_and_compared(po.IVON(), in_steps, (0.6, 0.7))

    def patient(method: Method, fuse: Fuse | None, folder: Path, resume: bool) -> po.BayesianModel:
        return po.fit(
            plain_network(), loader(fuse), method=method, epochs=50, patience=2, validation=(x + 3.0, y), out=folder,
            resume=resume,
        )  # fmt: skip

    killed_and_compared(po.MAP(learning_rate=0.1), patient, (0.5, 0.6))


def test_with_targets_missing(tmp_path: Path) -> None:
    """Batches of ignored targets are left out: members' epochs then differ in length, and N is still what the survey saw."""
    x, y = inputs(), labels(inputs())
    y[5:21] = -100

    def fit_it(method: Method, fuse: Fuse | None, folder: Path, resume: bool) -> po.BayesianModel:
        data = DataLoader(Augmented(x, y, fuse), batch_size=2, shuffle=True)
        return po.fit(
            batch_norm_network(), data, method=method, epochs=5, out=folder, resume=resume, checkpoint_every=1, seed=3
        )

    killed_and_compared(po.DeepEnsemble(3), fit_it)
    model = fit_it(po.DeepEnsemble(3), None, tmp_path, False)
    # Half of the pairs are void: 12 batches leave 6 +- 2, another number for each member and epoch. With this seed the
    # first member's first epoch is the longest: its last rows are seen, and counted, all the same.
    assert all(1 < row["left_out"] < 11 for row in model.history)


def test_a_first_validation_that_is_not_finite(tmp_path: Path) -> None:
    """The best NLL is unknown and the history holds NaN: neither is lost on the way through a checkpoint."""
    x = inputs()
    net = _Poisoned()

    def fit_it(folder: Path, resume: bool, stop: bool = False) -> po.BayesianModel:
        net.factor.value = 1.0 if resume else torch.nan

        def after_epoch(row: dict[str, Any]) -> None:
            net.factor.value = 1.0
            if stop and row["epoch"] == 1:
                raise KeyboardInterrupt

        options: dict[str, Any] = {"validation": (x, x[:, 0]), "out": folder, "resume": resume, "patience": 3}
        data = DataLoader(TensorDataset(x, x[:, 0]), batch_size=7)
        return po.fit(net, data, "gaussian", po.MAP(), epochs=4, callbacks=[after_epoch], **options)

    whole = fit_it(tmp_path / "whole", False)
    assert [row["val_nll"] == row["val_nll"] for row in whole.history] == [False, True, True, True]
    with pytest.raises(KeyboardInterrupt):
        fit_it(tmp_path / "parts", False, stop=True)
    same_model(fit_it(tmp_path / "parts", True), whole, "of the resumed fit")
    same_model(po.load(tmp_path / "whole", net), whole, "of the loaded run")


class _Poisoned(torch.nn.Module):
    """Says `factor` times what it should, in evaluation mode."""

    class Factor:
        value = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.body, self.factor = plain_network(1), self.Factor()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * (1.0 if self.training else self.factor.value)


def dies(event: int, folder: Path, work: Callable[[], Any]) -> bool:
    """Run `work` in a child that dies just before operation number `event` on a file of `folder`; whether it died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        count = 0

        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if name in ("open", "os.rename", "os.remove") and str(folder) in str(arguments[0]):
                count += 1
                if count > event:
                    os._exit(9)

        sys.addaudithook(hook)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9), code
    return code == 9


@pytest.mark.parametrize(
    ("method", "again"),
    [
        pytest.param(SGLD(), True, id="shards-over-another-run"),
        pytest.param(SGLD(), False, id="shards", marks=pytest.mark.slow),
        pytest.param(po.MAP(), True, id="map-over-another-run", marks=pytest.mark.slow),
        pytest.param(po.MAP(), False, id="map", marks=pytest.mark.slow),
    ],
)
def test_between_any_two_operations_on_files(method: Method, again: bool, tmp_path: Path) -> None:
    """Whatever file the process was about to touch, resuming ends in the run that was never killed."""
    x = inputs(7)

    def fit_it(folder: Path, resume: bool = False, seed: int = 0) -> po.BayesianModel:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", po.PosterityWarning)  # a finished run is said to be one
            return po.fit(
                plain_network(), (x, labels(x)), method=method, epochs=1, batch_size=3, out=folder, resume=resume,
                seed=seed, checkpoint_every=2,
            )  # fmt: skip

    if again:
        fit_it(tmp_path / "old", seed=1)
        shutil.copytree(tmp_path / "old", tmp_path / "whole")
    wanted = fit_it(tmp_path / "whole")
    event, died = 0, True
    while died:
        folder = tmp_path / f"killed{event}"
        if again:
            shutil.copytree(tmp_path / "old", folder)
        died = dies(event, folder, lambda folder=folder: fit_it(folder))  # type: ignore[misc]
        stands = again and (folder / MANIFEST).read_bytes() == (tmp_path / "old" / MANIFEST).read_bytes()
        if stands and not (folder / CHECKPOINT).exists():
            event += 1  # killed before the first checkpoint: the old run stands, and is another fit
            continue
        found = fit_it(folder, resume=True)
        where = f"after a kill before file operation {event}"
        same(all_draws(found.posterior), all_draws(wanted.posterior), f"the draws {where}")
        same(list(found.history), list(wanted.history), f"the history {where}")
        left = [file for file in os.listdir(folder) if file == CHECKPOINT or file.endswith(".tmp")]
        assert not left, f"{left} are left {where}"
        event += 1
    assert event > 10
