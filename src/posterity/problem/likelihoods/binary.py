"""Yes or no from one logit: one of two classes (`Bernoulli`), or any of L labels (`Multilabel`).

    Bernoulli     log p(y) = w_1 y log p + w_0 (1 - y) log(1 - p)           Fisher  (p w_1 + (1 - p) w_0) p (1 - p)
    Multilabel    log p(y) = sum_l y_l log p_l + (1 - y_l) log(1 - p_l)     Fisher  diag(p_l (1 - p_l))

p = sigmoid(z), w are class weights, 1 by default (see `classification`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.problem.likelihoods.base import ClassLikelihood, Outputs, exact, numbers, row_sum
from posterity.problem.likelihoods.classification import Labelled
from posterity.problem.likelihoods.labels import class_names, weights_of
from posterity.problem.targets import IGNORE, Label, align, bounded, ignored_rows, indices, plain, quoted

__all__ = ["Bernoulli", "Multilabel"]


def _bernoulli(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Element-wise y log p + (1 - y) log(1 - p), 0 where `targets` are `IGNORE`."""
    logits = exact(logits)
    one, zero = (1, 1) if weights is None else (weights[1], weights[0])
    terms = one * targets * F.logsigmoid(logits) + zero * (1 - targets) * F.logsigmoid(-logits)
    return terms.masked_fill(targets == IGNORE, 0)


def _both(logits: Tensor) -> Tensor:
    """[..., 2]: log(1 - p) and log p."""
    logits = exact(logits)
    return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], -1)


def _as_classes(targets: Tensor) -> Tensor:
    """Canonical 0, 1, probability or `IGNORE` as classes: int64, or soft [..., 2] if there are probabilities."""
    ignored = targets == IGNORE
    if bool((ignored | (targets == 0) | (targets == 1)).all()):
        return targets.to(torch.int64)
    return torch.stack([1 - targets, targets], -1).masked_fill(ignored[..., None], 0)


def _bernoulli_fisher(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    if outputs.ndim > 2:
        raise CompatibilityError(
            f"the Fisher information of dense outputs {tuple(outputs.shape)} is too large to be written down: "
            "use a method that takes gradients only"
        )
    p = torch.sigmoid(exact(outputs)).reshape(outputs.shape[0], -1 if outputs.numel() else 1)
    q = torch.sigmoid(-exact(outputs)).reshape(p.shape)  # 1 - p without cancellation
    return torch.diag_embed(p * q if weights is None else p * q * (p * weights[1] + q * weights[0]))


@dataclass(frozen=True)
class Bernoulli(Labelled):
    """One of two classes from one logit: `[rows]` or `[rows, 1]`, or one per position of any shape `[rows, ...]`.

    The logit is that of the second of the two sorted labels. Targets: labels of any type, or probabilities of the
    second class in [0, 1].
    """

    name: ClassVar[str] = "bernoulli"
    binary: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None and len(self.classes) != 2:
            raise DataError(
                f"bernoulli tells two classes apart, got {quoted(self.classes)}: for more use 'categorical'"
            )

    def names(self, logits: int = 2) -> Sequence[Label]:
        """The two labels; the logit is that of the second."""
        return class_names(self.classes, 2)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """[rows, ..., 2]: log(1 - p), log p; a last axis of one logit is dropped."""
        return _both(outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs)

    def aligned(self, targets: Any, log_probs: Tensor) -> Tensor:
        """int64 0 or 1 `[rows, ...]`, or soft `[rows, ..., 2]`."""
        return _as_classes(self.canonical(targets, log_probs[..., 1]))

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """Float 0, 1 or a probability in the shape of the logits, `IGNORE` where a target does not count."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        values = align(
            plain(targets), tuple(outputs.shape), "logits (one per label; for one logit per class use 'categorical')"
        )
        fractions = (
            isinstance(values, Tensor) and values.is_floating_point() and not bool((values == values.round()).all())
        )
        if fractions:
            assert isinstance(values, Tensor)
            hint = "class labels, or probabilities of the second class in [0, 1]"
            result = bounded(values, self.ignore_index, lambda value: (value >= 0) & (value <= 1), hint)
            result = result.masked_fill(result == self.ignore_index, IGNORE)
        else:
            result = indices(values, self.names(), self.ignore_index)
        return result.to(device=outputs.device, dtype=exact(outputs[:0]).dtype)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over positions of w_1 y log p + w_0 (1 - y) log(1 - p)."""
        assert isinstance(outputs, Tensor)
        return row_sum(_bernoulli(outputs, targets, weights_of(self.class_weight, self.names(), exact(outputs))))

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, k, k]: diagonal, (p w_1 + (1 - p) w_0) p (1 - p)."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        return _bernoulli_fisher(outputs, weights_of(self.class_weight, self.names(), exact(outputs)))


@dataclass(frozen=True)
class Multilabel(ClassLikelihood):
    """Any of L labels from L logits `[rows, L]`; targets in that shape: 0, 1, a probability, or `ignore_index`."""

    ignore_index: int = IGNORE

    name: ClassVar[str] = "multilabel"

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """Learns nothing, but looks at every target.

        Raises:
            DataError: no rows, everything ignored, or values outside [0, 1].
        """
        rows = counted = 0
        for batch in targets:
            values = self._checked(numbers(batch, rows))
            rows, counted = rows + len(values), counted + int((values != self.ignore_index).sum())
        if not counted:
            raise DataError(
                f"every target of {rows} rows is ignored ({self.ignore_index})" if rows else "no targets: 0 rows"
            )
        return self

    def names(self, logits: int = 2) -> Sequence[Label]:
        """Absent and present, for each label."""
        return range(2)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """[rows, L, 2]: log(1 - p), log p."""
        return _both(outputs)

    def aligned(self, targets: Any, log_probs: Tensor) -> Tensor:
        """int64 0 or 1 `[rows, L]`, or soft `[rows, L, 2]`."""
        return _as_classes(self.canonical(targets, log_probs[..., 1]))

    def _checked(self, values: Tensor) -> Tensor:
        return bounded(
            values, self.ignore_index, lambda value: (value >= 0) & (value <= 1), "labels are 0, 1 or a probability"
        )

    def void(self, targets: Any) -> Tensor:
        """[rows] bool: rows of raw targets that hold nothing but `ignore_index`."""
        return ignored_rows(targets, self.ignore_index)

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """Float `[rows, L]`, `IGNORE` where a target does not count."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        values = self._checked(align(numbers(targets), tuple(outputs.shape), "logits"))
        ignored = values == self.ignore_index
        return values.to(exact(outputs[:0]).dtype).masked_fill(ignored, IGNORE).to(outputs.device)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over labels of y log p + (1 - y) log(1 - p)."""
        assert isinstance(outputs, Tensor)
        return row_sum(_bernoulli(outputs, targets))

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows, L, L]: diag(p_l (1 - p_l))."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        return _bernoulli_fisher(outputs)
