"""Where a fit starts: the user's weights, fresh ones, or what an earlier fit left."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm
from posterity.model import BayesianModel, load_snapshots
from posterity.problem.network import Network
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import BUFFER, LIKELIHOOD, Tree, clone

__all__ = ["Builder", "member_starts"]

Builder = Callable[[], nn.Module]


def member_starts(
    problem: NetworkProblem, algorithm: Algorithm, start: Any, builder: Builder | None, random: Random
) -> list[Tree | Snapshot]:
    """One start per member of the first stage.

    Args:
        start: None; a fitted model or its run folder; a state dict or `Snapshot`; or a list of these.
        builder: builds a network anew: members after the first start at what it returns.

    Raises:
        CompatibilityError: another number of starts than members, or weights of another network.
    """
    members = algorithm.members
    if start is None:
        if builder is not None and algorithm.member_init == "reset":
            return [_built(problem, builder, random, k) for k in range(members)]
        return list(problem.starts(members, algorithm.member_init, random))
    given = _given(start)
    if len(given) == 1 and members > 1:
        given = given * members
    if len(given) != members:
        raise CompatibilityError(f"start= brings {len(given)} sets of weights for {members} members")
    return [_fitted_to(problem, one) for one in given]


def _built(problem: NetworkProblem, builder: Builder, random: Random, k: int) -> Tree:
    if k == 0:
        return problem.start()
    with random.fold(k).forked(data=True):
        module = builder()
    trainable = Network(module, device=problem.network.device)
    buffers = {BUFFER + name: value for name, value in trainable.buffers.items()}
    return _complete(problem, {**trainable.trainable, **buffers})


def _given(start: Any) -> list[Any]:
    if isinstance(start, BayesianModel):
        return start.starting_points()
    if isinstance(start, str | os.PathLike):
        return load_snapshots(start)
    if isinstance(start, Snapshot | Mapping):
        return [start]
    if isinstance(start, Sequence) and start:
        return [one for part in start for one in _given(part)]
    raise CompatibilityError(
        f"start= takes a fitted model, a run folder, a state dict, a Snapshot or a list of these; got {type(start).__name__}"
    )


def _fitted_to(problem: NetworkProblem, one: Snapshot | Mapping[str, Tensor]) -> Tree | Snapshot:
    if isinstance(one, Snapshot):
        return one._replace(theta=_complete(problem, one.theta))
    return _complete(problem, one)


def _complete(problem: NetworkProblem, given: Mapping[str, Tensor]) -> Tree:
    """The problem's start with the given tensors in place; a state dict names buffers without the prefix."""
    theta = problem.start()
    for name, own in theta.items():
        value = given.get(name, given.get(name.removeprefix(BUFFER)))
        if value is None:
            if name.startswith((BUFFER, LIKELIHOOD)):
                continue
            raise CompatibilityError(f"start= has no tensor {name!r}: it belongs to another network")
        if value.shape != own.shape:
            raise CompatibilityError(
                f"start= has shape {tuple(value.shape)} at {name!r}, this network {tuple(own.shape)}"
            )
        theta[name] = value.detach().to(own)
    return clone(theta)
