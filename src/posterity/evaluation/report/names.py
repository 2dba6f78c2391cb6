"""What the names of metrics mean to a person: a label, a unit, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from posterity.evaluation.metrics import direction
from posterity.evaluation.report.numbers import percent

__all__ = ["CHARTED", "MAIN", "MEASURES", "Name", "describe"]

MAIN = ["nll", "accuracy", "brier", "ece", "aurc", "coverage_at_risk_0.01", "ood_auroc"]
MAIN += ["rmse", "crps", "interval_coverage", "interval_width", "interval_score"]
CHARTED = ["nll", "accuracy", "ece", "ood_auroc", "rmse", "crps", "interval_coverage"]

MEASURES = {"entropy": "entropy, nats", "epistemic": "mutual information, nats", "confidence": "1 − confidence"}


@dataclass(frozen=True)
class Name:
    """A metric: its label, its unit ("" for a pure number), what it says, and the value it should have, if any.

    Args:
        target: the value of a calibrated model, where neither way is better.
        better: 1 larger is better, -1 smaller is, 0 neither.
    """

    label: str
    unit: str = ""
    meaning: str = ""
    target: float | None = None
    better: int = 0


_TARGET = "target units"
_NAMES = {
    "nll": Name("NLL", "nats", "negative log-likelihood of a row"),
    "lppd": Name("LPPD", "nats", "log pointwise predictive density"),
    "accuracy": Name("Accuracy", "", "share of rows whose most probable class is right"),
    "brier": Name("Brier", "", "squared distance of the probabilities from the truth"),
    "ece": Name("ECE", "", "distance of confidence from accuracy, bins of equal width"),
    "ece_mass": Name("ECE, equal mass", "", "distance of confidence from accuracy, bins of equal counts"),
    "ece_classwise": Name("ECE, classwise", "", "the same for the probability of every class, averaged"),
    "confidence_gap": Name("Confidence gap", "", "mean confidence less accuracy; above 0 is over-confident", 0.0),
    "aurc": Name("AURC", "", "mean risk over all coverages"),
    "excess_aurc": Name("Excess AURC", "", "AURC above that of the perfect order"),
    "rmse": Name("RMSE", _TARGET, "root of the mean squared error"),
    "crps": Name("CRPS", _TARGET, "distance of the predictive distribution from the target"),
    "quantile_loss": Name("Quantile loss", _TARGET, "pinball loss, averaged over quantiles"),
}
_OOD = {
    "auroc": ("AUROC", "chance that a foreign row ranks above a familiar one"),
    "aupr_out": ("AUPR foreign", "average precision in finding foreign rows"),
    "aupr_in": ("AUPR familiar", "average precision in finding familiar rows"),
    "fpr95": ("FPR95", "foreign rows that pass where 95 % of the familiar ones do"),
}
_INTERVAL = {
    "coverage": ("coverage", "", "share of targets inside"),
    "width": ("width", _TARGET, "mean width"),
    "score": ("score", _TARGET, "width plus the penalty for targets outside"),
}


def describe(name: str, sets: Sequence[str] = ()) -> Name:
    """What a metric's name means; a name that nobody knows is its own label.

    Args:
        sets: the foreign sets, the first of which has no suffix.

    >>> describe("interval_coverage_0.5").label, describe("coverage_at_risk_0.01").better
    ('50\\u202f% interval coverage', 1)
    >>> describe("ood_auroc_epistemic_noise").label
    'OOD AUROC, epistemic, noise'
    """
    return replace(_described(name, sets), better=direction(name))


def _described(name: str, sets: Sequence[str]) -> Name:
    if name in _NAMES:
        return _NAMES[name]
    if found := re.fullmatch(r"coverage_at_risk_([\d.]+)", name):
        risk = percent(float(found[1]))
        return Name(f"Coverage at risk ≤ {risk}", "", f"largest share answered with at most {risk} wrong")
    if found := re.fullmatch(r"effective_reliability_([\d.]+)", name):
        label = f"Effective reliability, cost {found[1]}"
        return Name(label, "", f"right answers less {found[1]} for each wrong one, per row")
    if found := re.fullmatch(r"interval_(coverage|width|score)(?:_([\d.]+))?", name):
        what, unit, meaning = _INTERVAL[found[1]]
        level = float(found[2] or 0.9)
        target = level if found[1] == "coverage" else None
        return Name(f"{percent(level)} interval {what}", unit, meaning, target)
    if found := re.fullmatch(r"ood_(auroc|aupr_out|aupr_in|fpr95)(?:_(epistemic|confidence))?(?:_(.+))?", name):
        label, meaning = _OOD[found[1]]
        measure, where = found[2], found[3] or (sets[0] if len(sets) > 1 else None)
        return Name(", ".join(filter(None, [f"OOD {label}", measure, where])), "", meaning)
    return Name(name)
