"""`evaluate`: how good a model's predictions are on labelled data, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posterity.errors import DataError
from posterity.evaluation.evaluation import Evaluation
from posterity.evaluation.rows import Rows, classification_metrics, regression_metrics
from posterity.prediction.predictive import CategoricalPredictive

if TYPE_CHECKING:
    from posterity.model import BayesianModel

__all__ = ["evaluate"]


def evaluate(
    model: BayesianModel,
    data: Any,
    ood: Mapping[str, Any] | None = None,
    *,
    via: str | Sequence[str] | None = None,
    draws: int | None = None,
    levels: Sequence[float] = (0.9,),
    method: str | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """Metrics of a model on labelled data, each with n and a 95 % interval.

    Classification: nll, accuracy, brier, ece, aurc, and per foreign set the AUROC of telling it apart by entropy and by
    mutual information. Regression: nll, rmse, crps, interval coverage and width, in units of the target. Only a few
    numbers per row are kept, whatever the number of classes, draws or rows.

    Args:
        model: what `fit` returned.
        data: labelled rows, as in `fit`.
        ood: name -> inputs of a foreign set (labels in it are ignored); classification only.
        via: "draws", "mean", or several of them, a row each; as in `predict` unless given.
        draws, seed, batch_size: as in `predict`.
        levels: of the intervals of a regression.
        method: the row's name; the fit's method unless given.

    Raises:
        DataError: no rows, no targets, or foreign sets for a regression.
    """
    ways = [via] if via is None or isinstance(via, str) else list(via)
    options = {"draws": draws, "seed": seed, "batch_size": batch_size}
    rows = []
    for way in ways:
        kept, classes, said = Rows(), False, ""
        for pred, targets in model.predict_with_targets(data, via=way, **options):
            kept.feed(pred, targets, levels)
            classes, said = isinstance(pred, CategoricalPredictive), pred.via
        if not said:
            raise DataError("the evaluation data has no rows")
        if not classes and ood:
            raise DataError("foreign sets are told apart by a classifier's entropy: leave ood= out for a regression")
        foreign = {name: _foreign(model, inputs, way, options) for name, inputs in (ood or {}).items()}
        metrics = classification_metrics(kept, ood=foreign) if classes else regression_metrics(kept, levels=levels)
        rows.append({"method": method or str(model.settings.get("method", "model")), "via": said, "metrics": metrics})
    return Evaluation(rows)  # type: ignore[arg-type]


def _foreign(model: BayesianModel, inputs: Any, via: str | None, options: Mapping[str, Any]) -> Rows:
    rows = Rows()
    for pred in model.predict_blocks(inputs, via=via, **options):
        rows.feed(pred)
    return rows
