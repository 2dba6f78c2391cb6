"""This library's metrics as `torchmetrics.Metric`: updated batch by batch, gathered over processes, equal to `po.evaluate`.

from posterity.torchmetrics import RowMetric, collection

metrics = collection("nll", "ece", "aurc")
metrics.update(model.predict(x), y)
metrics.compute()                        {"nll": tensor(...), ...}
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.evaluation.calibration import confidence_gap, ece
from posterity.evaluation.intervals import share
from posterity.evaluation.metric import Metric as Found
from posterity.evaluation.metric import mean_interval
from posterity.evaluation.metrics import direction
from posterity.evaluation.predictions import as_predictive
from posterity.evaluation.proper import accuracy, crps, nll, root
from posterity.evaluation.rows import LEVELS, Rows
from posterity.evaluation.selective import aurc, excess_aurc

try:
    from torchmetrics import Metric, MetricCollection
except ImportError as error:
    raise ImportError("posterity.torchmetrics needs torchmetrics: pip install 'posterity[torchmetrics]'") from error

__all__ = ["NAMES", "RowMetric", "collection"]

_TOP = ("confidence", "correct")

# name -> the columns of `Rows` that it is made of, and how
_TABLE: dict[str, tuple[tuple[str, ...], Callable[..., Found]]] = {
    "nll": (("log_prob",), nll),
    "accuracy": (("correct",), accuracy),
    "brier": (("brier",), partial(mean_interval, lowest=0.0, highest=2.0)),
    "ece": (_TOP, ece),
    "confidence_gap": (_TOP, confidence_gap),
    "aurc": (_TOP, aurc),
    "excess_aurc": (_TOP, excess_aurc),
    "rmse": (("squared_error",), lambda column: root(mean_interval(column, lowest=0.0))),
    "crps": (("crps",), crps),
    "interval_coverage": (("covered",), share),
    "interval_width": (("width",), partial(mean_interval, lowest=0.0)),
    "interval_score": (("interval_score",), partial(mean_interval, lowest=0.0)),
}
NAMES = tuple(_TABLE)


class RowMetric(Metric):
    """One metric; it keeps one or two numbers per row. Intervals are those of level 0.9.

    Args:
        name: one of `NAMES`; "nll" is for classes and numbers, from "rmse" on they are for numbers.
        options: of torchmetrics.

    Raises:
        CompatibilityError: an unknown name.

    >>> metric = RowMetric("brier")
    >>> metric.update(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 0]))
    >>> round(metric.compute().item(), 3)
    0.4
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        if name not in _TABLE:
            raise CompatibilityError(f"there is no metric {name!r} here: choose of {', '.join(NAMES)}")
        self.name = name
        self.columns, self.function = _TABLE[name]
        for column in self.columns:
            self.add_state(column, default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Whether more is better; None where neither is."""
        return {1: True, -1: False, 0: None}[direction(self.name)]

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch.

        Args:
            preds: what `predict` gave, or anything that `po.evaluate` takes: probabilities, {"mean": ..., "std": ...}.
            target: as in training; rows of label -100 are left out.

        Raises:
            DataError, ShapeError: NaN, probabilities outside [0, 1], targets that do not fit.
        """
        rows = Rows()
        rows.feed(as_predictive(preds, None, LEVELS[0]), target, LEVELS[:1])
        for column in self.columns:
            getattr(self, column).append(rows[column].to(self.device))

    def compute(self) -> Tensor:
        """() the value over all rows; NaN where it is undefined."""
        columns = [getattr(self, column) for column in self.columns]
        whole = [torch.cat(part) if isinstance(part, list) else part for part in columns]
        return torch.tensor(self.function(*(part.cpu() for part in whole)).value, dtype=torch.float64)


def collection(*names: str) -> MetricCollection:
    """Several of them, by name.

    Raises:
        CompatibilityError: an unknown name.
    """
    return MetricCollection({name: RowMetric(name) for name in names})
