"""A fitted table: frame in, predictions in the target's units out; a run folder that knows its columns.

The folder holds the run as `po.load` reads it, `table.json` (the columns, the target, the network) and
`training-rows.safetensors` (a 64-bit key of the features of each row that was trained on, so that an evaluation can say
how many of its rows are among them).
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import posterity as po
from posterity.errors import DataError, PosterityWarning, StorageError
from posterity.interfaces.methods import DEFAULT
from posterity.interfaces.ranks import distribution, own
from posterity.interfaces.settings import Named, Settings, build_method, build_network, network_for
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.prepared import Prepared, Tell
from posterity.interfaces.tables.read import read_table
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import plural
from posterity.models.tabular import describe
from posterity.posterior.files import atomic_json, read_json
from posterity.posterior.storage import CHECKPOINT, MANIFEST
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.random import Random

if TYPE_CHECKING:
    import pandas

__all__ = ["TABLE", "TableModel", "fit_table", "read", "row_keys"]

TABLE = "table.json"
ROWS = "training-rows.safetensors"


def read(settings: Settings, tell: Tell) -> pandas.DataFrame:
    """The table that settings name; `tell` hears what was decided on the way. Raises DataError."""
    assert settings.data is not None
    return read_table(settings.data, tell)


def fit_table(
    prepared: Prepared,
    out: str | os.PathLike[str],
    *,
    method: Named | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
    tell: Tell = lambda line: None,
) -> TableModel:
    """Fit a network to the training rows and leave the whole run in `out`.

    Args:
        method, epochs, seed: other than those of the settings, for comparisons.
        resume: go on with, or return, what `out` holds.

    Raises:
        StorageError: `out` holds something, and not to be resumed.
        CompatibilityError, DataError: as `po.fit`.
    """
    settings, out = prepared.settings, Path(out)
    named = method or settings.method or DEFAULT
    algorithm = build_method(named, settings.rank if method is None else None)
    seed = settings.seed if seed is None else seed
    width, outputs = prepared.columns.width, prepared.outputs

    described = network_for(settings.network, algorithm)

    def network() -> torch.nn.Module:
        return build_network(described, width, outputs)

    with Random(seed).fold("describe").forked():
        tell(f"network: {describe(network())}")
    if (out / MANIFEST).exists():
        if not resume:
            raise StorageError(f"{out} holds a run already: --resume goes on with it, another --out leaves it alone")
        tell(f"{out} holds a finished run: it is taken where it is this one")
    train = prepared.encoded(prepared.parts.train)
    validation = prepared.encoded(prepared.parts.validation) if len(prepared.parts.validation) else None
    if settings.calibrate and validation is None:
        raise DataError("a temperature is fitted on validation rows: --validation 0.15, or without --calibrate")
    with _left_as_found(out), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*finished: it is returned as it is", PosterityWarning)
        model = po.fit(
            network, train, prepared.likelihood, algorithm, prepared.prior,
            epochs=prepared.epochs if epochs is None else epochs,
            validation=validation, batch_size=prepared.batch_size, data_weight=float(settings.data_weight), seed=seed,
            out=out, resume=resume, progress=progress, distribute=distribution(algorithm),
        )  # fmt: skip
    out = own(out)
    keys = row_keys(train[0])
    write_tensors(out / ROWS, {"keys": keys})
    if prepared.calibrates and model.calibration is None:
        _calibrate(model, validation, out, tell)
    atomic_json(out / TABLE, _record(prepared, named, described))
    return TableModel(model, prepared.columns, prepared.target, keys)


def _calibrate(model: po.BayesianModel, validation: Any, out: Path, tell: Tell) -> None:
    try:
        model.calibrate(validation)
    except DataError as error:
        tell(f"no temperature was fitted: {error}")
        return
    model.save(out)
    found: dict[str, Any] = model.calibration or {}
    tell(
        f"temperature {model.temperature:.3g} fitted on {plural(found['rows'], 'validation row')}: their NLL was "
        f"{found['nll_before']:.4g} and is {found['nll_after']:.4g}; --no-calibrate leaves it out"
    )
    if found["at_bound"]:
        tell(
            "warning: that is as far as a temperature goes; the spread is off by more: train longer, or look at the data"
        )


@contextmanager
def _left_as_found(out: Path) -> Iterator[None]:
    """A folder that was made for a fit which never began is removed again."""
    there = out.exists()
    try:
        yield
    except BaseException:
        if not there and out.exists() and not any(out.iterdir()):
            out.rmdir()
        raise


@dataclass(frozen=True)
class TableModel:
    """A fitted model with the columns it needs and the target it predicts.

    Args:
        model: the `BayesianModel`.
        columns: what the features become.
        target: whose units the predictions are in.
        trained_on: [rows] int64 keys of the rows that were trained on.
    """

    model: po.BayesianModel
    columns: Columns
    target: Target
    trained_on: Tensor

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TableModel:
        """A run that `posterity fit` left.

        Raises StorageError: nothing there, or a run without a table; else as `po.load`.
        """
        folder = Path(folder)
        if (folder / CHECKPOINT).exists() and not (folder / TABLE).exists():
            raise StorageError(f"the fit in {folder} was interrupted: posterity fit with --resume goes on with it")
        if not (folder / MANIFEST).exists():
            raise StorageError(f"{folder} holds no run: give the folder that posterity fit wrote (--out)")
        if not (folder / TABLE).exists():
            raise StorageError(f"{folder} is a run without {TABLE}: it was not fitted to a table; use po.load")
        record = read_json(folder / TABLE)
        try:
            columns, target = Columns.from_json(record["columns"]), Target.from_json(record["target"])
            named, outputs = record["network"], int(record["outputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{folder / TABLE} is not what posterity fit writes: {error!r}") from error
        with Random(0).fold("load").forked():
            network = build_network(named, columns.width, outputs)
        keys = read_tensors(folder / ROWS)[0]["keys"] if (folder / ROWS).exists() else torch.zeros(0, dtype=torch.int64)
        return cls(po.load(folder, network), columns, target, keys)

    def read(self, path: Path, tell: Tell) -> pandas.DataFrame:
        """A table with these columns; `tell` hears what was decided on the way."""
        return read_table(path, tell)

    def remarks(self, frame: pandas.DataFrame) -> Iterator[str]:
        """What is to be said of rows before they are predicted: columns and values that training did not know."""
        foreign = [name for name in self.columns.foreign(frame) if name != self.target.name]
        if foreign:
            yield f"columns that the run does not need: {', '.join(foreign)}"
        for name, count in self.columns.unseen(frame).items():
            yield f"column {name!r}: {count:,} rows hold values that the training rows did not"
        for name, count in self.columns.imputed(frame).items():
            yield f"column {name!r}: {count:,} rows are filled in, where training had no gaps"

    def predict(
        self, frame: pandas.DataFrame, level: float = 0.9, via: str | None = None, draws: int | None = None
    ) -> Any:
        """A frame with one row per row of `frame`, in its order and with its index.

        Regression: mean, std, lower, upper, epistemic_std, aleatoric_std in units of the target. Classification: label,
        confidence, p_<class>..., entropy, epistemic, aleatoric (nats).

        Raises DataError: a column that is needed and not there, or cannot be read.
        """
        import pandas

        encoded = self.columns.encode(frame)
        blocks = [self._columns(pred, level) for pred in self.model.predict_blocks(encoded, via=via, draws=draws)]
        return pandas.DataFrame(
            {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}, index=frame.index
        )

    def _columns(self, pred: Any, level: float) -> dict[str, np.ndarray[Any, Any]]:
        if self.target.task == "regression":
            lower, upper = pred.interval(level)
            found = {"mean": pred.mean, "std": pred.std, "lower": lower, "upper": upper}
            found |= {"epistemic_std": pred.epistemic, "aleatoric_std": pred.aleatoric}
            return {name: values.reshape(len(pred)).numpy() for name, values in found.items()}
        assert self.target.labels is not None
        label = np.array(self.target.labels)[pred.index.numpy()]
        probs = {f"p_{name}": pred.probs[:, i].numpy() for i, name in enumerate(self.target.labels)}
        rest = {name: getattr(pred, name).numpy() for name in ("entropy", "epistemic", "aleatoric")}
        return {"label": label, "confidence": pred.confidence.numpy(), **probs, **rest}

    def labelled(self, frame: pandas.DataFrame) -> tuple[Tensor, Any]:
        """Inputs [rows, width] and targets [rows]. Raises DataError: as `predict`, and on the target."""
        return self.columns.encode(frame), self.target.read(frame)

    def evaluation_options(
        self, frame: pandas.DataFrame, ood: Mapping[str, pandas.DataFrame] | None = None, groups: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What `po.evaluate` needs of the table: foreign sets, groups, and what a row looks like."""
        if missing := [name for name in groups if name not in frame.columns]:
            there = ", ".join(map(str, frame.columns))
            raise DataError(f"no such column to group by: {', '.join(missing)}; there are {there}")
        return {
            "ood": {name: self.columns.encode(other) for name, other in (ood or {}).items()},
            "groups": {name: frame[name].to_numpy() for name in groups},
            "show": lambda row: self.columns.about(frame, row),
        }

    def said(self) -> dict[str, Any]:
        """What a report tells of the fit."""
        return {
            "target": self.target.name,
            "task": self.target.task,
            "likelihood": self.model.problem.likelihood.name,
            "prior": self.model.settings.get("prior"),
        }

    def exported(self, frame: pandas.DataFrame | None = None) -> tuple[po.BayesianModel, Tensor, dict[str, Any]]:
        """The model to export, rows to check the file on (made up unless a frame is given), and what it takes."""
        columns, width = list(self.columns.names), self.columns.width
        rows = Random(0).fold("example").normal((17, width)) if frame is None else self.columns.encode(frame)
        takes = (
            f"x, float32 [rows, {width}]: the features as the network sees them, encoded and scaled, in the order of "
            "`columns` in its metadata `posterity`"
        )
        about = {"columns": columns, "target": self.target.name, "labels": self.target.labels, "takes": takes}
        return self.model, rows, about

    def trained_among(self, frame: pandas.DataFrame) -> int:
        """How many rows have the features of a row that was trained on."""
        return int(torch.isin(row_keys(self.columns.encode(frame)), self.trained_on).sum())


def row_keys(inputs: Tensor) -> Tensor:
    """[rows] int64 from [rows, width] float32: equal for equal rows, and by chance for one pair in 2^64."""
    bits = inputs.contiguous().view(torch.int32).to(torch.int64)
    generator = Random(0).fold("row keys").generator()
    odd = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
    keys = torch.zeros(len(bits), dtype=torch.int64)
    for column, factor in enumerate(odd.tolist()):
        keys = (keys ^ (keys >> 29)) * 0x5851F42D4C957F2D + bits[:, column] * factor
    return keys


def _record(prepared: Prepared, method: Named, network: Named) -> dict[str, Any]:
    settings = dataclasses.asdict(prepared.settings)
    sizes = {name: len(getattr(prepared.parts, name)) for name in ("train", "validation", "test")}
    return {
        "format_version": 1,
        "columns": prepared.columns.to_json(),
        "target": prepared.target.to_json(),
        "network": network,
        "outputs": prepared.outputs,
        "rows": sizes,
        "settings": {**settings, "method": method},
    }
