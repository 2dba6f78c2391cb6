"""Rows fed with predictions: those that a model makes, shared among the ranks, or those that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from posterity.errors import DataError
from posterity.evaluation.details import Show
from posterity.evaluation.measured import Measured
from posterity.evaluation.predictions import as_predictive
from posterity.evaluation.rows import Rows
from posterity.group import ALONE, Group
from posterity.model import BayesianModel
from posterity.prediction.turns import Turns

__all__ = ["Asked", "Given", "Predictor", "fed"]


@dataclass(frozen=True)
class Asked:
    """What an evaluation was asked for."""

    data: Any
    ood: dict[str, Any]
    levels: tuple[float, ...]
    validation: Any
    groups: dict[str, Any]
    show: Show | None
    options: dict[str, Any] = field(default_factory=dict)
    labels: tuple[Any, ...] | None = None
    group: Group = ALONE


class Predictor:
    """Predictions that a model makes, in blocks."""

    def __init__(self, model: BayesianModel, via: str | None, asked: Asked) -> None:
        self.model, self.options = model, {"via": via, **asked.options}
        self.parts = len(asked.data) if isinstance(asked.data, tuple) else 0

    def labelled(self, data: Any, turns: Turns) -> Iterable[tuple[Any, Any]]:
        return self.model.predict_with_targets(data, turns=turns, **self.options)

    def foreign(self, data: Any, turns: Turns) -> Iterable[tuple[Any, None]]:
        if self.parts > 1 and isinstance(data, tuple) and len(data) == self.parts:  # with targets, as the labelled rows
            data = data[:-1] if self.parts > 2 else data[0]
        return ((pred, None) for pred in self.model.predict_blocks(data, turns=turns, **self.options))


class Given:
    """Predictions that are there."""

    def __init__(self, predictions: Any, asked: Asked) -> None:
        self.predictions, self.asked = predictions, asked

    def labelled(self, data: Any, turns: Turns) -> Iterable[tuple[Any, Any]]:
        if data is self.asked.validation:  # comes with predictions of its own
            if not isinstance(data, tuple) or len(data) != 2:
                raise DataError("validation= beside predictions is a pair: predictions and targets")
            return [(self._read(data[0]), data[1])]
        pred = self._read(self.predictions)
        if hasattr(pred, "probs") and all(isinstance(name, int) for name in pred.likelihood.classes or ()):
            first = next(iter(data), None) if hasattr(data, "__iter__") else None
            if isinstance(first, str):
                raise DataError("the targets are words: labels=[...] says which column of probabilities is which class")
        return [(pred, data)]

    def foreign(self, data: Any, turns: Turns) -> Iterable[tuple[Any, None]]:
        return [(self._read(data), None)]

    def _read(self, predictions: Any) -> Any:
        return as_predictive(predictions, self.asked.labels, (*self.asked.levels, 0.9)[0])


def fed(source: Predictor | Given, method: str, asked: Asked) -> Measured:
    """The numbers of every row of what was asked for."""
    rows, facts = _rows(source.labelled, asked.data, asked)
    if facts is None or rows.seen == 0:
        raise DataError("the evaluation data has no rows")
    if not facts.classes and asked.ood:
        raise DataError("foreign sets are told apart by a classifier's entropy: leave ood= out for a regression")
    foreign = {name: _rows(source.foreign, inputs, asked)[0] for name, inputs in asked.ood.items()}
    held_out = None
    if facts.classes and asked.validation is not None:
        held_out, _ = _rows(source.labelled, asked.validation, asked)
    return Measured(method, facts.via, facts.classes, rows, foreign, held_out, facts.labels)


class _Facts(NamedTuple):
    """What is known of all rows from one block of them."""

    via: str
    classes: bool
    labels: tuple[Any, ...]

    @classmethod
    def of(cls, pred: Any) -> _Facts:
        classes = hasattr(pred, "probs")
        labels: tuple[Any, ...] = ()
        if classes and pred.log_probs.ndim == 2:
            labels = tuple(pred.likelihood.names(pred.log_probs.shape[-1]))
        return cls(pred.via, classes, labels)


def _rows(
    predictions: Callable[[Any, Turns], Iterable[tuple[Any, Any]]], data: Any, asked: Asked
) -> tuple[Rows, _Facts | None]:
    """The rows of all ranks, in the order of the data."""
    turns, facts = Turns(asked.group), None
    blocks: list[Rows] = []
    for index, (pred, targets) in enumerate(predictions(data, turns)):
        facts = facts or _Facts.of(pred)
        blocks.append(Rows(turns.starts[index] if turns.starts else 0))
        blocks[-1].feed(pred, targets, asked.levels)
    found = asked.group.every((blocks, facts))
    return Rows.of(block for own, _ in found for block in own), next((own for _, own in found if own), None)
