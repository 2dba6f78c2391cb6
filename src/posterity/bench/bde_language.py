"""Bayesian deep ensembles on text: chains from the members of a small character model of Shakespeare's plays.

The first 90 % of the text are for training in pieces of 64 characters, then 5 % to stop and to pick step sizes by, 5 % to
test; foreign are four books, without the characters that Shakespeare's plays lack. A causal transformer of two pre-norm
blocks, width 64, no dropout; 4 members, prior N(0, 1), Adam's moments to the end of a cosine from 3e-3. A row is a piece:
N counts pieces, and the log-likelihood of one is the sum over its characters. Perplexities are of the mixture.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.bench.bde import DEFAULT, ENSEMBLE, LONGER, compared, ensemble_row, overall
from posterity.bench.bde_classes import Classes
from posterity.bench.bde_task import CONFIGURATIONS, Budget, Task
from posterity.bench.bench import Cell, Limit, Row
from posterity.bench.data import data_folder
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.schedule import Cosine
from posterity.problem.likelihoods import Tokens
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims"]

LIMITS: dict[str, Limit] = {}
SEEDS = (0, 1)
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
STEPS = 3000  # of the ensemble
BUDGET = Budget(4, 8, 200, 25, (3e-5, 1e-4, 2e-4), 1)
HELD, FOREIGN = 96, 32  # pieces of validation and test, and of each foreign book
BOOKS = {
    "lamb": "lamb_tales_from_shakespeare_pg573",
    "morris": "morris_news_from_nowhere_pg3261",
    "walton": "walton_complete_angler_1653_pg9198",
    "bierce": "bierce_devils_dictionary_pg972",
}


class Block(nn.Module):
    """h + attention(norm(h)), then h + narrow(gelu(widen(norm(h)))); causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """[rows, T, width] to the same."""
        query, key, value = self.mix(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / query.shape[-1] ** 0.5  # by hand: the fused kernel has no second derivative
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=h.device).triu(1)
        seen = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        h = h + self.out(seen.transpose(1, 2).flatten(2))
        return h + self.narrow(F.gelu(self.widen(self.norm2(h))))


class Characters(nn.Module):
    """Logits [rows, T, vocabulary] for what follows each of [rows, T] characters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)
        for module in (self.embed, self.place):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(h)))


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per seed."""
    return {f"shakespeare, seed {seed}": partial(_cell, seed, quick) for seed in SEEDS[: 1 if quick else None]}


def _cell(seed: int, quick: bool) -> list[Row]:
    vocabulary, sets = _texts()
    sets, budget = dict(sets), BUDGET
    if quick:
        sets = {name: pieces[:16] for name, pieces in sets.items()}
        budget = budget._replace(steps=4, thin=1, sizes=budget.sizes[:1], batch_size=4)
    train, stopping = sets.pop("train"), sets.pop("stopping")
    rows, task = [], None
    for method, steps in ((ENSEMBLE, STEPS), (LONGER, STEPS + budget.steps)):
        steps = 4 if quick else steps
        began = time.process_time()
        model = fit(
            partial(Characters, vocabulary), (train, train), Tokens(),
            DeepEnsemble(budget.members, learning_rate=Cosine(3e-3, warmup=0.05)),
            steps=steps, batch_size=budget.batch_size, validation=(stopping, stopping), seed=seed, progress=False,
        )  # fmt: skip
        seconds = time.process_time() - began
        if task is None:
            classes = Classes(model.problem, {name: (x, x) for name, x in sets.items()}, tokens=True)
            read = classes.look, classes.measure
            task = Task("shakespeare", seed, model.problem, model.snapshots, (train, train), *read, budget)
        rows.append(ensemble_row(task, method, model.snapshots, steps, seconds))
    assert task is not None
    return rows + compared(task, CONFIGURATIONS[:8], (DEFAULT,))


@cache
def _texts() -> tuple[int, dict[str, Tensor]]:
    """The size of the vocabulary, and [pieces, 64] characters by set."""
    folder = data_folder("open/text", *(f"{name}.txt.gz" for name in ("tinyshakespeare", *BOOKS.values())))

    def read(name: str) -> str:
        with gzip.open(folder / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
            return file.read()

    plays = read("tinyshakespeare")
    index = {character: i for i, character in enumerate(sorted(set(plays)))}

    def pieces(text: str, most: int | None = None) -> Tensor:
        codes = [index[character] for character in text if character in index]
        whole = torch.tensor(codes[: len(codes) // CONTEXT * CONTEXT]).view(-1, CONTEXT)
        return whole if most is None else whole[torch.linspace(0, len(whole) - 1, most).long()]

    ends = [int(share * len(plays)) for share in (0.9, 0.925, 0.95)]
    sets = {
        "train": pieces(plays[: ends[0]]),
        "stopping": pieces(plays[ends[0] : ends[1]], HELD),
        "validation": pieces(plays[ends[1] : ends[2]], HELD),
        "test": pieces(plays[ends[2] :], HELD),
    }
    return len(index), sets | {name: pieces(read(file), FOREIGN) for name, file in BOOKS.items()}


def claims(rows: list[Row]) -> dict[str, float]:
    """As of pictures; perplexities are of the mixture."""
    return overall(rows, ("perplexity_test", "perplexity_lamb", "ood_auroc_lamb"))
