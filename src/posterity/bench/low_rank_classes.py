"""What the benches of low-rank networks measure on a classification."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from posterity.bench.bench import finite
from posterity.bench.low_rank_methods import Predict
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import aupr, auroc
from posterity.evaluation.metric import Metric
from posterity.evaluation.proper import nll
from posterity.evaluation.selective import aurc, risk_coverage
from posterity.prediction.classes import CategoricalPredictive

__all__ = ["classes", "foreign"]

ANSWERED = 0.8


def classes(pred: CategoricalPredictive, y: Tensor) -> dict[str, float | None]:
    """Of labelled rows of two classes 0 and 1: accuracy, auroc (of class 1), nll, ece of the top class, aupr_errors (wrong
    rows found by their entropy), aurc, and risk_80, the share of errors among the surest 80 %; None where undefined.
    """
    correct, confidence = pred.index == y, pred.confidence
    risk = risk_coverage(confidence, correct).risk
    one = pred.log_probs[:, 1].double() - pred.log_probs[:, 0].double()
    found = {
        "accuracy": correct.double().mean().item(),
        "auroc": _value(auroc, one[y == 0], one[y == 1]),
        "nll": nll(pred.log_prob(y)).value,
        "ece": ece(confidence, correct).value,
        "aupr_errors": _value(aupr, pred.entropy[~correct], pred.entropy[correct]),
        "aurc": aurc(confidence, correct).value,
        "risk_80": risk[math.ceil(ANSWERED * len(y)) - 1].item(),
    }
    return {name: finite(value) for name, value in found.items()}


def foreign(familiar: CategoricalPredictive, predict: Predict, sets: Mapping[str, Any]) -> dict[str, float | None]:
    """How well each set is told from the familiar rows: ood_auroc_mi_<set> and ood_auroc_entropy_<set>.

    By mutual information None for a point, whose is 0.
    """
    found = {}
    for name, x in sets.items():
        strange = predict(x)
        assert isinstance(strange, CategoricalPredictive)
        found[f"ood_auroc_mi_{name}"] = finite(auroc(familiar.epistemic, strange.epistemic).value)
        found[f"ood_auroc_entropy_{name}"] = finite(auroc(familiar.entropy, strange.entropy).value)
    return found


def _value(metric: Any, first: Tensor, second: Tensor) -> float:
    """NaN where one kind of rows is absent."""
    if not len(first) or not len(second):
        return math.nan
    found: Metric = metric(first, second)
    return found.value
