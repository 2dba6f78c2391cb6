"""A table made ready for a fit: read, its target found, its rows split, its columns learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.settings import Settings
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.split import Split, split
from posterity.interfaces.tables.target import Target

if TYPE_CHECKING:
    import pandas

__all__ = ["Prepared", "Tell", "aim", "prepare"]

_STEPS = 4000  # of a fit, within these bounds of epochs
_EPOCHS = (20, 400)
_SHOWN_GROUPS = 50
_CALIBRATION = 30  # rows: fewer tell the scale of errors to worse than 1 / sqrt(2 * 30) = 13 %
_TASKS = {
    "categorical": "classification", "bernoulli": "classification", "gaussian": "regression",
    "heteroscedastic": "regression", "student-t": "regression", "poisson": "regression",
}  # fmt: skip

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A table that is read, split and encoded: all that is needed to fit, and checked before anything is written."""

    settings: Settings
    frame: pandas.DataFrame
    target: Target
    parts: Split
    columns: Columns
    inputs: Tensor
    y: Any

    def encoded(self, rows: np.ndarray[Any, Any]) -> tuple[Tensor, Any]:
        """Inputs [rows, width] and targets [rows] of some rows."""
        return self.inputs[torch.from_numpy(rows)], self.y[rows]

    @property
    def outputs(self) -> int:
        """What the network has to give: a logit per class, or a mean; two for a heteroscedastic likelihood."""
        if self.target.task == "classification":
            assert self.target.labels is not None
            return 1 if self.likelihood == "bernoulli" else len(self.target.labels)
        return 2 if self.likelihood == "heteroscedastic" else 1

    @property
    def likelihood(self) -> str:
        """As asked, else by the task."""
        return self.settings.likelihood or ("categorical" if self.target.task == "classification" else "gaussian")

    @property
    def calibrates(self) -> bool:
        """As asked, else wherever there are 30 validation rows and the likelihood has a temperature."""
        able = len(self.parts.validation) >= _CALIBRATION and self.likelihood != "poisson"
        return able if self.settings.calibrate is None else self.settings.calibrate

    @property
    def groups(self) -> list[str]:
        """The column that the split kept whole, where its groups are few enough to be looked at one by one."""
        name = self.settings.group
        return [name] if name is not None and self.frame[name].nunique() <= _SHOWN_GROUPS else []

    @property
    def prior(self) -> po.Prior:
        """Normal, of the std asked for over the root of a weight's fan-in: outputs then start at the target's scale."""
        return po.Normal(float(self.settings.prior), fan_in=True)

    @property
    def batch_size(self) -> int:
        """As asked, else 32 rows at least and 1024 at most, about 100 batches to the epoch between."""
        return self.settings.batch_size or int(
            min(max(2 ** round(np.log2(max(len(self.parts.train), 1) / 100)), 32), 1024)
        )

    @property
    def epochs(self) -> int:
        """As asked, else what makes 4000 steps, 20 at least and 400 at most."""
        per_epoch = -(-len(self.parts.train) // self.batch_size)
        return self.settings.epochs or int(min(max(-(-_STEPS // per_epoch), _EPOCHS[0]), _EPOCHS[1]))


def prepare(frame: pandas.DataFrame, settings: Settings, tell: Tell = lambda line: None) -> Prepared:
    """Find the target, split the rows, learn the columns from the training rows; `tell` hears what was decided.

    Raises DataError: whatever is wrong with the table; nothing is written.
    """
    target, y, parts = aim(frame, settings, tell)
    left_out = (target.name, *parts.not_features)
    try:
        columns = Columns.learn(frame.iloc[parts.train], leave_out=left_out, drop=settings.drop)
    except DataError:
        Columns.learn(frame, leave_out=left_out, drop=settings.drop)  # the same fault, with the rows of the file
        raise
    inputs = columns.encode(frame)  # what cannot be read is found before the fit, in whichever part it is
    for line in (*parts.said, *columns.said):
        tell(line)
    return Prepared(settings, frame, target, parts, columns, inputs, y)


def aim(frame: pandas.DataFrame, settings: Settings, tell: Tell = lambda line: None) -> tuple[Target, Any, Split]:
    """The target, its values [rows], and the parts of the rows. Raises DataError as `prepare`."""
    if missing := [name for name in settings.drop if name not in frame.columns]:
        raise DataError(f"--drop names columns that are not there: {', '.join(missing)}")
    target, said = Target.guess(frame.drop(columns=list(settings.drop)), settings.target, _task(settings))
    for line in said:
        tell(line)
    for option in ("split_column", "group", "time"):
        if getattr(settings, option) == target.name:
            raise DataError(
                f"the rows cannot be split by the target {target.name!r}: --{option.replace('_', '-')} another"
            )
    y = target.read(frame)
    parts = split(
        frame, target, validation=settings.validation, test=settings.test, column=settings.split_column,
        group=settings.group, time=settings.time, seed=settings.split_seed,
    )  # fmt: skip
    return target, y, parts


def _task(settings: Settings) -> str | None:
    """The task that was asked for, or that the likelihood is one for."""
    if settings.likelihood is None:
        return settings.task
    if settings.likelihood not in _TASKS:
        raise CompatibilityError(
            f"no likelihood for tables is called {settings.likelihood!r}: there are {', '.join(_TASKS)}"
        )
    task = _TASKS[settings.likelihood]
    if settings.task not in (None, task):
        raise CompatibilityError(f"the {settings.likelihood} likelihood is one for a {task}, not for a {settings.task}")
    return task
