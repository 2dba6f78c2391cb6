"""`infer`: a bare log density in, a posterior out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posterity.errors import NonFiniteError
from posterity.inference.algorithm import Algorithm, Plan, Start
from posterity.inference.arrival import warn_of_pull
from posterity.posterior.draws import Draws
from posterity.posterior.posterior import Posterior
from posterity.problem.densities import Density
from posterity.random import Random
from posterity.tree import Tree, member, stack

__all__ = ["infer"]


def infer(
    density: Density,
    method: Algorithm,
    steps: int,
    *,
    start: Start | None = None,
    seed: int = 0,
    callback: Callable[[int, Any], bool | None] | None = None,
    max_failures: int = 10,
) -> Posterior:
    """Approximate a bare density; what `fit` does for a network, without data.

    A fit whose draws all have scores that point one way has not arrived, and a warning says so.

    Args:
        density: unnormalised; see `Density`.
        method: any algorithm that needs no network. What it emits is kept in memory.
        steps: of its first stage, >= 1.
        start: a tree like `density.start()`, or one per member; the density's own unless given.
        seed: of everything random.
        callback: called after each step with the number of steps done and the state; the stage ends where it returns True.
        max_failures: steps in a row without a finite density that end the run; fewer are skipped.

    Raises:
        ValueError: steps < 1.
        NonFiniteError: too many non-finite steps in a row.
        PriorError, CompatibilityError: a method that cannot work on the density.

    >>> import torch, posterity as po
    >>> target = po.Density(lambda t: -0.5 * ((t["x"] - 2.0) / 0.3).square().sum(), {"x": torch.zeros(1)})
    >>> found = po.infer(target, po.ScoreVI(), steps=1000).moments()["x"]
    >>> round(found.mean.item(), 3), round(found.std.item(), 3)
    (2.0, 0.3)
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    random = Random(seed)
    method.check(density, None)
    starts: Start = density.starts(method.members, method.member_init, random) if start is None else start
    emitted: list[Tree] = []
    whole = Plan(1, steps, steps)
    stages = method.stages(whole) if start is None else method.stages_from_start(whole)
    for index, (stage, plan) in enumerate(stages):
        stream, failures = random.fold(f"stage {index}"), 0
        state = stage.init(density, starts, stream.fold("init"), plan)
        for t in range(plan.steps):
            state, info = stage.step(density, state, [None] * stage.members, stream)
            fine = info.finite if info.lost is None else info.finite | info.lost
            failures = 0 if bool(fine.all()) else failures + 1
            if failures >= max_failures:
                raise NonFiniteError(
                    f"{stage.name}: the density or its gradient was not finite in {failures} steps in a row, the last of "
                    f"them step {t + 1}: start nearer to its mass, or lower the learning rate or init_std"
                )
            if (draws := stage.emit(state)) is not None:
                emitted += [{n: leaf.clone() for n, leaf in member(draws, k).items()} for k in range(stage.members)]
            if callback is not None and callback(t + 1, state):
                break
        starts = stage.snapshots(state)
    posterior = stage.posterior(state, Draws(stack(emitted)) if emitted else None)
    warn_of_pull(density, posterior, stage.name, random.fold("arrival"))
    return posterior
