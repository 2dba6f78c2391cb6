"""`conformal`: sets of classes and intervals of numbers that hold the truth as often as they say, whatever the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posterity.errors import DataError, StorageError
from posterity.evaluation.by_group import GroupTable, groups_of, in_order
from posterity.evaluation.conformal_scores import (
    CLASS_SCORES,
    NUMBER_SCORES,
    class_scores,
    conformal_quantile,
    kind_of,
    number_scores,
    one_number,
    widened,
)
from posterity.evaluation.metric import proportion_interval
from posterity.evaluation.predictions import Intervals
from posterity.evaluation.rows import Rows
from posterity.evaluation.source import Source, kept, opened, way_of
from posterity.prediction.predictive import concat
from posterity.problem.likelihoods.base import numbers

if TYPE_CHECKING:
    import pandas

__all__ = ["Conformal", "ConformalIntervals", "ConformalSets", "conformal"]


@dataclass(frozen=True, eq=False, repr=False)
class ConformalSets:
    """The classes that each row may be of.

    Args:
        member: [rows, classes] bool; labels: of the classes; level: the probability that the true one is among them.
        label: [rows] the most probable class.
    """

    member: Tensor
    labels: tuple[Any, ...]
    level: float
    label: Any

    def __len__(self) -> int:
        return len(self.member)

    def __repr__(self) -> str:
        return f"ConformalSets(rows={len(self)}, level={self.level:g}, mean size={self.size.double().mean():.3g})"

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        """The labels in the set of one row."""
        return tuple(name for name, inside in zip(self.labels, self.member[row].tolist()) if inside)

    @property
    def size(self) -> Tensor:
        """[rows] how many classes; 0 where no class is usual enough (lac): a row unlike those before."""
        return self.member.sum(1)

    def to_frame(self) -> pandas.DataFrame:
        """Columns label, size, set (a tuple of labels); a line per row. Raises ImportError without pandas."""
        sets = [self[row] for row in range(len(self))]
        label = self.label.tolist()
        return _frame({"label": label, "size": self.size.tolist(), "set": sets})


@dataclass(frozen=True)
class ConformalIntervals(Intervals):
    """Means and intervals, [rows] each, in units of the target; goes into `po.evaluate(..., levels=(level,))`."""

    via: str = "conformal"

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def width(self) -> Tensor:
        """[rows] upper - lower."""
        return self.upper - self.lower

    def to_frame(self) -> pandas.DataFrame:
        """Columns mean, lower, upper; a line per row. Raises ImportError without pandas."""
        return _frame({name: getattr(self, name).tolist() for name in ("mean", "lower", "upper")})


class Conformal:
    """What `conformal` found. Its coverage is that of all rows together: look at `coverage(rows, groups)` for the parts.

    Attributes:
        level: the probability that the truth is inside, over calibration rows and a new one.
        score: what was calibrated; quantile: its value (units of the target, stds, or a probability); rows: how many.
    """

    def __init__(self, source: Source, level: float, score: str, quantile: float, rows: int) -> None:
        self.source, self.level, self.score, self.quantile, self.rows = source, level, score, quantile, rows
        self._fingerprint: Mapping[str, Any] = source.fingerprint()

    def __repr__(self) -> str:
        return (
            f"Conformal(level={self.level:g}, score={self.score!r}, quantile={self.quantile:.4g}, rows={self.rows:,})"
        )

    def predict(self, x: Any) -> ConformalSets | ConformalIntervals:
        """Sets of classes or intervals of numbers.

        Args:
            x: as in `BayesianModel.predict`; beside an estimator its X.

        Raises:
            DataError: no rows, NaN.
            CompatibilityError: the model's weights, temperature or propagation changed since.
        """
        self.source.check(self._fingerprint, "the conformal prediction")
        parts = list(self.source.blocks(x))
        if not parts:
            raise DataError("there are no rows to predict")
        return self._of(concat(parts))

    def coverage(self, data: Any, groups: Any = None) -> GroupTable:
        """How often the truth is inside: over all rows, then in each group, of classes also by true and predicted class.

        by, group, n, covered (share) with its exact 95 % interval low, high; size, the mean number of classes or width; note
        where the interval excludes the level.

        Args:
            data: labelled rows that did not calibrate.
            groups: one value per row, or several columns of them by name.

        Raises: as `predict`; ShapeError where a grouping has not one value per row.
        """
        self.source.check(self._fingerprint, "the conformal prediction")
        named = in_order(data, groups)
        rows, labels = Rows(), ()
        for pred, targets in self.source.labelled(data):
            said = self._of(pred)
            if isinstance(said, ConformalSets):
                labels, true = said.labels, _classes(pred, targets)
                seen = torch.arange(rows.seen, rows.seen + len(true))
                counts = true >= 0
                columns = {
                    "covered": said.member.gather(1, true.clamp(min=0)[:, None])[:, 0],
                    "size": said.size.double(),
                    "target": true,
                    "predicted": pred.index,
                }
            else:
                y = one_number(numbers(targets))
                seen, counts = torch.arange(rows.seen, rows.seen + len(y)), torch.ones(len(y), dtype=torch.bool)
                columns = {"covered": (said.lower <= y) & (y <= said.upper), "size": said.width}
            rows.add({name: column[counts] for name, column in {"row": seen, **columns}.items()})
            rows.seen += len(seen)
        if not len(rows):
            raise DataError("there are no labelled rows")
        table: dict[str, list[Any]] = {
            name: [] for name in ("by", "group", "n", "covered", "low", "high", "size", "note")
        }
        for by, group, index in groups_of(rows, named, labels):
            found = proportion_interval(int(rows["covered"][index].sum()), len(index))
            note = "" if found.low <= self.level <= found.high else ("below" if found.high < self.level else "above")
            line = (by, group, found.n, found.value, found.low, found.high, rows["size"][index].mean().item(), note)
            for column, value in zip(table.values(), line):
                column.append(value)
        return GroupTable(table)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """What was found, in JSON types; with `path` also written there, whole or not at all. The model is not in it."""
        record = {
            "kind": "conformal",
            **{name: getattr(self, name) for name in ("level", "score", "quantile", "rows")},
            "model": dict(self._fingerprint),
        }
        return kept(record, path)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any], model: Any) -> Conformal:
        """The inverse of `to_json`, beside the model that was calibrated.

        Raises:
            StorageError: not such a record.
            CompatibilityError: another model, or one that was changed since.
        """
        where, record = opened(source)
        try:
            if record["kind"] != "conformal" or record["score"] not in (*CLASS_SCORES, *NUMBER_SCORES):
                raise KeyError("kind")
            found = float(record["level"]), str(record["score"]), float(record["quantile"]), int(record["rows"])
            before = dict(record["model"])
            way = way_of(model, before)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{where} is not a conformal prediction: {error!r}") from error
        made = cls(Source(model, **way), *found)
        made.source.check(before, "the conformal prediction")
        return made

    def _of(self, pred: Any) -> ConformalSets | ConformalIntervals:
        if kind_of(pred) == "classes":
            member = class_scores(pred.probs, self.score) <= self.quantile
            return ConformalSets(member, self.source.labels(pred), self.level, self.source.label(pred))
        lower, upper = widened(pred, self.score, self.level, self.quantile)
        return ConformalIntervals(one_number(pred.mean), lower, upper, self.level)


def conformal(
    model: Any,
    data: Any,
    level: float = 0.9,
    *,
    score: str | None = None,
    via: str | None = None,
    draws: int | None = None,
) -> Conformal:
    """Split conformal prediction: with probability `level` the truth of a new row is in its set or interval.

    The probability is over the calibration rows and the new one, which must be exchangeable: independent rows of one
    distribution. It is that of all rows together; within a group, a class, or a size of set it may be lower. `coverage`
    tells where.

    Args:
        model: what `fit` returned, or a fitted `PosterityClassifier` or `PosterityRegressor`. One class or number per row.
        data: labelled rows that nothing was trained, selected or tempered on; beside an estimator a pair (X, y).
        level: in (0, 1); n rows allow at most n / (n + 1).
        score: of classes "lac" (the smallest sets, the default), "aps" or "raps" (adaptive: larger where it is harder); of
            numbers "quantile" (the model's own interval moved, the default), "normalised" (by the std) or "absolute" (one
            width). See `conformal_scores`.
        via, draws: as in `BayesianModel.predict`.

    Raises:
        DataError: no rows, too few of them, NaN, or a score that is not of this kind.
        CompatibilityError: tokens, several labels or several numbers per row.
    """
    if not 0 < level < 1:
        raise DataError(f"level must be a fraction between 0 and 1, got {level}")
    source, parts = Source(model, via, draws), []
    for pred, targets in source.labelled(data):
        kind = kind_of(pred)
        allowed = CLASS_SCORES if kind == "classes" else NUMBER_SCORES
        score = allowed[0] if score is None else score
        if score not in allowed:
            raise DataError(f"the score of {kind} must be one of {', '.join(allowed)}, got {score!r}")
        if kind == "classes":
            true = _classes(pred, targets)
            scores = class_scores(pred.probs, score)[true >= 0]
            parts.append(scores.gather(1, true[true >= 0][:, None])[:, 0])
        else:
            y = one_number(numbers(targets))
            if len(y) != len(pred):
                raise DataError(f"{len(y)} targets do not go with {len(pred)} rows")
            parts.append(number_scores(pred, y, score, level))
    if not sum(map(len, parts)):
        raise DataError("there are no labelled rows to calibrate with")
    found = torch.cat(parts)
    assert score is not None
    return Conformal(source, level, score, conformal_quantile(found, level), len(found))


def _classes(pred: Any, targets: Any) -> Tensor:
    """[rows] int64 positions of the true classes; -1 where a target does not count."""
    canonical = pred.canonical(targets)
    if canonical.is_floating_point():
        raise DataError("conformal sets need one true class per row, the targets are probabilities")
    return torch.where(pred.counted(targets), canonical, -1)


def _frame(columns: Mapping[str, Any]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
    return pandas.DataFrame(dict(columns))
