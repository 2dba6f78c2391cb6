"""What is kept of each row, and the metrics of a set of rows.

`Rows` is fed block by block and keeps a few numbers per row, never a matrix of probabilities: memory is 25 bytes a row,
whatever the number of classes or draws. The metrics of blocks equal those of the whole, for any blocks.

The row is the unit: one with several outputs, tokens, pixels or labels counts once, its log p their sum, all else their
mean. n counts rows, because what one row holds is not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import auroc
from posterity.evaluation.intervals import covered_rows, share
from posterity.evaluation.metric import Metric, mean_interval, row_means
from posterity.evaluation.proper import accuracy, brier_rows, check_probs, check_targets, crps, nll, root
from posterity.evaluation.selective import aurc
from posterity.problem.likelihoods.base import numbers, row_sum
from posterity.problem.targets import IGNORE, align

__all__ = ["Rows", "classification_metrics", "regression_metrics"]


class Rows:
    """Numbers per row, by name, fed block by block.

    >>> rows = Rows()
    >>> rows.add({"entropy": torch.tensor([0.5, 0.25])})
    >>> rows.add({"entropy": torch.tensor([1.0])})
    >>> len(rows), rows["entropy"].tolist()
    (3, [0.5, 0.25, 1.0])
    """

    def __init__(self) -> None:
        self._blocks: dict[str, list[Tensor]] = {}
        self._length = 0

    def feed(self, pred: Any, targets: Any = None, levels: Sequence[float] = (0.9,)) -> None:
        """Add a block of predictions with its targets.

        Args:
            pred: a predictive of this block, of classes (it has `probs`) or of a regression (it has `interval`).
            targets: [rows] labels as in training (class indices, where `pred` has no `canonical`), or y shaped as
                `pred.mean`. Rows of label -100 are left out. None only for classes: rows of a foreign set.
            levels: of the intervals of a regression.

        Raises DataError on NaN, probabilities outside [0, 1] and targets out of range, ShapeError on shapes,
        CompatibilityError for several labels per row.
        """
        if hasattr(pred, "probs"):
            self.add(_classification_columns(pred, targets))
        elif targets is None:
            raise DataError("a regression cannot be evaluated without its targets")
        else:
            self.add(_regression_columns(pred, targets, levels))

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
        """The rows of both, in order; of two ranks or two loaders."""
        both = Rows()
        for rows in (self, other):
            if rows._blocks:
                both.add({name: rows[name] for name in rows})
        return both


def classification_metrics(
    pred: Any, targets: Any = None, ood: Mapping[str, Any] | None = None, bins: int = 15
) -> dict[str, Metric]:
    """The metrics of a classification, by name.

    nll, accuracy, brier, ece (of the top class), aurc; nll and accuracy only where a row has several positions or labels.
    For each foreign set, by predictive entropy, `ood_auroc`
    (the first set) or `ood_auroc_<name>` (every other), and by mutual information `ood_auroc_epistemic` or
    `ood_auroc_epistemic_<name>`: NaN with a reason for a point prediction, whose mutual information is 0.

    Args:
        pred: a predictive with `probs` and `log_probs` [rows, classes], `confidence`, `entropy`, `epistemic` [rows]
            (nats) and `log_prob(targets)` [rows]; or the `Rows` fed with them.
        targets: [rows] labels as of `Rows.feed`; None for `Rows`.
        ood: name -> predictive or `Rows` of a foreign set.
        bins: of the ECE.

    Without rows every metric is NaN with a reason. Raises DataError or ShapeError as `Rows.feed`, and DataError for an
    empty foreign set.
    """
    rows = _rows(pred, targets)
    if "hits" in rows:
        metrics = {"nll": nll(rows["log_prob"]), "accuracy": mean_interval(rows["hits"], 0.0, 1.0)}
    else:
        metrics = {
            "nll": nll(rows["log_prob"]),
            "accuracy": accuracy(rows["correct"]),
            "brier": mean_interval(rows["brier"], 0.0, 2.0),
            "ece": ece(rows["confidence"], rows["correct"], bins),
            "aurc": aurc(rows["confidence"], rows["correct"]),
        }
    for position, (name, foreign) in enumerate((ood or {}).items()):
        if name == "epistemic" or name.startswith("epistemic_"):
            raise DataError(f"a foreign set cannot be called {name!r}: ood_auroc_{name} is another metric's name")
        suffix = f"_{name}" if position else ""
        outside = _rows(foreign, None)
        for key, column in (("ood_auroc", "entropy"), ("ood_auroc_epistemic", "epistemic")):
            metrics[key + suffix] = auroc(rows[column], outside[column])
    return metrics


def regression_metrics(pred: Any, y: Any = None, levels: Sequence[float] = (0.9,)) -> dict[str, Metric]:
    """The metrics of a regression, by name, in units of the target.

    nll, rmse, crps, and per level interval_coverage and interval_width: level 0.9 under these names, another one with
    its percentage behind, as `interval_coverage_50`. A row with several outputs counts once: log p is their sum, all
    else their mean.

    Args:
        pred: a predictive with `mean` [rows] or [rows, outputs], `log_prob(y)`, `crps(y)` and
            `interval(level) -> (lower, upper)`; or the `Rows` fed with them, and the same levels.
        y: the targets, shaped as `mean`; None for `Rows`.
        levels: in (0, 1).

    Without rows every metric is NaN with a reason. Raises DataError on NaN, ShapeError unless y is shaped as the mean.
    """
    rows = _rows(pred, y, levels)
    metrics = {
        "nll": nll(rows["log_prob"]),
        "rmse": root(mean_interval(rows["squared_error"], lowest=0.0)),
        "crps": crps(rows["crps"]),
    }
    for suffix in map(_suffix, levels):
        metrics[f"interval_coverage{suffix}"] = share(rows[f"covered{suffix}"])
        metrics[f"interval_width{suffix}"] = mean_interval(rows[f"width{suffix}"], lowest=0.0)
    return metrics


def _rows(pred: Any, targets: Any, levels: Sequence[float] = (0.9,)) -> Rows:
    if isinstance(pred, Rows):
        if targets is not None:
            raise DataError("rows hold their targets already; leave the targets out")
        return pred
    rows = Rows()
    rows.feed(pred, targets, levels)
    return rows


def _classification_columns(pred: Any, targets: Any) -> dict[str, Tensor]:
    check_probs("probs", pred.probs)
    if pred.log_probs.ndim > 2:
        return _columns_of_positions(pred, targets)
    columns = {"confidence": pred.confidence, "entropy": pred.entropy, "epistemic": pred.epistemic}
    if targets is None:
        return columns
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
    return {name: column[counts] for name, column in columns.items()} | {
        # by the logs: float32 probabilities of two sure classes can be equal where their logs are not
        "correct": pred.log_probs[counts].argmax(1) == classes,
        "log_prob": pred.log_prob(targets)[counts],
        "brier": brier,
    }


def _columns_of_positions(pred: Any, targets: Any) -> dict[str, Tensor]:
    """Tokens, pixels or labels: means over what counts in a row, and its summed log p."""
    measures = {"entropy": pred.per_row("entropy", targets), "epistemic": pred.per_row("epistemic", targets)}
    if targets is None:
        return measures
    counts = pred.counted(targets).flatten(1).any(1)
    hits = pred.per_row((pred.index == pred.canonical(targets)).float(), targets)
    columns = {**measures, "hits": hits, "log_prob": pred.log_prob(targets)}
    return {name: column[counts] for name, column in columns.items()}


def _regression_columns(pred: Any, targets: Any, levels: Sequence[float]) -> dict[str, Tensor]:
    y = align(numbers(targets), pred.mean.shape, "predicted means").to(pred.mean.device)
    columns = {
        "log_prob": row_sum(pred.log_prob(y)),
        "squared_error": row_means((pred.mean.to(torch.float64) - y.to(torch.float64)).square()),
        "crps": row_means(pred.crps(y)),
    }
    for level in levels:
        lower, upper = pred.interval(level)
        columns[f"covered{_suffix(level)}"] = covered_rows(lower, upper, y)
        columns[f"width{_suffix(level)}"] = row_means(upper - lower)
    return columns


def _suffix(level: float) -> str:
    return "" if level == 0.9 else f"_{100 * level:g}"
