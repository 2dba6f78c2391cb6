"""Everything that a fit was told: what its folder and its checkpoints say of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from posterity.inference.algorithm import Algorithm, Plan
from posterity.problem.problem import NetworkProblem

__all__ = ["settings_of"]


def settings_of(
    problem: NetworkProblem, method: Algorithm, plan: Plan, epochs: int | None, steps: int | None, seed: int,
    accumulation: int, patience: int | None,
) -> dict[str, Any]:  # fmt: skip
    """As JSON; what a resumed fit must agree with."""
    trainable = problem.network.trainable
    settings = {
        "method": method.title,
        "hyperparameters": method.hyperparameters(),
        "likelihood": problem.likelihood.to_json(),
        "prior": problem.prior.to_json(),
        "data_size": problem.data_size,
        "data_weight": problem.data_weight,
        "temperature": 1.0,
        "seed": seed,
        "epochs": epochs,
        "steps": steps,
        "batch_size": plan.batch_size,
        "accumulation": accumulation,
        "patience": patience,
        "precision": problem.precision,
        "clip": problem.clip,
        "reader": dataclasses.asdict(problem.reader),
        "network": {name: list(leaf.shape) for name, leaf in trainable.items()},
        "idle": sorted(problem.idle),
    }
    return json.loads(json.dumps(settings, default=str))
