"""Low-rank networks on sentences: SST-2's opinions of films, and sentences that are of something else.

A pre-norm transformer block over word vectors learnt from these 6920 sentences, mean over the words, a linear head; factors
of rank 8 of the table of words and of every matrix of the block (`text.py`). Foreign: text messages, questions to a
bank, requests to an assistant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from posterity.bench.bde import defined, mean, standard_error
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.low_rank_classes import classes, foreign
from posterity.bench.low_rank_methods import DRAWS, Figures, Predict, Task, compared, grid
from posterity.bench.text import PADDING, Sentences, sentences
from posterity.prediction.base import Predictive
from posterity.prediction.classes import CategoricalPredictive

__all__ = ["LIMITS", "Reader", "cells", "claims"]

LIMITS = {
    "text_nll_minus_deterministic": Limit(high=0.01),
    "text_ece_minus_deterministic": Limit(high=0.01),
    "text_parameters_vs_mean_field": Limit(high=0.1),
}

SEEDS = (0, 1, 2)
TRIALS = grid((1.0, 10.0), (1e-3,))
WIDTH, HEADS, LAYERS, RANK = 96, 4, 1, 8
EPOCHS, BATCH = 4, 128
PARTS = 6  # that rows to predict are cut into, by length
SETS = ("sms", "banking", "clinc")
FIELDS = ("accuracy", "nll", "ece", "aupr_errors")


class Reader(nn.Module):
    """[rows, words] numbers to [rows, 2]; rows shorter than the longest end in PADDING."""

    def __init__(self, vocabulary: int, length: int, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.places = nn.Embedding(length, width)
        layer = partial(nn.TransformerEncoderLayer, width, HEADS, 2 * width, dropout, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)
        for table in (self.words, self.places):  # torch's own start, of variance 1, drowns the blocks
            nn.init.normal_(table.weight, std=width**-0.5)
        nn.init.zeros_(self.words.weight[PADDING])

    def forward(self, x: Tensor) -> Tensor:
        """The head of the mean over the words."""
        empty = x == PADDING
        h = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h, src_key_padding_mask=empty)
        there = ~empty.unsqueeze(-1)
        return self.head((self.norm(h) * there).sum(1) / there.sum(1))


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per seed."""
    return {f"seed {seed}": partial(_cell, seed, quick) for seed in (SEEDS[:2] if quick else SEEDS)}


def _cell(seed: int, quick: bool) -> list[Row]:
    data = sentences()
    if quick:
        train, validation, test = ((x[:128], y[:128]) for x, y in (data.train, data.validation, data.test))
        few = {name: x[:32] for name, x in data.foreign.items()}
        data = Sentences(train, validation, test, few, data.vocabulary)
    length = data.train[0].shape[1]
    return compared(
        Task(
            data="text",
            seed=seed,
            network=lambda rate: Reader(data.vocabulary, length, dropout=rate),
            likelihood="categorical",
            train=data.train,
            validation=data.validation,
            measure=partial(_measure, data),
            handed=by_length,
            trials=TRIALS[:1] if quick else TRIALS,
            rank=RANK,
            epochs=1 if quick else EPOCHS,
            batch_size=BATCH,
            draws=4 if quick else DRAWS,
        )
    )


def by_length(predict: Predict) -> Predict:
    """The same predictions, made in batches of rows of like length without the padding that all of them have."""

    def predicted(x: Tensor) -> Predictive:
        order = (x != PADDING).sum(1).argsort(stable=True)
        parts = [part.tolist() for part in order.chunk(PARTS)]
        return predict(DataLoader(x, batch_sampler=parts, collate_fn=trimmed))[order.argsort()]  # type: ignore[arg-type]

    return predicted


def trimmed(rows: list[Tensor]) -> Tensor:
    """[rows, words] as long as the longest."""
    x = torch.stack(rows)
    return x[:, : int((x != PADDING).sum(1).max())]


def _measure(data: Sentences, predict: Predict) -> dict[str, float | None]:
    pred = predict(data.test[0])
    assert isinstance(pred, CategoricalPredictive)
    return classes(pred, data.test[1]) | foreign(pred, predict, data.foreign)


def claims(rows: list[Row]) -> dict[str, float]:
    """Means over the seeds in the tuned block, with standard errors; differences are paired by seed.

    `text_parameters_vs_mean_field` is the numbers that the low-rank posterior holds, as a share of those of mean-field.
    """
    figures = Figures(rows)
    numbers = [figures.mean("text", name, "parameters") for name in ("low-rank", "mean-field")]
    found = {"text_parameters_vs_mean_field": numbers[0] / numbers[1]}
    for over in ("deterministic", "mean-field", "low-rank-point", "deep-ensemble"):
        found |= figures.against("text", "text", over, ("nll", "ece", "accuracy"))
    found |= figures.against("text", "equal_text", "deterministic", ("nll", "ece", "accuracy"), "equal")
    for name in SETS:
        gain = figures.difference("text", "low-rank", "mean-field", f"ood_auroc_mi_{name}")
        found |= {
            f"text_ood_auroc_mi_gain_{name}": mean(gain),
            f"text_ood_auroc_mi_gain_{name}_error": standard_error(gain),
        }
    measures = [f"ood_auroc_{measure}_{name}" for measure in ("mi", "entropy") for name in SETS]
    return defined(found | figures.told("text", "text", (*FIELDS, *measures)))
