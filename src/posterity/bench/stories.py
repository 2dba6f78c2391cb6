"""A small pretrained language model of children's stories, and Lamb's Tales from Shakespeare as pieces of its tokens.

stories260K: 5 layers of width 64, 512 tokens, 260032 weights; only the projections of its layers can change. Lines are
joined to paragraphs; the first 80 % of the book are for training, the rest to validate and test.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.bench.data import data_folder

__all__ = ["CONTEXT", "Sizes", "Tales", "Tokeniser", "storyteller", "tales"]

CONTEXT, BEGIN = 64, 1
MODEL, BOOK = "open/models/stories260K", "lamb_tales_from_shakespeare_pg573.txt.gz"

_WORD = re.compile(r" ?[^ \n]+|[ \n]")  # no token holds a space behind its first character


class Sizes(NamedTuple):
    train: int = 480
    test: int = 96


SIZES = Sizes()


class Tales(NamedTuple):
    """[pieces, CONTEXT] tokens, each piece after a token that begins a text."""

    train: Tensor
    validation: Tensor
    test: Tensor


class Tokeniser:
    """Characters, or their UTF-8 bytes, whose neighbours are joined, those of the highest score first.

    Args:
        pieces: the tokens' texts; byte b is token b + 3.
        scores: of each.

    >>> Tokeniser(["", "", "", "a", "b", "ab", "aba"], [0, 0, 0, 0, 0, 1, 2])("abaab")
    [6, 5]
    """

    def __init__(self, pieces: Sequence[str], scores: Sequence[float]) -> None:
        self._pieces, self._scores = pieces, scores
        self._index: Mapping[str, int] = {piece: i for i, piece in enumerate(pieces)}
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        return [token for word in _WORD.findall(text) for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        if word not in self._known:
            parts = [[self._index[c]] if c in self._index else [byte + 3 for byte in c.encode()] for c in word]
            self._known[word] = self._joined([token for part in parts for token in part])
        return self._known[word]

    def _joined(self, tokens: list[int]) -> list[int]:
        while True:
            pairs = ((self._pieces[a] + self._pieces[b], i) for i, (a, b) in enumerate(pairwise(tokens)))
            there = [
                (self._scores[self._index[pair]], -i, self._index[pair]) for pair, i in pairs if pair in self._index
            ]
            if not there:
                return tokens
            _, at, token = max(there)
            tokens = [*tokens[:-at], token, *tokens[2 - at :]]


def storyteller() -> nn.Module:
    """The model; `fit(output="logits")` reads it."""
    folder = data_folder(MODEL, "config.json", "model.safetensors")
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError("the language model needs transformers: pip install 'posterity[huggingface]'") from error
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", use_cache=False)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.endswith("_proj.weight"))
    return model


@cache
def tales(seed: int, sizes: Sizes = SIZES) -> Tales:
    """Training pieces are drawn by seed; a tenth as many validate, as evenly spaced as those of the test."""
    folder = data_folder(MODEL, "tok512.json")
    tokenise = Tokeniser(*(json.loads((folder / "tok512.json").read_text("utf-8"))[k] for k in ("pieces", "scores")))
    with gzip.open(data_folder("open/text", BOOK) / BOOK, "rt", encoding="utf-8") as file:
        paragraphs = [" ".join(part.split()) for part in file.read().split("\n\n")]
    tokens = torch.tensor(tokenise("\n".join(part for part in paragraphs if part)))
    pieces = tokens[: len(tokens) // (CONTEXT - 1) * (CONTEXT - 1)].view(-1, CONTEXT - 1)
    pieces = torch.cat([torch.full((len(pieces), 1), BEGIN), pieces], 1)
    ends = [int(share * len(pieces)) for share in (0.8, 0.9)]
    drawn = torch.randperm(ends[0], generator=torch.Generator().manual_seed(seed))[: sizes.train]
    return Tales(
        pieces[drawn],
        _spaced(pieces[ends[0] : ends[1]], max(1, sizes.train // 10)),
        _spaced(pieces[ends[1] :], sizes.test),
    )


def _spaced(pieces: Tensor, most: int) -> Tensor:
    return pieces[torch.linspace(0, len(pieces) - 1, most).long()]
