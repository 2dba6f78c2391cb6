"""Bayesian deep ensembles on pictures: chains from the members of a small convolutional ensemble.

Fashion-MNIST (6000 rows, LeNet with GELU; foreign: MNIST, Kuzushiji) and CIFAR-10 from JPEG files (6000 rows, a residual
network with group normalisation; foreign: flowers, textures). 4 members, prior N(0, 1), Adam's moments to the end of a
cosine from 2e-3, each at its best step on 500 rows; step sizes by 500 others; 1000 test rows and
500 of every foreign set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posterity.bench.archives import archive, jpegs, pixels
from posterity.bench.bde import DEFAULT, ENSEMBLE, LONGER, compared, ensemble_row, overall
from posterity.bench.bde_classes import Classes
from posterity.bench.bde_task import CONFIGURATIONS, Budget, Configuration, Task
from posterity.bench.bench import Cell, Limit, Row
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.schedule import Cosine
from posterity.problem.likelihoods import Categorical
from posterity.training.fit import fit

__all__ = ["LIMITS", "cells", "claims"]

LIMITS: dict[str, Limit] = {}
SEEDS = (0, 1)


def lenet() -> nn.Module:
    """LeNet with GELU for 28x28: 6 and 16 channels, 120 and 84 units."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.GELU(), nn.Linear(120, 84), nn.GELU(), nn.Linear(84, 10),
    )  # fmt: skip


class Block(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))), the sum by a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        h = torch.relu(self.norm1(x))
        return self.short(h) + self.conv2(torch.relu(self.norm2(self.conv1(h))))


def resnet(channels: int = 3) -> nn.Module:
    """Three blocks of 8, 16 and 32 channels, of 32x32 at half, a quarter and an eighth of the resolution."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2, 1, bias=False), Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2),
        nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


class _Set(NamedTuple):
    network: Callable[[], nn.Module]
    load: Callable[[int], dict[str, tuple[Tensor, Tensor | None]]]
    steps: int  # of the ensemble
    budget: Budget
    configurations: tuple[Configuration, ...]


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per data set and seed."""
    return {
        f"{name}, seed {seed}": partial(_cell, name, seed, quick)
        for name in SETS
        for seed in SEEDS[: 1 if quick else None]
    }


def _cell(name: str, seed: int, quick: bool) -> list[Row]:
    one = SETS[name]
    sets = dict(one.load(seed))
    budget = one.budget
    if quick:
        sets = {key: (x[:100], y if y is None else y[:100]) for key, (x, y) in sets.items()}
        budget = budget._replace(steps=4, thin=1, sizes=budget.sizes[:1], batch_size=4)
    train, stopping = _labelled(sets.pop("train")), sets.pop("stopping")
    rows, task = [], None
    for method, steps in ((ENSEMBLE, one.steps), (LONGER, one.steps + budget.steps)):
        steps = 4 if quick else steps
        began = time.process_time()
        model = fit(
            one.network, train, Categorical(classes=tuple(range(10))),
            DeepEnsemble(budget.members, learning_rate=Cosine(2e-3)),
            steps=steps, batch_size=budget.batch_size, validation=stopping, seed=seed, progress=False,
        )  # fmt: skip
        seconds = time.process_time() - began
        if task is None:
            classes = Classes(model.problem, sets)
            task = Task(
                name,
                seed,
                model.problem,
                model.snapshots,
                train,
                classes.look,
                classes.measure,
                budget,
            )
        rows.append(ensemble_row(task, method, model.snapshots, steps, seconds))
    assert task is not None
    return rows + compared(task, one.configurations, (DEFAULT,))


def _labelled(rows: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    assert rows[1] is not None
    return rows[0], rows[1]


# --- data -------------------------------------------------------------------------------------------------------------


@cache
def _fashion(seed: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    own, test = (archive("open/images", f"fashion_mnist_{part}") for part in ("train10k", "test"))
    foreign = {
        name: (pixels(archive("open/images", file)["x"][:500]), None)
        for name, file in (("mnist", "mnist_test"), ("kuzushiji", "kmnist_test_unlabelled"))
    }
    return _split(seed, (pixels(own["x"]), own["y"]), (pixels(test["x"]), test["y"])) | foreign


@cache
def _cifar(seed: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    own, test = (archive("unclear", f"cifar10_jpeg_{part}") for part in ("train20k", "test10k"))
    flowers, textures = archive("unclear", "flowers5_32x32")["x"], archive("open/images", "textures_cc0_32x32")["x"]
    foreign = {
        "flowers": (pixels(flowers), None),
        "textures": (pixels(textures[:500]).expand(-1, 3, -1, -1), None),
    }
    return _split(seed, (jpegs(own, 7000), own["y"][:7000]), (jpegs(test, 1000), test["y"][:1000])) | foreign


def _split(seed: int, own: tuple[Tensor, Any], test: tuple[Tensor, Any]) -> dict[str, tuple[Tensor, Tensor | None]]:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(own[1])))
    y = torch.from_numpy(np.asarray(own[1]).astype(np.int64))
    parts = zip(("stopping", "validation", "train"), order[:7000].split([500, 500, 6000]))
    found: dict[str, tuple[Tensor, Tensor | None]] = {name: (own[0][rows], y[rows]) for name, rows in parts}
    return found | {"test": (test[0][:1000], torch.from_numpy(np.asarray(test[1][:1000]).astype(np.int64)))}


ALL, FEW = CONFIGURATIONS[:8], (*CONFIGURATIONS[:5], CONFIGURATIONS[7])
SETS = {
    "fashion": _Set(lenet, _fashion, 1500, Budget(4, 32, 240, 30, (1e-4, 3e-4, 1e-3), 1), ALL),
    "cifar": _Set(resnet, _cifar, 1500, Budget(4, 32, 200, 25, (3e-5, 1e-4, 3e-4), 1), FEW),
}


def claims(rows: list[Row]) -> dict[str, float]:
    """Differences of test LPPD in nats and of accuracy, ECE and AUROC, half-warm-up window, means over the seeds."""
    return overall(rows, ("accuracy", "ece"))
