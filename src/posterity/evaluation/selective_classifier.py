"""`SelectiveClassifier`: answers alone where its error rate is guaranteed, and defers the rest with a reason."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from posterity.errors import CompatibilityError, DataError, PosterityWarning, StorageError
from posterity.evaluation.answers import Answers, Rule, answers_of
from posterity.evaluation.by_group import GroupTable, in_order
from posterity.evaluation.conformal_scores import conformal_quantile
from posterity.evaluation.evaluate import evaluate
from posterity.evaluation.evaluation import Evaluation
from posterity.evaluation.risk_control import Guarantee, check_risk, control_risk
from posterity.evaluation.rows import Rows
from posterity.evaluation.selective_report import COLUMNS, selective_report
from posterity.evaluation.source import Source, kept, opened, way_of
from posterity.prediction.predictive import CategoricalPredictive, concat

__all__ = ["SelectiveClassifier"]

_MEASURES = ("confidence", "entropy", "epistemic")


class SelectiveClassifier:
    """A classifier that answers only where it is sure enough for its risk to be bounded.

    With probability `confidence` over the calibration rows, at most a share `max_risk` of the rows that it answers is wrong:
    for new rows of the same distribution, all of them together, not each group or class by itself. See `risk_control`.

    Args:
        model: what `fit` returned, or a fitted `PosterityClassifier`. One class per row.
        max_risk: the error rate allowed among the answered, in (0, 1).
        confidence: in (0.5, 1).
        by: what sureness is: "confidence", the probability of the label; "entropy"; or "epistemic", the mutual information.
        foreign: also defer rows that look foreign: the share of familiar rows that may be deferred so, in (0, 1).
        foreign_by: what tells them, "epistemic" or "entropy".
        via, draws: as in `BayesianModel.predict`.

    Attributes:
        guarantee: what `calibrate` found; None before. Its text says what is answered, or why nothing is.
        foreign_above: rows with more of `foreign_by` (nats) are foreign; None unless asked for.

    Raises:
        DataError: an argument out of range, or no model.
    """

    def __init__(
        self,
        model: Any,
        max_risk: float = 0.02,
        confidence: float = 0.95,
        by: str = "confidence",
        *,
        foreign: float | None = None,
        foreign_by: str = "epistemic",
        via: str | None = None,
        draws: int | None = None,
    ) -> None:
        check_risk(max_risk, confidence)
        for name, value, allowed in (("by", by, _MEASURES), ("foreign_by", foreign_by, _MEASURES[1:])):
            if value not in allowed:
                raise DataError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        if foreign is not None and not 0 < foreign < 1:
            raise DataError(f"foreign must be a fraction between 0 and 1, got {foreign}")
        self.source = Source(model, via, draws)
        self.max_risk, self.confidence, self.by = max_risk, confidence, by
        self.foreign, self.foreign_by = foreign, foreign_by
        self.guarantee: Guarantee | None = None
        self.foreign_above: float | None = None
        self._fingerprint: dict[str, Any] = {}
        self._calibrated: GroupTable | None = None

    def __repr__(self) -> str:
        asked = f"max_risk={self.max_risk:g}, confidence={self.confidence:g}, by={self.by!r}"
        return f"SelectiveClassifier({asked}: {self.guarantee or 'not calibrated'})"

    @property
    def threshold(self) -> float:
        """Of `by`: answered is a confidence of at least this, an entropy or mutual information (nats) of at most this."""
        cut = self._found().cut
        return cut if self.by == "confidence" else -cut

    def calibrate(self, data: Any, groups: Any = None) -> Self:
        """Find the lowest threshold that can be guaranteed.

        Args:
            data: labelled rows that nothing was trained, selected or tempered on: independent rows of the distribution of
                those to come. As in `fit`; beside an estimator a pair (X, y).
            groups: one value per row, or several columns of them by name, for `report()`.

        Where nothing can be guaranteed every row is deferred, and a `PosterityWarning` says why.

        Returns:
            The classifier itself.

        Raises:
            DataError: no rows, NaN, too few rows for `foreign`, or a measure that is the same for all of them.
            CompatibilityError: a regression, tokens, or several labels per row.
        """
        named = in_order(data, groups)
        rows, labels = self._read(data)
        above = self._foreign_above(rows)
        # given the row that sets the limit, those below it are independent rows of what it lets through
        familiar = slice(None) if above is None else rows[self.foreign_by].double() < above
        found = control_risk(
            certainty_of(rows, self.by)[familiar], rows["correct"][familiar], self.max_risk, self.confidence
        )
        self.guarantee, self.foreign_above = found, above
        self._fingerprint = self.source.fingerprint()
        self._calibrated = self._table(rows, named, labels, calibrating=True)
        if not found.holds:
            warnings.warn(f"{found}; every row is deferred", PosterityWarning, stacklevel=2)
        return self

    def predict(self, x: Any) -> Answers:
        """A label for each row, whether it is answered, and why not.

        Args:
            x: as in `BayesianModel.predict`; beside an estimator its X.

        Raises:
            CompatibilityError: not calibrated, or the model's weights, temperature or propagation changed since.
            DataError: no rows, NaN.
        """
        rule = self._rule()
        parts = list(self.source.blocks(x))
        if not parts:
            raise DataError("there are no rows to predict")
        pred = concat(parts)
        _check_classes(pred)
        return answers_of(pred, rule, self.source.label(pred))

    def report(self, data: Any = None, groups: Any = None) -> GroupTable:
        """How much is answered, and how well: all rows, then each group, the true class and the predicted one.

        by, group, n; answered (count), coverage; errors among the answered, risk with its exact 95 % interval low, high;
        upper, its exact one-sided bound at `confidence` shared out over the groups (Bonferroni); guaranteed, whether that
        bound is at most `max_risk`; note, what is missing. The line "all" has the guarantee of the calibration.

        Args:
            data: labelled rows that did not calibrate. Without it the table is that of the calibration rows, whose groups
                have no bound of their own: their threshold was chosen on them.
            groups: as in `calibrate`.

        Raises: as `predict`; ShapeError where a grouping has not one value per row.
        """
        if data is None:
            if groups is not None:
                raise DataError("groups of the calibration rows are given to calibrate(..., groups=)")
            self._found()
            assert self._calibrated is not None
            return self._calibrated
        self._rule()
        named = in_order(data, groups)
        rows, labels = self._read(data)
        return self._table(rows, named, labels, calibrating=False)

    def evaluate(self, data: Any, groups: Any = None, **options: Any) -> Evaluation:
        """`po.evaluate` on labelled rows that did not calibrate, with what is answered of them: a page for an auditor.

        The details of its row have "guarantee", one line, and "answered", the lines of `report`.

        Args:
            data, groups: as in `report`.
            options: further ones of `po.evaluate`, such as `ood` and `show`.

        Raises: as `report` and `po.evaluate`.
        """
        answered = self.report(data, groups)
        source = self.source
        asked = {"groups": groups, "method": str(source.fitted.settings.get("method", "model")), **options}
        if source.estimator:
            ((pred, targets),) = source.labelled(data)
            result = evaluate(pred, targets, **asked)
        else:
            result = evaluate(source.fitted, data, via=source.via, draws=source.draws, **asked)
        found = self._found()
        line = {
            "by": self.by,
            "threshold": self.threshold,
            "holds": found.holds,
            "said": str(found),
            "upper": found.upper,
        }
        details = result.rows[0].setdefault("details", {})
        details["guarantee"] = {name: [value] for name, value in {**found.to_json(), **line}.items()}
        details["answered"] = dict(answered.columns)
        return result

    # --- what is kept --------------------------------------------------------------------------------------------------

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """What was found, in JSON types; with `path` also written there, whole or not at all. The model is not in it.

        Raises CompatibilityError before `calibrate`; StorageError if it cannot be written.
        """
        asked = {"by": self.by, "foreign": self.foreign, "foreign_by": self.foreign_by}
        found = self._found()
        assert self._calibrated is not None
        record = {
            "kind": "selective",
            "guarantee": found.to_json(),
            **asked,
            "foreign_above": self.foreign_above,
            "model": self._fingerprint,
            "report": dict(self._calibrated.columns),
        }
        return kept(record, path, null=True)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any], model: Any) -> SelectiveClassifier:
        """The inverse of `to_json`, beside the model that was calibrated.

        Raises:
            StorageError: not such a record.
            CompatibilityError: another model, or one that was changed since.
        """
        where, record = opened(source)
        try:
            if record["kind"] != "selective":
                raise StorageError(f"{where} holds {record['kind']!r}, not a selective classifier")
            found, before = Guarantee.from_json(dict(record["guarantee"])), dict(record["model"])
            made = cls(
                model, found.max_risk, found.confidence, record["by"], foreign=record["foreign"],
                foreign_by=record["foreign_by"], **way_of(model, before),
            )  # fmt: skip
            above, table = record["foreign_above"], record["report"]
            columns = {name: [math.nan if v is None else v for v in table[name]] for name in COLUMNS}
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, CompatibilityError):
                raise
            raise StorageError(f"{where} is not a selective classifier: {error!r}") from error
        made.guarantee, made.foreign_above, made._fingerprint = found, above, before
        made._calibrated = GroupTable(columns)
        made.source.check(before, "the selective classifier")
        return made

    # --- parts ---------------------------------------------------------------------------------------------------------

    def _found(self) -> Guarantee:
        if self.guarantee is None:
            raise CompatibilityError("the selective classifier is not calibrated: call calibrate(labelled rows) first")
        return self.guarantee

    def _rule(self) -> Rule:
        found = self._found()
        self.source.check(self._fingerprint, "the selective classifier")
        refused = None if found.holds else f"nothing is guaranteed: {found}"
        return Rule(self.by, self.threshold, self.foreign_by, self.foreign_above, refused)

    def _read(self, data: Any) -> tuple[Rows, tuple[Any, ...]]:
        """The numbers of each labelled row, and the labels of the classes."""
        rows, last = Rows(), None
        for last, targets in self.source.labelled(data):
            _check_classes(last)
            rows.feed(last, targets)
        if last is None or not len(rows):
            raise DataError("there are no labelled rows")
        return rows, self.source.labels(last)

    def _foreign_above(self, rows: Rows) -> float | None:
        if self.foreign is None:
            return None
        measure = rows[self.foreign_by].double()
        if bool((measure == measure[0]).all()):
            raise DataError(
                f"{self.foreign_by} is {measure[0]:g} in every calibration row: it tells no foreign ones (a network's own "
                'epistemic is 0: foreign_by="entropy")'
            )
        return conformal_quantile(measure, 1 - self.foreign)

    def _table(self, rows: Rows, groups: Mapping[str, Any], labels: tuple[Any, ...], calibrating: bool) -> GroupTable:
        found = self._found()
        answered = certainty_of(rows, self.by) >= found.cut
        if self.foreign_above is not None:
            answered &= rows[self.foreign_by].double() <= self.foreign_above
        return selective_report(rows, answered, found, groups, labels, calibrating)


def certainty_of(rows: Rows, by: str) -> Tensor:
    """[rows] float64, larger = surer."""
    measure = rows[by].double()
    return measure if by == "confidence" else -measure


def _check_classes(pred: Any) -> None:
    if not isinstance(pred, CategoricalPredictive) or pred.log_probs.ndim != 2:
        raise CompatibilityError("selective answers are for one class per row: not numbers, tokens or several labels")
