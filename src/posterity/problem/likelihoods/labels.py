"""Which label each logit stands for, how often each was seen, and what each weighs.

Integer labels that all lie in 0..C-1 of a network with C logits ARE positions (the convention of PyTorch), whether or
not every position was seen; otherwise C sorted labels go to the C logits in order (the convention of scikit-learn).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.problem.targets import Label, finite, is_distribution, plain, quoted, whole

__all__ = [
    "ClassWeight",
    "LabelCount",
    "balanced",
    "class_names",
    "count_labels",
    "normalised_weight",
    "select",
    "weights_of",
]

# one weight per logit, or (label, weight) pairs; "balanced" until the survey has counted
ClassWeight: TypeAlias = str | tuple[float, ...] | tuple[tuple[Label, float], ...] | None


def class_names(classes: Sequence[Label] | None, logits: int) -> Sequence[Label]:
    """The label of each of `logits` logits: `range(logits)` where targets are positions, else one of `classes` each.

    `classes` are the labels seen in training, None if nobody looked.

    >>> class_names((0, 2, 5), 6), class_names((0, 2, 5), 3)
    (range(0, 6), (0, 2, 5))

    Raises:
        ShapeError: labels that are neither positions nor as many as there are logits.
    """
    if classes is None:
        return range(logits)
    if len(classes) == logits and any(isinstance(label, (str, bool)) for label in classes):
        return classes
    if all(not isinstance(label, str) and 0 <= label < logits for label in classes):
        return range(logits)
    if len(classes) == logits:
        return classes
    raise ShapeError(
        f"the network has {logits} logits, but the training targets hold {len(classes)} classes ({quoted(classes)}): "
        f"give the network {len(classes)} logits, or use integer labels below {logits}"
    )


class LabelCount:
    """How often each label occurs in a stream of raw target batches: hard, one-hot or soft."""

    def __init__(self, ignore: int, binary: bool) -> None:
        self.ignore, self.binary = ignore, binary
        self.rows = 0
        self.counts: dict[Label, float] = {}
        self.columns: Tensor | None = None  # sums over one-hot or soft rows, while every batch can be read so
        self.fractions = False

    def add(self, targets: Any) -> None:
        """Count one batch."""
        values = plain(targets)
        first, self.rows = self.rows, self.rows + len(values)
        if len(values) == 0:
            return
        if not isinstance(values, Tensor):
            self.columns = None if first else self.columns
            self._labels(*np.unique(values, return_counts=True))
            return
        finite(values, first)
        spread = not self.binary and is_distribution(values, self.ignore)
        known = self.columns is not None and spread and len(self.columns) == values.shape[1]
        if spread and (first == 0 or known):
            sums = values.double().masked_fill(values == self.ignore, 0).movedim(1, 0).flatten(1).sum(1).cpu()
            self.columns = sums if self.columns is None else self.columns + sums
        else:
            self.columns = None
        fractions = values.is_floating_point() and not bool((values == values.round()).all())
        self.fractions |= fractions
        if fractions and self.binary:
            counted = values[values != self.ignore].double()
            if bool(((counted < 0) | (counted > 1)).any()):
                raise DataError("soft targets of two classes are probabilities: they lie in [0, 1]")
            self._labels([0, 1], [float((1 - counted).sum()), float(counted.sum())])
        elif not (fractions and spread):
            hint = "class labels are integers, booleans or strings; for numbers use a regression likelihood"
            labels = values if values.dtype == torch.bool else whole(values, hint, first)
            labels, counts = labels[labels != self.ignore].unique(return_counts=True)
            self._labels(labels.tolist(), counts.tolist())

    def _labels(self, labels: Iterable[Any], counts: Iterable[Any]) -> None:
        for label, count in zip(labels, counts):
            key = str(label) if isinstance(label, str) else label
            self.counts[key] = self.counts.get(key, 0.0) + float(count)

    def result(self, classes: Sequence[Label] | None = None) -> dict[Label, float]:
        """Label -> count, sorted by label; one-hot and soft columns stand for `classes`, or for 0, 1, ...

        Raises:
            DataError: no rows, everything ignored, a single class, strings among numbers, a label not among `classes`.
        """
        if self.rows == 0:
            raise DataError("no targets: 0 rows")
        if self.columns is not None:
            columns = self.columns.tolist()
            names = classes if classes is not None and len(classes) == len(columns) else range(len(columns))
            found: dict[Label, float] = dict(zip(names, columns))
        elif self.fractions and not self.binary:
            raise DataError("some batches hold soft labels and others do not, or of another number of classes")
        elif len({isinstance(label, str) for label in self.counts}) > 1:
            raise DataError(f"labels mix strings and numbers: {quoted(list(self.counts))}")
        else:
            found = {label: self.counts[label] for label in sorted(self.counts)}
        present = [label for label, count in found.items() if count > 0]
        if not present:
            raise DataError(
                f"every target of {self.rows} rows is ignored ({self.ignore}): there is nothing to learn from"
            )
        if len(present) == 1:
            raise DataError(f"only one class, {present[0]!r}, in {self.rows} rows: there is nothing to tell apart")
        if classes is not None and (unknown := [label for label in found if label not in classes]):
            raise DataError(f"unknown label {unknown[0]!r}; the known ones are {quoted(classes)}")
        return found


def count_labels(
    batches: Iterable[Any], ignore: int, binary: bool = False, classes: Sequence[Label] | None = None
) -> dict[Label, float]:
    """`LabelCount` over all of `batches`."""
    counter = LabelCount(ignore, binary)
    for batch in batches:
        counter.add(batch)
    return counter.result(classes)


def normalised_weight(weight: Any) -> ClassWeight:
    """What a user gives as class weights, in immutable form.

    Raises:
        DataError: weights that are negative or not finite, or an unknown word.
    """
    if weight is None or (isinstance(weight, str) and weight == "balanced"):
        return weight
    if isinstance(weight, str):
        raise DataError(
            f"class_weight {weight!r} is unknown: give 'balanced', one weight per class, or label -> weight"
        )
    if isinstance(weight, Mapping):
        weight = tuple(weight.items())
    pairs = [item if isinstance(item, (tuple, list)) else (index, item) for index, item in enumerate(weight)]
    named = any(isinstance(item, (tuple, list)) for item in weight)
    clean = tuple((label, float(value)) for label, value in pairs)
    if bad := [label for label, value in clean if not 0 <= value < float("inf")]:
        raise DataError(f"class weights must be finite and >= 0; that of {bad[0]!r} is not")
    return clean if named else tuple(value for _, value in clean)


def balanced(counts: Mapping[Label, float]) -> ClassWeight:
    """n / (K n_c) for each of K classes seen, as in scikit-learn: every class has the same total weight."""
    seen = {label: count for label, count in counts.items() if count > 0}
    total = sum(seen.values())
    return tuple((label, total / (len(seen) * count)) for label, count in seen.items())


def weights_of(weight: ClassWeight, names: Sequence[Label], like: Tensor) -> Tensor | None:
    """[classes] weights on the device and in the dtype of `like`; a label without one weighs 1; None if all do."""
    if weight is None:
        return None
    if isinstance(weight, str):
        raise DataError("class_weight='balanced' has to count first: call `surveyed(targets)`")
    if weight and isinstance(weight[0], tuple):
        given: dict[Label, float] = dict(weight)
        if unknown := [label for label in given if label not in names]:
            raise DataError(f"class_weight names the unknown label {unknown[0]!r}; the known ones are {quoted(names)}")
        values = [given.get(label, 1.0) for label in names]
    elif len(weight) != len(names):
        raise ShapeError(f"class_weight holds {len(weight)} weights for {len(names)} classes ({quoted(names)})")
    else:
        values = [float(value) for value in weight]  # type: ignore[arg-type]
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def select(log_probs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """[rows, ...] weighted log-probability of canonical targets, 0 where ignored, from `[rows, ..., classes]`."""
    if targets.is_floating_point():
        share = targets if weights is None else targets * weights
        return torch.where(targets > 0, share * log_probs, 0).sum(-1)  # 0 * -inf counts as 0
    ignored = targets < 0
    index = targets.masked_fill(ignored, 0)
    picked = log_probs.gather(-1, index[..., None])[..., 0]
    if weights is not None:
        picked = picked * weights[index]
    return picked.masked_fill(ignored, 0)
