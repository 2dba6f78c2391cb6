"""Classes from one logit each: `Labelled`, what likelihoods of labels share, and `Categorical`, one of C from C logits.

    log p(y) = w_y log softmax(z)_y          Fisher information of z    (sum_c p_c w_c) (diag(p) - p p^T)

w are class weights, 1 by default. They change the likelihood, hence the predicted probabilities: a heavy class is
predicted more often than it occurs. A row's log-likelihood is the plain sum of its weighted terms, never divided by a
sum of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.problem.likelihoods.base import ClassLikelihood, Outputs, exact, row_sum
from posterity.problem.likelihoods.labels import (
    ClassWeight,
    balanced,
    class_names,
    count_labels,
    normalised_weight,
    select,
    weights_of,
)
from posterity.problem.targets import IGNORE, Label, align, distribution, ignored_rows, indices, plain, quoted

__all__ = ["Categorical", "Labelled"]


@dataclass(frozen=True)
class Labelled(ClassLikelihood):
    """What `Categorical` and `Bernoulli` share: labels, weights, and targets that do not count."""

    classes: tuple[Label, ...] | None = None
    class_weight: ClassWeight = None
    ignore_index: int = IGNORE

    binary: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_weight", normalised_weight(self.class_weight))
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(_plain_label(label) for label in self.classes))
            if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
                raise DataError(f"classes must be two or more different labels, got {quoted(self.classes)}")
            if len({isinstance(label, str) for label in self.classes}) > 1:
                raise DataError(f"classes mix strings and numbers: {quoted(self.classes)}")

    @property
    def needs_survey(self) -> bool:
        """Until the classes are known, and counted where weights are to be balanced."""
        return self.classes is None or self.class_weight == "balanced"

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """Learns the sorted labels, and the weights if they are "balanced"; classes given by hand stay as they are.

        Raises:
            DataError: no rows, one class, everything ignored, or a label that is not among the given classes.
        """
        counts = count_labels(targets, self.ignore_index, self.binary, self.classes)
        weight = balanced(counts) if self.class_weight == "balanced" else self.class_weight
        return replace(self, classes=self.classes or tuple(counts), class_weight=weight)

    def void(self, targets: Any) -> Tensor:
        """[rows] bool: rows of raw targets that hold nothing but `ignore_index`."""
        return ignored_rows(targets, self.ignore_index)


def _plain_label(label: Any) -> Label:
    """A Python string, integer or boolean, whatever array or tensor it came from."""
    value = label.item() if hasattr(label, "item") else label
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Categorical(Labelled):
    """One of C classes from C logits: `[rows, C]`, or `[rows, C, ...]` with one label per position (segmentation).

    Targets: labels `[rows, ...]` or `[rows, 1]` of any integer, boolean or string type, or one-hot or soft labels in
    the shape of the logits. `classes` are the labels in the order of the logits, learned by `surveyed` (sorted).
    `class_weight`: one weight per class, a mapping label -> weight, or "balanced".
    """

    name: ClassVar[str] = "categorical"

    def check(self, outputs: Outputs) -> None:
        """`[rows, C, ...]` with C >= 2."""
        super().check(outputs)
        shape = tuple(outputs.shape)  # type: ignore[union-attr]
        if len(shape) < 2 or shape[1] < 2:
            raise ShapeError(
                f"categorical wants logits [rows, classes >= 2, ...], got {shape}: for one logit use 'bernoulli'"
            )

    def names(self, logits: int) -> Sequence[Label]:
        """The label of each logit."""
        return class_names(self.classes, logits)

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """int64 positions `[rows, ...]`, `IGNORE` where a target does not count; or soft `[rows, ..., C]`."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        names = self.names(outputs.shape[1])
        values = plain(targets)
        if isinstance(values, Tensor) and values.shape == outputs.shape:
            result = distribution(values, self.ignore_index)
            result = result.to(exact(outputs[:0]).dtype) if result.is_floating_point() else result
        else:
            where = (outputs.shape[0], *outputs.shape[2:])
            result = indices(
                align(values, where, f"logits {tuple(outputs.shape)}, that is labels"), names, self.ignore_index
            )
        return result.to(outputs.device)

    def aligned(self, targets: Any, log_probs: Tensor) -> Tensor:
        """int64 positions `[rows, ...]`, or soft `[rows, ..., C]`."""
        return self.canonical(targets, log_probs.movedim(-1, 1))

    def log_probs(self, outputs: Tensor) -> Tensor:
        """[rows, ..., C]: log softmax, classes last."""
        return F.log_softmax(exact(outputs), dim=1).movedim(1, -1)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over positions of w_y log softmax(z)_y."""
        logits = exact(outputs)  # type: ignore[arg-type]
        weights = weights_of(self.class_weight, self.names(logits.shape[1]), logits)
        if targets.is_floating_point():
            return row_sum(select(self.log_probs(logits), targets, weights))
        # one kernel forward and one backward: this runs in every training step
        return row_sum(-F.cross_entropy(logits, targets, weights, ignore_index=IGNORE, reduction="none"))

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, C, C]: (sum_c p_c w_c) (diag(p) - p p^T); one position per row only."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        if outputs.ndim > 2:
            raise CompatibilityError(
                f"the Fisher information of dense outputs {tuple(outputs.shape)} is too large to be written down: "
                "use a method that takes gradients only, or a head that gives one label per row"
            )
        p = self.log_probs(outputs).exp()
        fisher = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        weights = weights_of(self.class_weight, self.names(p.shape[1]), p)
        return fisher if weights is None else fisher * (p @ weights)[:, None, None]
