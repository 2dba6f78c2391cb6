"""Answers and deferrals: a label for each row, whether it is given, and, where it is not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    import pandas

__all__ = ["Answers", "Rule", "answers_of"]

_UNITS = {"confidence": "", "entropy": " nats", "epistemic": " nats"}


@dataclass(frozen=True)
class Rule:
    """When a row is answered.

    Args:
        by: the measure of certainty, "confidence", "entropy" or "epistemic".
        threshold: of `by`: answered is a confidence of at least, an entropy or mutual information (nats) of at most this.
        foreign_by, foreign_above: what tells foreign rows, and from where on; None where nothing does.
        refused: why nothing is answered at all.
    """

    by: str
    threshold: float
    foreign_by: str = "epistemic"
    foreign_above: float | None = None
    refused: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """What is said about each row.

    Args:
        label: [rows] the most probable class, of deferred rows too: an array of strings or a tensor.
        answered: [rows] bool.
        reason: why a row is deferred; "" of an answered one.
        confidence: [rows] the probability of `label`; entropy, epistemic: [rows], nats.
    """

    label: Tensor | NDArray[Any]
    answered: Tensor
    reason: tuple[str, ...]
    confidence: Tensor
    entropy: Tensor
    epistemic: Tensor

    def __len__(self) -> int:
        return len(self.reason)

    @property
    def coverage(self) -> float:
        """The share answered; NaN without rows."""
        return self.answered.double().mean().item()

    def __repr__(self) -> str:
        return f"Answers(rows={len(self)}, answered={int(self.answered.sum())})"

    def to_frame(self) -> pandas.DataFrame:
        """label, answered, reason, confidence, entropy, epistemic; a line per row. Raises ImportError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install 'posterity[tables]'") from error
        columns = {name: getattr(self, name) for name in ("label", "answered", "reason", *_UNITS)}
        return pandas.DataFrame(
            {name: value.numpy() if isinstance(value, Tensor) else list(value) for name, value in columns.items()}
        )


def answers_of(pred: Any, rule: Rule, label: Any = None) -> Answers:
    """Apply a rule to predicted classes, one class per row; `label` [rows] as the user knows them, or those of `pred`."""
    measure = getattr(pred, rule.by).double()
    sure = measure >= rule.threshold if rule.by == "confidence" else measure <= rule.threshold
    foreign = torch.zeros(len(pred), dtype=torch.bool)
    if rule.foreign_above is not None:
        strange = getattr(pred, rule.foreign_by).double()
        foreign = strange > rule.foreign_above
    answered = sure & ~foreign if rule.refused is None else torch.zeros_like(foreign)
    reasons = [""] * len(pred)
    for row in (~answered).nonzero().flatten().tolist():
        if rule.refused is not None:
            reasons[row] = rule.refused
        elif foreign[row]:
            assert rule.foreign_above is not None
            reasons[row] = f"foreign: {_beside(rule.foreign_by, strange[row].item(), '>', rule.foreign_above)}"
        else:
            sign = "<" if rule.by == "confidence" else ">"
            reasons[row] = f"not sure enough: {_beside(rule.by, measure[row].item(), sign, rule.threshold)}"
    label = pred.label if label is None else label
    return Answers(label, answered, tuple(reasons), pred.confidence, pred.entropy, pred.epistemic)


def _beside(name: str, value: float, sign: str, threshold: float) -> str:
    """ "confidence 0.71 < 0.93", in as many digits as tell the two apart."""
    for digits in range(2, 18):
        shown = f"{value:.{digits}g}", f"{threshold:.{digits}g}"
        if float(shown[0]) != float(shown[1]):
            break
    return f"{name} {shown[0]} {sign} {shown[1]}{_UNITS[name]}"
