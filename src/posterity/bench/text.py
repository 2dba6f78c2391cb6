"""Sentences as rows of word numbers: SST-2 with a vocabulary of its own, and three sets of other sentences."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder

__all__ = ["PADDING", "UNKNOWN", "Sentences", "sentences", "words"]

PADDING, UNKNOWN = 0, 1
LENGTH = 24  # words; longer sentences are cut
FOREIGN = 500  # rows of each foreign set

Labelled = tuple[Tensor, Tensor]  # [rows, LENGTH] int64, [rows] int64: 1 = positive

# as SST-2 is cut: "wo n't", "film 's", punctuation on its own
_WORD = re.compile(r"\w+(?=n't)|n't|'\w+|\w+|[^\w\s]")


class Sentences(NamedTuple):
    """Args:
    train, validation, test: SST-2's own parts, of 6920, 872 and 1821 whole sentences.
    foreign: text messages, questions to a bank, requests to an assistant, none of them about films.
    vocabulary: the number of words, with PADDING and UNKNOWN.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    foreign: dict[str, Tensor]
    vocabulary: int


def words(text: str) -> list[str]:
    """The words of a sentence, in small letters.

    >>> words("I DON'T like it, it's bad")
    ['i', 'do', "n't", 'like', 'it', ',', 'it', "'s", 'bad']
    """
    return _WORD.findall(text.lower())


@cache
def sentences() -> Sentences:
    """Words that occur at least twice in training have a number; the others are UNKNOWN."""
    parts = [sst(part) for part in ("train", "dev", "test")]
    counts = Counter(word for text, _ in parts[0] for word in words(text))
    kept = sorted(word for word, count in counts.items() if count > 1)
    number = {word: i for i, word in enumerate(kept, start=2)}

    def rows(texts: Iterable[str]) -> Tensor:
        return torch.stack([_row([number.get(word, UNKNOWN) for word in words(text)]) for text in texts])

    train, validation, test = (
        (rows(text for text, _ in part), torch.tensor([label for _, label in part])) for part in parts
    )
    foreign = {name: rows(foreign_texts(name)) for name in _FOREIGN}
    return Sentences(train, validation, test, foreign, len(kept) + 2)


def foreign_texts(name: str) -> list[str]:
    """Texts about something else: "sms", "banking" or "clinc"."""
    return _some(_FOREIGN[name]())


def _row(numbers: Sequence[int]) -> Tensor:
    numbers = numbers[:LENGTH] or [UNKNOWN]
    return torch.tensor([*numbers, *[PADDING] * (LENGTH - len(numbers))])


def _some(texts: Sequence[str]) -> list[str]:
    texts = sorted(set(texts))
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:FOREIGN]]


def sst(part: str) -> list[tuple[str, int]]:
    """Sentences and their labels; `part`: "train", "dev" or "test"."""
    return [(text, int(label)) for text, label in _tabbed("unclear", f"sst2_{part}.tsv.gz")]


def _messages() -> list[str]:
    return [row[1] for row in _tabbed("open/text", "sms_spam.tsv.gz")]


def _banking() -> list[str]:
    name = "banking77_test.csv.gz"
    with gzip.open(data_folder("open/text", name) / name, "rt", encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def _clinc() -> list[str]:
    name = "clinc150_full.json.gz"
    with gzip.open(data_folder("open/text", name) / name, "rt", encoding="utf-8") as file:
        return [text for text, _ in json.load(file)["test"]]


def _tabbed(under: str, name: str) -> list[list[str]]:
    """Rows of a table whose quotes are part of the text."""
    with gzip.open(data_folder(under, name) / name, "rt", encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


_FOREIGN = {"sms": _messages, "banking": _banking, "clinc": _clinc}
