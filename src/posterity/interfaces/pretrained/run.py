"""A pretrained network fitted to pictures or texts; a run folder that knows its backbone and how rows are made ready.

The folder holds the run as `po.load` reads it, `pretrained.json` (the backbone, its preprocessing, the classes, the
threshold of what is out of scope) and `training-rows.safetensors` (a key of each row that was trained on). The weights of
the backbone stay where they are; a hash says whether they are still the same.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import posterity as po
from posterity.errors import DataError, PosterityWarning, StorageError
from posterity.interfaces.pretrained.adapted import Classifier, Whole, builder, computed, method_for, prior_for
from posterity.interfaces.pretrained.backbones import Backbone, backbone, fingerprint
from posterity.interfaces.pretrained.features import states_of
from posterity.interfaces.pretrained.prepared import Prepared
from posterity.interfaces.pretrained.scope import Scope, scope_of
from posterity.interfaces.pretrained.source import Source
from posterity.interfaces.ranks import distribution, own
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import plural
from posterity.posterior.files import atomic_json, read_json
from posterity.posterior.storage import MANIFEST
from posterity.posterior.tensorfile import read_tensors, write_tensors
from posterity.prediction.classes import CategoricalPredictive
from posterity.problem.network import Network
from posterity.problem.problem import NetworkProblem
from posterity.random import Random

if TYPE_CHECKING:
    import pandas

__all__ = ["PRETRAINED", "PretrainedModel", "fit_pretrained"]

PRETRAINED, ROWS = "pretrained.json", "training-rows.safetensors"
_STEPS: Mapping[str, tuple[int, int, int]] = {  # of a fit, within these bounds of epochs
    "head": (1500, 20, 200), "last-blocks": (400, 3, 30), "low-rank": (400, 3, 30),
}  # fmt: skip
_BATCH = 64


def fit_pretrained(
    prepared: Prepared,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> PretrainedModel:
    """Fit the head, or the last blocks too, and leave the whole run in `out`.

    Raises:
        StorageError: `out` holds something, and not to be resumed.
        CompatibilityError, DataError: as `po.fit`, and rows that cannot be read.
    """
    settings, out, parts = prepared.settings, Path(out), prepared.parts
    if (out / MANIFEST).exists() and not resume:
        raise StorageError(f"{out} holds a run already: --resume goes on with it, another --out leaves it alone")
    adapt = settings.adapt or "head"
    body = computed(prepared.backbone, adapt)
    labels = prepared.target.labels
    assert labels is not None
    build = builder(prepared.backbone, adapt, len(labels))
    method = method_for(adapt, settings.method, settings.rank, build)
    rows = prepared.source.rows(prepared.frame)

    def part(index: np.ndarray[Any, Any], what: str) -> tuple[Any, Any]:
        mine = [rows[row] for row in index]
        states = states_of(body, prepared.backbone.reader, mine, f"{what} rows through the backbone", progress)
        return _inputs(states), prepared.labels(index)

    train = part(parts.train, "training")
    validation = part(parts.validation, "validation") if len(parts.validation) else None
    steps, least, most = _STEPS[adapt]
    batch = settings.batch_size or _BATCH
    epochs = settings.epochs or int(min(max(-(-steps // -(-len(parts.train) // batch)), least), most))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*finished: it is returned as it is", PosterityWarning)
        model = po.fit(
            build, train, "categorical", method, prior_for(adapt, float(settings.prior), build), epochs=epochs,
            validation=validation, batch_size=batch, data_weight=float(settings.data_weight), seed=settings.seed, out=out,
            resume=resume, progress=progress, distribute=distribution(method),
        )  # fmt: skip
    out = own(out)
    if settings.calibrate:
        _calibrate(model, validation, out, tell)
    scope = None if validation is None else scope_of(_said(model, validation[0]).entropy, settings.false_alarms, tell)
    keys = prepared.source.keys([rows[row] for row in parts.train])
    write_tensors(out / ROWS, {"keys": keys})
    atomic_json(out / PRETRAINED, _record(prepared, adapt, scope))
    return PretrainedModel(model, prepared.source, prepared.target, prepared.backbone, adapt, scope, keys)


def _calibrate(model: po.BayesianModel, validation: Any, out: Path, tell: Callable[[str], None]) -> None:
    """Only where it is asked for: rows that a head tells apart without a fault have no best temperature."""
    if validation is None:
        raise DataError("a temperature is fitted on validation rows: --validation 0.15, or without --calibrate")
    model.calibrate(validation)
    model.save(out)
    found: dict[str, Any] = model.calibration or {}
    limit = "; that is as far as it goes: leave it out" if found["at_bound"] else ""
    tell(f"temperature {model.temperature:.3g} fitted on {plural(found['rows'], 'validation row')}{limit}")


@dataclass(frozen=True, eq=False)
class PretrainedModel:
    """A fitted head, or last blocks, with the backbone below.

    Args:
        model: of states.
        source: where rows are found in a frame.
        target: the classes.
        backbone: what computes states.
        adapt: what was inferred.
        scope: the threshold of what is out of scope, where there is one.
        trained_on: [rows] int64 keys of the rows that were trained on.
    """

    model: po.BayesianModel
    source: Source
    target: Target
    backbone: Backbone
    adapt: str
    scope: Scope | None
    trained_on: Tensor

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PretrainedModel:
        """A run that `posterity fit` left. Raises StorageError: no run, or a backbone that is another one now."""
        folder = Path(folder)
        record = read_json(folder / PRETRAINED)
        try:
            source, target = Source(record["kind"], record["column"]), Target.from_json(record["target"])
            adapt, name = record["adapt"], record["backbone"]["name"]
            scope = None if record["scope"] is None else Scope(**record["scope"])
            told, known = record["backbone"]["reader"], record["backbone"]["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{folder / PRETRAINED} is not what posterity fit writes: {error!r}") from error
        found = backbone(source.kind, name, told)
        if fingerprint([found.below, found.tail]) != known:
            raise StorageError(f"the backbone {name} has other weights than when {folder} was fitted: put those back")
        assert target.labels is not None
        with Random(0).fold("load").forked():
            network = builder(found, adapt, len(target.labels))()
        keys = read_tensors(folder / ROWS)[0]["keys"]
        return cls(po.load(folder, network), source, target, found, adapt, scope, keys)

    def read(self, path: Path, tell: Callable[[str], None]) -> pandas.DataFrame:
        """The rows of a folder of pictures, or of a table with texts."""
        return self.source.read(path, tell)

    def remarks(self, frame: pandas.DataFrame) -> Iterator[str]:
        """What is to be said of rows before they are predicted."""
        yield from ()

    def states(self, frame: pandas.DataFrame) -> Any:
        """What the network that was fitted takes. Raises DataError: a row that cannot be read."""
        rows = self.source.rows(frame)
        return _inputs(states_of(computed(self.backbone, self.adapt), self.backbone.reader, rows, "rows"))

    def predict(
        self, frame: pandas.DataFrame, level: float = 0.9, via: str | None = None, draws: int | None = None
    ) -> pandas.DataFrame:
        """A row per row, in their order: the file or the text, label, confidence, p_<class>..., entropy, epistemic,
        aleatoric (nats), and out_of_scope where the run has a threshold. Classes have no intervals, and no `level`.
        """
        import pandas

        pred = _said(self.model, self.states(frame), via=via, draws=draws)
        assert self.target.labels is not None
        found: dict[str, Any] = {self.source.column: self.source.rows(frame)}
        found |= {"label": np.array(self.target.labels)[pred.index.numpy()], "confidence": pred.confidence.numpy()}
        found |= {f"p_{name}": pred.probs[:, i].numpy() for i, name in enumerate(self.target.labels)}
        found |= {name: getattr(pred, name).numpy() for name in ("entropy", "epistemic", "aleatoric")}
        if self.scope is not None:
            found["out_of_scope"] = self.scope(pred.entropy).numpy()
        return pandas.DataFrame(found, index=frame.index)

    def labelled(self, frame: pandas.DataFrame) -> tuple[Any, Any]:
        """States and classes. Raises DataError: as `predict`, and on the classes."""
        labels = self.target.read(frame)
        return self.states(frame), labels

    def evaluation_options(
        self, frame: pandas.DataFrame, ood: Mapping[str, pandas.DataFrame] | None = None, groups: Sequence[str] = ()
    ) -> dict[str, Any]:
        """What `po.evaluate` needs: foreign sets, groups, and what a row looks like."""
        if missing := [name for name in groups if name not in frame.columns]:
            raise DataError(f"no such column to group by: {', '.join(missing)}")
        return {
            "ood": {name: self.states(other) for name, other in (ood or {}).items()},
            "groups": {name: frame[name].to_numpy() for name in groups},
            "show": self.source.shown(self.source.rows(frame)),
        }

    def said(self) -> dict[str, Any]:
        """What a report tells of the fit."""
        scope = None if self.scope is None else self.scope.to_json()
        found = {"target": self.target.name, "task": self.source.kind, "backbone": self.backbone.name}
        return {**found, "adapt": self.adapt, "out_of_scope": scope, "prior": self.model.settings.get("prior")}

    def trained_among(self, frame: pandas.DataFrame) -> int:
        """How many rows are the same as one that was trained on."""
        return int(torch.isin(self.source.keys(self.source.rows(frame)), self.trained_on).sum())

    def exported(self, frame: pandas.DataFrame | None = None) -> tuple[po.BayesianModel, Any, dict[str, Any]]:
        """The model of pixels or tokens, rows to check the file on, and what it takes."""
        reader = self.backbone.reader
        rows = reader.example() if frame is None else reader(self.source.rows(frame))
        about = {"target": self.target.name, "labels": self.target.labels, "takes": reader.takes()}
        return self._whole(), _inputs(rows), {**about, "reader": reader.to_json()}

    def _whole(self) -> po.BayesianModel:
        """The same posterior on pixels or tokens."""
        problem, fitted = self.model.problem, self.model.problem.network.module
        assert isinstance(fitted, Classifier)
        network = Network(Whole(computed(self.backbone, self.adapt), fitted))
        network.changing, network.probed = frozenset(), True
        whole = NetworkProblem(
            network, problem.likelihood, problem.prior, data_size=problem.data_size, data_weight=problem.data_weight
        )
        found = po.BayesianModel(
            whole, self.model.posterior, settings=self.model.settings, temperature=self.model.temperature
        )
        found.propagation, found.calibration = self.model.propagation, self.model.calibration
        return found


def _said(model: po.BayesianModel, states: Any, **options: Any) -> CategoricalPredictive:
    pred = model.predict(states, **options)
    assert isinstance(pred, CategoricalPredictive)
    return pred


def _inputs(states: tuple[Tensor, ...]) -> Any:
    return states if len(states) > 1 else states[0]


def _record(prepared: Prepared, adapt: str, scope: Scope | None) -> dict[str, Any]:
    found = prepared.backbone
    sizes = {name: len(getattr(prepared.parts, name)) for name in ("train", "validation", "test")}
    return {
        "format_version": 1,
        "kind": prepared.source.kind,
        "column": prepared.source.column,
        "target": prepared.target.to_json(),
        "backbone": {
            "name": found.name,
            "reader": found.reader.to_json(),
            "fingerprint": fingerprint([found.below, found.tail]),
        },
        "adapt": adapt,
        "scope": None if scope is None else scope.to_json(),
        "rows": sizes,
        "settings": dataclasses.asdict(prepared.settings),
    }
