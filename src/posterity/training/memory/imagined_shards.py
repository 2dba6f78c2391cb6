"""Draws that chains leave on the disk, without the disk."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch

from posterity.inference.algorithm import Algorithm, Plan
from posterity.posterior.draws import Streamed
from posterity.posterior.shards import ShardWriter, compact
from posterity.tree import Tree, first, member, stack

__all__ = ["emitted"]


_SHARD = inspect.signature(ShardWriter).parameters["per_shard_bytes"].default


class _Announced:
    """So many draws like one that was seen."""

    def __init__(self, count: int, draw: Tree) -> None:
        self._count, self._kinds = count, {name: (leaf.shape, leaf.dtype) for name, leaf in draw.items()}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tree:
        return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in self._kinds.items()}

    def __iter__(self) -> Iterator[Tree]:
        return (self[i] for i in range(self._count))


def emitted(algorithm: Algorithm, state: Any, plan: Plan) -> tuple[Streamed, int]:
    """The draws that the algorithm emits along its plan, and their bytes; one shard of them is gathered."""
    times = [t for t in range(1, plan.steps + 1) if algorithm.emit(state._replace(step=torch.tensor(t))) is not None]
    draws = algorithm.emit(state._replace(step=torch.tensor(times[0]))) if times else None
    if draws is None:
        return Streamed(_Announced(0, {})), 0
    count = len(times) * first(draws).shape[0]
    pending: list[Tree] = []
    for k in cycle(range(first(draws).shape[0])):
        pending.append({name: compact(leaf) for name, leaf in member(draws, k).items()})
        one = sum(leaf.nbytes for leaf in pending[0].values())
        if len(pending) * one >= _SHARD or len(pending) == count:
            break
    stack(pending)  # as it is written
    return Streamed(_Announced(count, member(draws, 0))), count * one
