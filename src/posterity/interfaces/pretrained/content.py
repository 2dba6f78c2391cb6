"""What a row holds, as a number: to know a picture or a text again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["file_keys", "text_keys"]


def file_keys(paths: Iterable[str]) -> Tensor:
    """[rows] int64, equal for files of the same bytes."""
    return _keys(Path(path).read_bytes() for path in paths)


def text_keys(texts: Iterable[str]) -> Tensor:
    """[rows] int64, equal for texts that differ in blanks and capitals at most.

    >>> text_keys(["Pay my  bill", " pay my bill"]).unique().numel()
    1
    """
    return _keys(" ".join(text.casefold().split()).encode() for text in texts)


def _keys(contents: Iterable[bytes]) -> Tensor:
    numbers = [int.from_bytes(hashlib.blake2b(c, digest_size=8).digest(), signed=True) for c in contents]
    return torch.tensor(numbers, dtype=torch.int64)
