"""Chains of many configurations and step sizes side by side, from the snapshots of one ensemble.

One run gives two windows: the draws of its first half ("zero" warm-up) and of its second ("half"). Configurations see the
same batches; a chain is left out of a window as a posterior would leave it out (`tally.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.bench.bde_task import Averages, Configuration, Task, summary
from posterity.bench.bench import finite
from posterity.errors import NonFiniteError
from posterity.inference.algorithm import Plan
from posterity.inference.mass import Adapting
from posterity.inference.sampler import SamplerState
from posterity.inference.sghmc import SGHMC
from posterity.inference.tally import Tally, allowance
from posterity.random import Random
from posterity.tree import member

__all__ = ["WINDOWS", "Health", "Run", "explored"]

WINDOWS = ("zero", "half")


class Health(NamedTuple):
    """How the chains of one configuration and step size went."""

    lost: int | None = None
    dead: int | None = None
    kinetic: float | None = None  # temperature over the second half
    noise_ratio: float | None = None  # median r
    clamped: float | None = None  # share of r > 1
    stable_limit: float | None = None


@dataclass
class Run:
    """One configuration at one step size."""

    step_size: float
    health: dict[str, Health] = field(default_factory=dict)
    told: dict[str, dict[str, float | None]] = field(default_factory=dict)


def explored(task: Task, group: Sequence[Configuration], sizes: Sequence[float] | None) -> list[list[Run]]:
    """For each configuration the runs of all step sizes, or the one of "auto". All chains step side by side."""
    if not group:
        return []
    budget, columns = task.budget, len(sizes or [0])
    grid = tuple(size for size in list(sizes or ()) * len(group) for _ in range(budget.members))
    method = SGHMC(
        members=budget.members * columns * len(group), mass=group[0].mass, step_size=grid or "auto",
        check_stability=False, warmup=budget.steps // 2, draws_per_chain=budget.steps // (2 * budget.thin),
        thin=budget.thin,
    )  # fmt: skip
    random = Random(task.seed).fold("chains")
    state = _stacked([_start(task, one, columns, random) for one in group])
    state, averages, health = _sampled(task, method, state, random, columns * len(group))
    runs = []
    for place in range(columns * len(group)):
        own = range(place * budget.members, (place + 1) * budget.members)
        run = Run(float(state.step_size[own.start : own.stop].median()))
        for window in WINDOWS:
            lost, dead = health[window]
            going = [k for k in own if k not in health["half"][0]]
            run.health[window] = _health(method, state, own, going, lost, dead, group[place // columns])
            run.told[window] = summary(task, averages[window], [k for k in own if k not in lost])
        runs.append(run)
    return [runs[i : i + columns] for i in range(0, len(runs), columns)]


def _start(task: Task, one: Configuration, columns: int, random: Random) -> SamplerState:
    budget = task.budget
    method = SGHMC(members=budget.members * columns, mass=one.mass, warmup=budget.steps // 2, thin=budget.thin)
    plan = Plan(budget.batch_size, budget.steps, max(1, len(task.train[1]) // budget.batch_size))
    state = method.init(task.problem, task.snapshots * columns, random.fold("init"), plan)
    return state if one.corrected else state._replace(noise=torch.zeros_like(state.noise))


def _stacked(states: Sequence[SamplerState]) -> SamplerState:
    """The chains of several states as those of one; what is not per chain is the same in all."""

    def cat(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts))

    first = states[0]
    return first._replace(
        theta={name: cat([state.theta[name] for state in states]) for name in first.theta},
        momentum=cat([state.momentum for state in states]),
        mass=cat([state.mass for state in states]),
        noise=cat([state.noise for state in states]),
        adapting=Adapting(*(cat(parts) for parts in zip(*(state.adapting for state in states)))),
        step_size=cat([state.step_size for state in states]),
        curvature=cat([state.curvature for state in states]),
        tally=Tally(*(cat(parts) for parts in zip(*(state.tally for state in states)))),
        trace=first.trace._replace(values=cat([state.trace.values for state in states])),
    )


def _sampled(
    task: Task, method: SGHMC, state: SamplerState, random: Random, copies: int
) -> tuple[SamplerState, dict[str, Averages], dict[str, tuple[frozenset[int], frozenset[int]]]]:
    """Run to the end; per window the averages, and which chains are lost and which of these dead."""
    steps, half = task.budget.steps, task.budget.steps // 2
    averages = {window: Averages() for window in WINDOWS}
    early = torch.zeros(method.members, dtype=torch.float64)
    health: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
    order: dict[int, Tensor] = {}
    most = allowance(state.mass.shape[1], float(state.size))
    with task.problem.network.session(train=True):
        for t in range(steps):
            try:
                state, info = method.step(task.problem, state, task.batches(order, t) * copies, random)
            except NonFiniteError:  # of every chain
                break
            if t < half:
                early += info.nll.double().nan_to_num(0.0, 0.0, 0.0)
            if t + 1 == half:  # the rule of `Tally`, for the first half
                dead = frozenset(state.tally.dead.nonzero().flatten().tolist())
                rose = early / half - state.tally.start_nll > most
                health["zero"] = (dead | set(rose.nonzero().flatten().tolist()), dead)
            if (t + 1) % task.budget.thin == 0:
                with torch.inference_mode(), task.problem.network.session(train=False):
                    told = [task.look(member(state.theta, k)) for k in range(method.members)]
                averages[WINDOWS[t >= half]].add(told)
    dead = frozenset(state.tally.dead.nonzero().flatten().tolist())
    every = frozenset(range(method.members))
    health.setdefault("zero", (every, every))
    health["half"] = (every, every) if len(dead) == len(every) else (frozenset(state.tally.lost(most)), dead)
    return state, averages, health


def _health(
    method: SGHMC, state: SamplerState, own: range, going: list[int], lost: frozenset[int], dead: frozenset[int],
    one: Configuration,
) -> Health:  # fmt: skip
    tally, h = state.tally, state.step_size
    kinetic = [float(tally.kinetic[k]) / max(1, int(tally.counted[k])) for k in going]
    ratio = torch.cat([method.noise_ratio(float(h[k]), state.noise[k], state.mass[k]) for k in own])
    curvature = float(state.curvature[own.start : own.stop].median())
    return Health(
        lost=sum(k in lost for k in own),
        dead=sum(k in dead for k in own),
        kinetic=finite(statistics.fmean(kinetic)) if kinetic else None,
        noise_ratio=finite(float(ratio.median())) if one.corrected else None,
        clamped=finite(float((ratio > 1.0).double().mean())) if one.corrected else None,
        stable_limit=finite(method.stable_limit(curvature)) if curvature > 0.0 else None,
    )
