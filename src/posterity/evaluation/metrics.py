"""The metrics of a set of rows, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from posterity.errors import DataError
from posterity.evaluation.calibration import confidence_gap, ece
from posterity.evaluation.detection import aupr, auroc, fpr_at_tpr
from posterity.evaluation.intervals import share
from posterity.evaluation.metric import Metric, mean_interval
from posterity.evaluation.proper import accuracy, crps, lppd, nll, root
from posterity.evaluation.rows import LEVELS, Rows, suffix
from posterity.evaluation.selective import aurc, coverage_at_risk, excess_aurc
from posterity.evaluation.threshold import RISKS

__all__ = ["classification_metrics", "detection_metrics", "direction", "limits", "regression_metrics"]

MEASURES = {"": "entropy", "_epistemic": "epistemic", "_confidence": "confidence"}

_UP = ("accuracy", "lppd", "coverage_at_risk", "effective_reliability", "ood_auroc", "ood_aupr")
_DOWN = (
    "nll", "brier", "ece", "aurc", "excess_aurc", "rmse", "crps", "quantile_loss", "interval_score", "ood_fpr95",
)  # fmt: skip


def direction(name: str) -> int:
    """1 where more of a metric is better, -1 where less is, 0 where neither (a width, a coverage, a gap).

    >>> direction("ood_auroc_letters"), direction("interval_score_0.5"), direction("interval_coverage")
    (1, -1, 0)
    """
    return 1 if name.startswith(_UP) else -1 if name.startswith(_DOWN) else 0


def limits(name: str) -> tuple[float, float]:
    """The range that the values of a metric can have.

    >>> limits("accuracy"), limits("nll"), limits("rmse")
    ((0.0, 1.0), (-inf, inf), (0.0, inf))
    """
    if name.startswith(("nll", "lppd", "confidence_gap", "effective_reliability")):
        return -math.inf, math.inf
    share = ("accuracy", "ece", "aurc", "excess_aurc", "coverage_at_risk", "ood_", "interval_coverage")
    return 0.0, 1.0 if name.startswith(share) else math.inf


def classification_metrics(
    pred: Any, targets: Any = None, ood: Mapping[str, Any] | None = None, bins: int = 15
) -> dict[str, Metric]:
    """The metrics of a classification, by name.

    nll, accuracy, brier, ece (of the top class), aurc, lppd, ece_mass (bins of equal counts), ece_classwise (every
    class's), confidence_gap (positive = over-confident), excess_aurc and coverage_at_risk_0.005, _0.01, _0.05; nll, lppd
    and accuracy only where a row has several positions or labels. For foreign sets those of `detection_metrics`.

    Args:
        pred: a predictive with `probs` and `log_probs` [rows, classes], `confidence`, `entropy`, `epistemic` [rows]
            (nats) and `log_prob(targets)` [rows]; or the `Rows` fed with them.
        targets: [rows] labels as of `Rows.feed`; None for `Rows`.
        ood: name -> predictive or `Rows` of a foreign set.
        bins: of the ECE of the top class; the class-wise one has 15.

    Without rows every metric is NaN with a reason. Raises DataError or ShapeError as `Rows.feed`, and DataError for an
    empty foreign set.
    """
    rows = as_fed(pred, targets)
    if "hits" in rows:
        metrics = {
            "nll": nll(rows["log_prob"]),
            "accuracy": mean_interval(rows["hits"], 0.0, 1.0),
            "lppd": lppd(rows["log_prob"]),
        }
    else:
        top = rows["confidence"], rows["correct"]
        metrics = {
            "nll": nll(rows["log_prob"]),
            "accuracy": accuracy(rows["correct"]),
            "brier": mean_interval(rows["brier"], 0.0, 2.0),
            "ece": ece(*top, bins),
            "aurc": aurc(*top),
            "lppd": lppd(rows["log_prob"]),
            "ece_mass": ece(*top, bins, mass=True),
        }
        if rows.classwise is not None:
            metrics["ece_classwise"] = rows.classwise.ece()
        metrics["confidence_gap"] = confidence_gap(*top)
        metrics["excess_aurc"] = excess_aurc(*top)
        metrics |= {f"coverage_at_risk_{risk:g}": coverage_at_risk(*top, risk) for risk in RISKS}
    for position, (name, foreign) in enumerate((ood or {}).items()):
        metrics |= detection_metrics(rows, as_fed(foreign, None), f"_{name}" if position else "")
    return metrics


def detection_metrics(rows: Rows, foreign: Rows, name: str = "") -> dict[str, Metric]:
    """How well a foreign set is told from the familiar rows: AUROC, AUPR with either as the positive, FPR at TPR 0.95.

    `ood_auroc`, `ood_aupr_out` (foreign = positive), `ood_aupr_in` (familiar = positive) and `ood_fpr95` go by the
    predictive entropy; with `_epistemic` behind by mutual information, with `_confidence` by 1 - max probability. n is
    the number of rows of both sets; chance is 0.5 for the AUROC and the share of the positive rows for the AUPR.

    Args:
        rows, foreign: fed with the predictions of either.
        name: comes last in every name.

    NaN with a reason by mutual information for a point, whose mutual information is 0. Raises DataError for an empty set.
    """
    if name.startswith(("_epistemic", "_confidence")):
        raise DataError(f"a foreign set cannot be called {name[1:]!r}: ood_auroc{name} is another metric's name")
    metrics: dict[str, Metric] = {}
    for behind, column in MEASURES.items():
        if column not in rows:
            continue
        familiar, strange = (_foreignness(each, column) for each in (rows, foreign))
        metrics |= {
            f"ood_auroc{behind}{name}": auroc(familiar, strange),
            f"ood_aupr_out{behind}{name}": aupr(strange, familiar),
            f"ood_aupr_in{behind}{name}": aupr(-familiar, -strange),
            f"ood_fpr95{behind}{name}": fpr_at_tpr(familiar, strange),
        }
    return metrics


def regression_metrics(pred: Any, y: Any = None, levels: Sequence[float] = LEVELS) -> dict[str, Metric]:
    """The metrics of a regression, by name, in units of the target.

    nll, rmse, crps, and per level interval_coverage, interval_width and interval_score: level 0.9 under these names,
    another one with the level behind, as `interval_coverage_0.5`; lppd, and quantile_loss, the mean over the median and
    the ends of all intervals. A row with several outputs counts once: log p is their sum, all else their mean. Where
    only intervals are known, nll, crps, lppd and quantile_loss are NaN with that reason.

    Args:
        pred: a predictive with `mean` [rows] or [rows, outputs], `log_prob(y)`, `crps(y)`, `cdf(y)` and
            `interval(level) -> (lower, upper)`; or the `Rows` fed with them, and the same levels.
        y: the targets, shaped as `mean`; None for `Rows`.
        levels: in (0, 1).

    Without rows every metric is NaN with a reason. Raises DataError on NaN, ShapeError unless y is shaped as the mean.
    """
    rows = as_fed(pred, y, levels)
    density = "log_prob" in rows
    unknown = Metric.undefined(len(rows), "no density was predicted, only intervals")
    metrics = {
        "nll": nll(rows["log_prob"]) if density else unknown,
        "rmse": root(mean_interval(rows["squared_error"], lowest=0.0)),
        "crps": crps(rows["crps"]) if density else unknown,
    }
    for behind in map(suffix, levels):
        metrics[f"interval_coverage{behind}"] = share(rows[f"covered{behind}"])
        metrics[f"interval_width{behind}"] = mean_interval(rows[f"width{behind}"], lowest=0.0)
        metrics[f"interval_score{behind}"] = mean_interval(rows[f"interval_score{behind}"], lowest=0.0)
    metrics["lppd"] = lppd(rows["log_prob"]) if density else unknown
    metrics["quantile_loss"] = mean_interval(rows["quantile_loss"], lowest=0.0) if density else unknown
    return metrics


def as_fed(pred: Any, targets: Any, levels: Sequence[float] = LEVELS) -> Rows:
    """`Rows` as they are, or fed with a predictive and its targets."""
    if isinstance(pred, Rows):
        if targets is not None:
            raise DataError("rows hold their targets already; leave the targets out")
        return pred
    rows = Rows()
    rows.feed(pred, targets, levels)
    return rows


def _foreignness(rows: Rows, column: str) -> Tensor:
    return 1 - rows[column].double() if column == "confidence" else rows[column]
