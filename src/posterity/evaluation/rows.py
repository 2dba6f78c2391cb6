"""What is kept of each row of an evaluation.

`Rows` is fed block by block and keeps a few numbers per row, never a matrix of probabilities: memory is 41 bytes a row,
whatever the number of classes or draws. The metrics of blocks equal those of the whole, for any blocks; those of two
ranks add up.

The row is the unit: one with several outputs, tokens, pixels or labels counts once, its log p their sum, all else their
mean. n counts rows, because what one row holds is not independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.classwise import Classwise
from posterity.evaluation.intervals import covered_rows, interval_score_rows, pit, quantile_loss_rows
from posterity.evaluation.metric import row_means
from posterity.evaluation.proper import brier_rows, check_probs, check_targets
from posterity.problem.likelihoods.base import numbers, row_sum
from posterity.problem.targets import IGNORE, align
from posterity.random import Random

__all__ = ["LEVELS", "Rows", "suffix"]

LEVELS = (0.9, 0.5, 0.8, 0.95)  # the first is the one that metrics without a suffix speak of


class Rows:
    """Numbers per row, by name, fed block by block.

    `row` counts the rows that were fed, those that do not count included: where in the data a row was, from `seen` on.

    >>> rows = Rows()
    >>> rows.add({"entropy": torch.tensor([0.5, 0.25])})
    >>> rows.add({"entropy": torch.tensor([1.0])})
    >>> len(rows), rows["entropy"].tolist()
    (3, [0.5, 0.25, 1.0])
    """

    def __init__(self, seen: int = 0) -> None:
        self._blocks: dict[str, list[Tensor]] = {}
        self._length = 0
        self.seen = seen
        self.classwise: Classwise | None = None

    def feed(self, pred: Any, targets: Any = None, levels: Sequence[float] = LEVELS) -> None:
        """Add a block of predictions with its targets.

        Args:
            pred: a predictive of this block, of classes (it has `probs`) or of a regression (it has `interval`).
            targets: [rows] labels as in training (class indices, where `pred` has no `canonical`), or y shaped as
                `pred.mean`. Rows of label -100 are left out. None only for classes: rows of a foreign set.
            levels: of the intervals of a regression.

        Raises DataError on NaN, probabilities outside [0, 1] and targets out of range, ShapeError on shapes.
        """
        if hasattr(pred, "probs"):
            columns, counted = _classification_columns(pred, targets)
            if "correct" in columns:
                self._count_classes(Classwise.of(pred.probs[counted], columns["target"]))
        elif targets is None:
            raise DataError("a regression cannot be evaluated without its targets")
        else:
            columns, counted = _regression_columns(pred, targets, levels, self.seen), slice(None)
        where = torch.arange(self.seen, self.seen + len(pred.mean if hasattr(pred, "mean") else pred.probs))
        self.add({"row": where[counted], **columns})
        self.seen += len(where)

    def add(self, block: Mapping[str, Tensor]) -> None:
        """Add a block of columns [rows], the same names each time. Raises DataError or ShapeError otherwise."""
        if self._blocks and set(block) != set(self._blocks):
            raise DataError(f"a block with {sorted(block)} does not continue rows with {sorted(self._blocks)}")
        lengths = {name: list(column.shape) for name, column in block.items()}
        if len({tuple(shape) for shape in lengths.values()}) != 1 or len(next(iter(lengths.values()))) != 1:
            raise ShapeError(f"the columns of a block must be [rows], all of one length, got {lengths}")
        for name, column in block.items():
            self._blocks.setdefault(name, []).append(column.detach().cpu())
        self._length += next(iter(lengths.values()))[0]

    def select(self, rows: Tensor) -> Rows:
        """Some rows, by index or mask [rows]; without the class-wise tallies, which cannot be taken apart."""
        some = Rows()
        some.add({name: self[name][rows] for name in self})
        some.seen = self.seen
        return some

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._blocks

    def __iter__(self) -> Iterator[str]:
        return iter(self._blocks)

    def __getitem__(self, name: str) -> Tensor:
        """One column [rows]. Raises DataError naming the columns there are."""
        if name not in self._blocks:
            fed = (
                f"the columns are {sorted(self._blocks)}; were targets or a level left out?"
                if self
                else "nothing was fed"
            )
            raise DataError(f"these rows have no {name}: {fed}")
        self._blocks[name] = [torch.cat(self._blocks[name])]
        return self._blocks[name][0]

    def __add__(self, other: Rows) -> Rows:
        """The rows of both, in order; of two ranks or two loaders. `row` goes on counting in the second."""
        both = Rows()
        for rows in (self, other):
            if rows._blocks:
                columns = {name: rows[name] for name in rows}
                both.add({**columns, "row": columns["row"] + both.seen} if "row" in columns else columns)
            both.seen += rows.seen
            if rows.classwise is not None:
                both._count_classes(rows.classwise)
        return both

    @classmethod
    def of(cls, blocks: Iterable[Rows]) -> Rows:
        """The rows of blocks each of which began where it is in the data, in the order of the data."""
        whole = cls()
        for block in sorted(blocks, key=lambda block: block.seen):
            if block:
                whole.add({name: block[name] for name in block})
            if block.classwise is not None:
                whole._count_classes(block.classwise)
            whole.seen = block.seen
        return whole

    def _count_classes(self, tally: Classwise) -> None:
        self.classwise = tally if self.classwise is None else self.classwise + tally


def suffix(level: float) -> str:
    """What a metric's name has behind it: nothing at level 0.9, "_0.5" at 0.5."""
    return "" if level == LEVELS[0] else f"_{level:g}"


def _classification_columns(pred: Any, targets: Any) -> tuple[dict[str, Tensor], Any]:
    """The columns of the rows that count, and which these are."""
    check_probs("probs", pred.probs)
    if pred.log_probs.ndim > 2:
        return _columns_of_positions(pred, targets)
    columns = {"confidence": pred.confidence, "entropy": pred.entropy, "epistemic": pred.epistemic}
    if targets is None:
        return columns, slice(None)
    classes = pred.canonical(targets) if hasattr(pred, "canonical") else torch.as_tensor(targets)
    counts = (classes.sum(-1) > 0) if classes.is_floating_point() else (classes != IGNORE)
    if counts.shape != pred.log_probs.shape[:1]:
        raise ShapeError(
            f"targets {list(classes.shape)} do not go with probs {list(pred.probs.shape)}: one class per row"
        )
    probs, classes = pred.probs[counts], classes.to(counts.device)[counts]
    if classes.is_floating_point():  # soft labels: the distance to the whole distribution, the hit of its mode
        brier, classes = (probs.double() - classes).square().sum(1), classes.argmax(1)
    else:
        classes = check_targets(classes, *probs.shape)
        brier = brier_rows(probs, classes)
    # by the logs: float32 probabilities of two sure classes can be equal where their logs are not
    predicted = pred.log_probs[counts].argmax(1)
    columns = {name: column[counts] for name, column in columns.items()} | {
        "predicted": predicted.to(torch.int32),
        "target": classes.to(torch.int32),
        "correct": predicted == classes,
        "log_prob": pred.log_prob(targets)[counts],
        "brier": brier,
    }
    return columns, counts


def _columns_of_positions(pred: Any, targets: Any) -> tuple[dict[str, Tensor], Any]:
    """Tokens, pixels or labels: means over what counts in a row, and its summed log p."""
    measures = {"entropy": pred.per_row("entropy", targets), "epistemic": pred.per_row("epistemic", targets)}
    if targets is None:
        return measures, slice(None)
    counts = pred.counted(targets).flatten(1).any(1)
    hits = pred.per_row((pred.index == pred.canonical(targets)).float(), targets)
    columns = {**measures, "hits": hits, "log_prob": pred.log_prob(targets)}
    return {name: column[counts] for name, column in columns.items()}, counts


def _regression_columns(pred: Any, targets: Any, levels: Sequence[float], first: int) -> dict[str, Tensor]:
    y = align(numbers(targets), pred.mean.shape, "predicted means").to(pred.mean.device)
    error = pred.mean.to(torch.float64) - y.to(torch.float64)
    columns = {"mean": _first(pred.mean), "target": _first(y), "squared_error": row_means(error.square())}
    bounds = {level: pred.interval(level) for level in levels}
    for level, (lower, upper) in bounds.items():
        columns[f"covered{suffix(level)}"] = covered_rows(lower, upper, y)
        columns[f"width{suffix(level)}"] = row_means(upper - lower)
        columns[f"interval_score{suffix(level)}"] = interval_score_rows(lower, upper, y, level)
    if levels:
        columns |= {"lower": _first(bounds[levels[0]][0]), "upper": _first(bounds[levels[0]][1])}
    if hasattr(pred, "cdf"):  # else intervals alone are known
        quantiles = {0.5: pred.quantile(0.5)}
        for level, (lower, upper) in bounds.items():
            quantiles |= {(1 - level) / 2: lower, (1 + level) / 2: upper}
        losses = [quantile_loss_rows(quantile, y, q) for q, quantile in quantiles.items()]
        columns |= {
            "log_prob": row_sum(pred.log_prob(y)),
            "crps": row_means(pred.crps(y)),
            "variance": row_means(pred.std.double().square()),
            "quantile_loss": torch.stack(losses).mean(0),
            "pit": _first(_pit(pred, y, first)),
        }
    return columns


def _pit(pred: Any, y: Tensor, first: int) -> Tensor:
    """F(y); for counts anywhere between F(y - 1) and F(y), so that it is uniform (Brockwell, 2007)."""
    values = pit(pred.cdf, y)
    if not getattr(pred, "discrete", False):
        return values
    below = pit(pred.cdf, y - 1)
    share = torch.rand(y.shape, generator=Random(0).fold("pit").fold(first).generator(), dtype=torch.float64)
    return below + share * (values - below)


def _first(values: Tensor) -> Tensor:
    """[rows] the first output of each row."""
    return values if values.ndim == 1 else values.reshape(len(values), -1)[:, 0] if len(values) else values.flatten()
