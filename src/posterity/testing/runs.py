"""An algorithm driven by hand, step by step, as researchers drive it: no loop, no loader, no folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.inference.algorithm import Algorithm, Plan
from posterity.posterior.draws import Draws
from posterity.posterior.posterior import Posterior
from posterity.problem.batches import Batch
from posterity.problem.likelihoods import Likelihood, likelihood_from
from posterity.problem.priors import Prior
from posterity.problem.problem import Info, NetworkProblem, Problem
from posterity.random import Random
from posterity.testing.worlds import BATCH
from posterity.training.checkpoint import flatten, restore
from posterity.tree import Tree, stack

__all__ = ["Moment", "cloned", "final", "network_problem", "rows_for", "walk"]


class Moment(NamedTuple):
    """After one step: which stage, its new state, and what it said."""

    stage: Algorithm
    state: Any
    info: Info


def network_problem(
    network: nn.Module, x: Tensor, y: Tensor, likelihood: Likelihood | str, prior: Prior | float = 1.0
) -> NetworkProblem:
    """What `fit` makes of a network and its data, before the first step."""
    surveyed = likelihood_from(likelihood).surveyed([y])
    problem = NetworkProblem(network, surveyed, prior, data_size=len(x))
    problem.probe(Batch(x[:BATCH], y[:BATCH], rows=len(x[:BATCH])), Random(0).fold("probe"))
    return problem


def rows_for(x: Tensor, y: Tensor, rows: int = BATCH) -> Callable[[int, int], Batch]:
    """(step, member) -> a batch of random rows, another one for each."""

    def batch(step: int, k: int) -> Batch:
        index = torch.randperm(len(x), generator=Random(1).fold(k).fold(step).generator())[:rows]
        return Batch(x[index], y[index], rows=len(index))

    return batch


def cloned(state: Any) -> Any:
    """A state with a copy of every tensor."""
    return restore(state, {name: leaf.clone() for name, leaf in flatten(state).items()})


def walk(
    algorithm: Algorithm,
    problem: Problem,
    batch: Callable[[int, int], Any],
    steps: int,
    *,
    seed: int = 0,
    before: Callable[[Any], Any] = lambda state: state,
    validate_every: int | None = None,
) -> Iterator[Moment]:
    """Every step of every stage; `before` is done to each state that a step is given.

    With `validate_every` the state hears of ever better validation in between.
    """
    random = Random(seed)
    starts: Any = problem.starts(algorithm.members, algorithm.member_init, random.fold("starts"))
    for index, (stage, plan) in enumerate(algorithm.stages(Plan(BATCH, steps, min(steps, 4)))):
        stream = random.fold(f"stage {index}")
        state = stage.init(problem, starts, stream.fold("init"), plan)
        for t in range(plan.steps):
            state, info = stage.step(problem, before(state), [batch(t, k) for k in range(stage.members)], stream)
            if validate_every is not None and (t + 1) % validate_every == 0:
                state = stage.validated(state, torch.arange(stage.members) - float(t))
            yield Moment(stage, state, info)
        starts = stage.snapshots(state)


def final(
    algorithm: Algorithm, problem: Problem, batch: Callable[[int, int], Any], steps: int, seed: int = 0
) -> Posterior:
    """The posterior after the last step of the last stage; emitted draws are kept in memory."""
    emitted: list[Tree] = []
    last: Moment | None = None
    with problem.network.session(train=True) if isinstance(problem, NetworkProblem) else nullcontext():
        for last in walk(algorithm, problem, batch, steps, seed=seed):
            if (draws := last.stage.emit(last.state)) is not None:
                length = len(next(iter(draws.values())))
                emitted += [{name: leaf[i].clone() for name, leaf in draws.items()} for i in range(length)]
    assert last is not None
    return last.stage.posterior(last.state, Draws(stack(emitted)) if emitted else None)
