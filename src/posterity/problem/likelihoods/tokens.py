"""The next token: logits `[rows, T, V]`, targets `[rows, T]` aligned with the inputs and shifted here.

    log p(row) = sum_t log softmax(z[t])_{y[t + 1]}        over t with y[t + 1] != ignore_index

as in Hugging Face: the logits at t speak about the token at t + 1, the last logits and the first target are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.problem.likelihoods.base import ClassLikelihood, Outputs, exact, numbers, row_sum
from posterity.problem.likelihoods.labels import select
from posterity.problem.targets import IGNORE, Label, align, ignored_rows, indices, whole

__all__ = ["Tokens"]

_HINT = "tokens are integers"


@dataclass(frozen=True)
class Tokens(ClassLikelihood):
    """Next-token prediction: integer targets `[rows, T]`, `ignore_index` where none counts (padding, prompts)."""

    ignore_index: int = IGNORE

    name: ClassVar[str] = "tokens"

    def surveyed(self, targets: Iterable[Any]) -> Self:
        """Learns nothing, but looks at every target.

        Raises:
            DataError: no rows, or no row with a token that counts.
        """
        rows = counted = 0
        for batch in targets:
            values = whole(numbers(batch, rows), _HINT, rows)
            rows, counted = rows + len(values), counted + int((~self.void(values)).sum())
        if not counted:
            raise DataError(
                f"every target of {rows} rows is ignored ({self.ignore_index})" if rows else "no targets: 0 rows"
            )
        return self

    def void(self, targets: Any) -> Tensor:
        """[rows] bool: rows in which no token after the first counts."""
        values = numbers(targets)
        if values.ndim != 2:
            raise ShapeError(f"tokens want targets [rows, T], got {tuple(values.shape)}")
        return ignored_rows(values[:, 1:], self.ignore_index)

    def check(self, outputs: Outputs) -> None:
        """`[rows, T, V]`."""
        super().check(outputs)
        if outputs.ndim != 3:  # type: ignore[union-attr]
            raise ShapeError(f"tokens want logits [rows, T, vocabulary], got {tuple(outputs.shape)}")  # type: ignore[union-attr]

    def canonical(self, targets: Any, outputs: Outputs) -> Tensor:
        """int64 `[rows, T]`, not shifted yet, `IGNORE` where a token does not count."""
        self.check(outputs)
        assert isinstance(outputs, Tensor)
        values = align(whole(numbers(targets), _HINT), tuple(outputs.shape[:2]), "positions")
        return indices(values, range(outputs.shape[2]), self.ignore_index).to(outputs.device)

    def names(self, logits: int) -> Sequence[Label]:
        """Tokens are positions in the vocabulary."""
        return range(logits)

    def aligned(self, targets: Any, log_probs: Tensor) -> Tensor:
        """int64 `[rows, T]`: at t the token t + 1, `IGNORE` at the last."""
        return F.pad(self.canonical(targets, log_probs)[:, 1:], (0, 1), value=IGNORE)

    def log_probs(self, outputs: Tensor) -> Tensor:
        """[rows, T, V]: log softmax."""
        return F.log_softmax(exact(outputs), dim=-1)

    def log_prob(self, outputs: Outputs, targets: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """[rows]: sum over the tokens that count."""
        assert isinstance(outputs, Tensor)
        return row_sum(select(self.log_probs(outputs[:, :-1]), targets[:, 1:]))

    def fisher(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """Refused: [rows, T V, T V] does not fit anywhere."""
        raise CompatibilityError(
            "the Fisher information of tokens is too large to be written down: use a method that takes gradients only"
        )
