"""The small worlds that the contract is checked in: data, networks that could be changed, and faults on demand.

Sizes are coprime, so that no axis can stand in for another; the last batch of an epoch is short (23 = 3 * 7 + 2).
"""

from __future__ import annotations

import copy
import random as python_random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from posterity.random import Random
from posterity.tree import BUFFER, LIKELIHOOD

__all__ = [
    "BATCH",
    "CLASSES",
    "FAR",
    "FEATURES",
    "ROWS",
    "Augmented",
    "Fuse",
    "Injected",
    "Overflowing",
    "Witness",
    "batch_norm_network",
    "inputs",
    "labels",
    "loader",
    "plain_network",
    "plain_outputs",
]

ROWS, FEATURES, CLASSES, BATCH = 23, 3, 5, 7


class Injected(Exception):
    """A fault put in on purpose."""


def _raise() -> None:
    raise Injected("a fault put in on purpose")


class Fuse:
    """Counts, and blows at a given count."""

    def __init__(self, at: int | None = None, blow: Callable[[], None] = _raise) -> None:
        self.count, self.at, self.blow = 0, at, blow

    def burn(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.blow()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(rows: int = ROWS, seed: int = 0) -> Tensor:
    """[rows, features] standard normal."""
    return torch.randn((rows, FEATURES), generator=_generator(seed))


def labels(x: Tensor) -> Tensor:
    """[rows] classes that depend on the inputs; all of them occur in any five rows in a row."""
    return (torch.arange(len(x)) + (x[:, 0] > 1.0)).remainder(CLASSES)


class Augmented(Dataset):
    """Rows with noise from every global generator: torch's, numpy's and Python's."""

    def __init__(self, x: Tensor, y: Tensor, fuse: Fuse | None = None) -> None:
        self.x, self.y, self.fuse = x, y, fuse or Fuse()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fuse.burn()
        noise = torch.rand(()) + np.random.rand() + python_random.random()  # noqa: NPY002
        return self.x[index] + 0.1 * (noise - 1.5), self.y[index]


def loader(fuse: Fuse | None = None, **options: Any) -> DataLoader:
    """Augmented rows, shuffled by a generator of the loader's own."""
    x = inputs()
    options = {"batch_size": BATCH, "shuffle": True, "generator": _generator(3), **options}
    return DataLoader(Augmented(x, labels(x), fuse), **options)


def _seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    with Random(seed).forked():
        return build()


def plain_network(outputs: int = CLASSES, seed: int = 0) -> nn.Module:
    """Two layers, nothing random, no buffers."""
    return _seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, outputs)), seed)


def batch_norm_network(outputs: int = CLASSES, seed: int = 0) -> nn.Module:
    """Batch normalisation, dropout, and a frozen layer in between. No bias is normalised away: rounding would move it."""

    def build() -> nn.Module:
        first, frozen, last = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, outputs)
        net = nn.Sequential(first, nn.BatchNorm1d(4), frozen, nn.Tanh(), nn.Dropout(0.2), last)
        net[2].requires_grad_(False)
        return net

    return _seeded(build, seed)


FAR = 100.0


class Overflowing(nn.Module):
    """Says infinity about inputs beyond 50, which are finite themselves."""

    def __init__(self, outputs: int, seed: int = 0) -> None:
        super().__init__()
        self.body = plain_network(outputs, seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.clamp(-5.0, 5.0)) * torch.exp(1000.0 * (x[:, :1] > 50.0))


class Witness(nn.Module):
    """A network in which any trace of a forward can be seen: it writes attributes, lists, dicts and buffers, moves the
    global generators, normalises batches, holds a frozen layer and one left in evaluation mode, and can fail on demand.
    """

    def __init__(self, train_fuse: Fuse | None = None, eval_fuse: Fuse | None = None, seed: int = 0) -> None:
        super().__init__()
        self.body, self.norm = _seeded(lambda: nn.Linear(FEATURES, 4), seed), nn.BatchNorm1d(4)
        self.frozen = _seeded(lambda: nn.Linear(4, 4), seed + 1).requires_grad_(False)
        self.left = nn.BatchNorm1d(4)
        self.dropout, self.head = nn.Dropout(0.2), _seeded(lambda: nn.Linear(4, CLASSES), seed + 2)
        self.calls: Tensor
        self.evaluations: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("evaluations", torch.zeros(()))
        self.fuses = train_fuse or Fuse(), eval_fuse or Fuse()
        self.count, self.last = 0, torch.zeros(())
        self.log: list[int] = [0]
        self.norms: dict[str, list[float]] = {"input": []}
        self.left.eval()
        self.body.register_forward_hook(lambda layer, args, output: None)

    def forward(self, x: Tensor) -> Tensor:
        self.fuses[0 if self.training else 1].burn()
        self.count += 1
        self.log.append(len(x))
        self.norms["input"].append(float(x.norm()))
        self.last, self.fresh = x, x.detach()
        self.calls.add_(1)
        if not self.training:
            self.evaluations = self.evaluations + 1
        noise = torch.rand(()) + np.random.rand() + python_random.random()  # noqa: NPY002
        hidden = self.left(torch.tanh(self.frozen(self.norm(self.body(x)))))
        return self.head(self.dropout(hidden)) + 0.0 * noise


def plain_outputs(network: nn.Module, draw: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What torch alone says: a copy of the network with one draw written into it, called in evaluation mode."""
    module = copy.deepcopy(network).eval()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, leaf in draw.items():
            if not name.startswith(LIKELIHOOD):
                own[name.removeprefix(BUFFER)].copy_(leaf)
        return module(x)
