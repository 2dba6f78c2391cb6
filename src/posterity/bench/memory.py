"""What `estimate_memory` says of a fit against what the fit takes.

perceptron   784-4000-400-10 with ReLU, 4.7M weights; small: 16-64-32-10, for families of d^2 numbers
conv         three convolutions and a linear layer, 3.0M weights, 32 x 32 pixels
transformer  an encoder of four layers of width 384 with dropout, 7.1M weights, 32 tokens

Batches of 32. Each fit runs in a process of its own, on one thread, after one of the same method on a tiny network, which
loads its code. A stage has as many steps as it needs to hold all that it ever holds.

taken   the most that was resident at once, less what was before the network was made; ratio: the estimate's peak over it
held    the same where glibc maps every block of 64 KiB or more for itself, so that what is freed is given back at once
        (MALLOC_MMAP_THRESHOLD_); held_ratio: the estimate of tensors over it
copies  of the weights
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from posterity.bench import worker
from posterity.bench.bench import Cell, Limit, Row
from posterity.errors import PosterityError
from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.bam import BaM
from posterity.inference.ensemble import DeepEnsemble, Ensemble
from posterity.inference.fisher import FisherVI
from posterity.inference.gsm import GSM
from posterity.inference.ivon import IVON
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mc_dropout import MCDropout
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.optimizer_laplace import OptimizerLaplace
from posterity.inference.rank_one import RankOneVI
from posterity.inference.score import ScoreVI
from posterity.inference.sghmc import SGHMC
from posterity.inference.sgld import SGLD
from posterity.inference.swag import SWAG
from posterity.random import Random
from posterity.training.fit import fit
from posterity.training.memory.estimate import MemoryEstimate, estimate_memory

__all__ = ["LIMITS", "PAIRS", "cells", "claims", "estimated", "measured", "weigh"]

ROWS = 64  # two batches
OPTIONS: dict[str, Any] = {"batch_size": 32, "steps": 3}
SHORT: dict[str, Any] = {"members": 2, "warmup": 2, "draws_per_chain": 2, "thin": 2, "step_size": 1e-6}


class Transformer(nn.Module):
    """[rows, 32, width] -> [rows, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the mean over the tokens."""
        return self.head(self.encoder(tokens).mean(1))


def conv(width: int) -> nn.Sequential:
    """[rows, 3, 32, 32] -> [rows, 10]."""
    channels = [3, width, 4 * width, 4 * width]
    parts = [part for a, b in pairwise(channels) for part in (nn.Conv2d(a, b, 3, stride=2), nn.ReLU())]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * width * 9, 10))


# a network by its size, the size that is measured and one that is tiny; the shape of a row by the size
NETWORKS: Mapping[str, tuple[Callable[[Any], nn.Module], Any, Any, Callable[[Any], tuple[int, ...]]]] = {
    "perceptron": (worker.perceptron, [784, 4000, 400, 10], [16, 16, 10], lambda widths: (widths[0],)),
    "small": (worker.perceptron, [16, 64, 32, 10], [16, 16, 10], lambda widths: (widths[0],)),
    "conv": (conv, 128, 2, lambda _: (3, 32, 32)),
    "transformer": (Transformer, 384, 8, lambda width: (32, width)),
}

METHODS: Mapping[str, Algorithm] = {
    "map": MAP(),
    "deep-ensemble": DeepEnsemble(3),
    "mean-field": MeanFieldVI(),
    "mean-field-ensemble": Ensemble(MeanFieldVI(), 2),
    "ivon": IVON(),
    "advi": ADVI(),
    "fisher-vi": FisherVI(),
    "score-vi": ScoreVI(),
    "score-vi-low-rank": ScoreVI("low-rank-plus-diagonal", rank=5),
    "score-vi-mixture": ScoreVI("mixture", components=2, draws=2),
    "score-vi-flow": ScoreVI("flow", over="subspace", subspace_dim=5, draws=4),
    "low-rank": LowRankVI({"*": 8}),
    "low-rank-change": LowRankVI({"*": 8}, change=True),
    "rank-one": RankOneVI(),
    "laplace-full": LastLayerLaplace(),
    "laplace-kronecker": LastLayerLaplace(structure="kronecker"),
    "optimizer-laplace": OptimizerLaplace(),
    "swag": SWAG(collections=5, every=1, rank=4),
    "sghmc": SGHMC(**SHORT),
    "sghmc-adaptive": SGHMC(mass="adaptive", **SHORT),
    "sgld": SGLD(**SHORT),
    "mc-dropout": MCDropout(),
    "advi-full": ADVI("full"),
    "score-vi-dense": ScoreVI("dense"),
    "gsm": GSM(),
    "bam": BaM(draws=3),
}

ON_PERCEPTRON = [name for name in METHODS if name not in ("mc-dropout", "advi-full", "score-vi-dense", "gsm", "bam")]
PAIRS = {
    **{f"{name}, perceptron": (name, "perceptron") for name in ON_PERCEPTRON},
    **{f"{name}, small": (name, "small") for name in ("advi-full", "score-vi-dense", "gsm", "bam")},
    **{f"{name}, conv": (name, "conv") for name in ("map", "mean-field", "score-vi", "swag", "sghmc")},
    **{
        f"{name}, transformer": (name, "transformer")
        for name in ("map", "mean-field", "score-vi", "mc-dropout", "swag")
    },
}

LIMITS = {
    **{name.replace(", ", "_").replace("-", "_"): Limit(0.75, 1.25) for name in PAIRS},
    "lowest_held": Limit(low=0.9),
    "highest_held": Limit(high=1.1),
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A fit each; quick ones of tiny networks, whose memory is mostly noise."""
    return {name: partial(_cell, *pair, quick) for name, pair in PAIRS.items()}


def claims(rows: list[Row]) -> dict[str, float]:
    """By method and network the estimate over what was taken, and copies of the weights that were held; the extremes."""
    names = [f"{row['method']}_{row['network']}".replace("-", "_") for row in rows]
    taken, held = [row["ratio"] for row in rows], [row["held_ratio"] for row in rows]
    return {
        **dict(zip(names, taken)),
        **{f"{name}_copies": row["held_copies"] for name, row in zip(names, rows)},
        "lowest": min(taken),
        "highest": max(taken),
        "lowest_held": min(held),
        "highest_held": max(held),
    }


def _cell(method: str, network: str, tiny: bool) -> list[Row]:
    estimate = estimated(method, network, tiny)
    taken = measured(method, network, tiny)
    held = taken if tiny else measured(method, network, at_once=True)
    tensors = estimate.network + max(estimate.state + estimate.step, estimate.between)
    return [
        {
            "method": method,
            "network": network,
            "estimate_mebibytes": estimate.peak / 2**20,
            "taken_mebibytes": taken / 2**20,
            "ratio": estimate.peak / taken,
            "held_mebibytes": held / 2**20,
            "held_ratio": tensors / held,
            "held_copies": held / estimate.network,
            "fitted_copies": estimate.fitted / estimate.network,
        }
    ]


def estimated(method: str, network: str, tiny: bool = False) -> MemoryEstimate:
    """What is said of the fit."""
    build, *sizes, shape = NETWORKS[network]
    size = sizes[tiny]
    with Random(0).forked():
        return estimate_memory(lambda: build(size), _data(shape(size)), "categorical", METHODS[method], **OPTIONS)


def measured(method: str, network: str, tiny: bool = False, at_once: bool = False) -> int:
    """The bytes that the fit takes, a page at least, in a process of its own; `at_once` has what is freed given back."""
    code = f"from posterity.bench.memory import weigh; weigh({method!r}, {network!r}, {tiny})"
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    alone |= {"MALLOC_MMAP_THRESHOLD_": str(2**16)} if at_once else {}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True, env=alone)
    if done.returncode:
        raise PosterityError(f"the fit of {method} on {network} failed; what it said is above")
    return max(4096, int(done.stdout))


def weigh(method: str, network: str, tiny: bool) -> None:
    """Fit, and print the peak above what was resident before; a tiny network first, for the code that it loads."""
    torch.set_num_threads(1)
    build, *sizes, shape = NETWORKS[network]
    for size in (sizes[True], sizes[tiny]):
        data = _data(shape(size))
        gc.collect()
        before = worker.resident()
        with Random(0).forked():
            net = build(size)
        fit(net, data, "categorical", METHODS[method], **OPTIONS)
    sys.stdout.write(str(worker.peak() - before))


def _data(row: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return Random(0).normal((ROWS, *row)), torch.arange(ROWS) % 10
