"""A text as numbers: the tokens of a backbone's own tokeniser, padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Tokens", "length_for"]

_LONGEST, _STEP = 128, 8


@dataclass(frozen=True)
class Tokens:
    """Texts to their tokens and which of them are there, [rows, length] int64 each.

    Args:
        tokenizer: as `AutoTokenizer` gives it.
        length: tokens of a text; longer ones are cut.
    """

    tokenizer: Any
    length: int

    def __call__(self, rows: Sequence[str]) -> tuple[Tensor, ...]:
        made = self.tokenizer(
            list(rows), padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
        )
        return made["input_ids"].to(torch.int64), made["attention_mask"].to(torch.int64)

    def counts(self, rows: Sequence[str]) -> np.ndarray:
        """[rows] tokens of each whole text."""
        return np.array([len(ids) for ids in self.tokenizer(list(rows), verbose=False)["input_ids"]])

    def example(self) -> tuple[Tensor, ...]:
        return self(["a text", "another text that is longer"])

    def takes(self) -> str:
        return f"x0, x1, int64 [rows, {self.length}] each: the tokeniser's input_ids and attention_mask, padded to it"

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length}


def length_for(counts: np.ndarray, most: int) -> int:
    """A length that holds the longest of these texts, in steps of 8 and at most 128 or what the backbone takes.

    >>> length_for(np.array([5, 11]), 512), length_for(np.array([5, 900]), 512)
    (16, 128)
    """
    return min(-(-int(counts.max()) // _STEP) * _STEP, _LONGEST, most)
