"""Two modes, w = 0.7 and 0.3: which of them q finds, and with what weight.

    kl            KL(p || q) from 100000 exact draws of p: infinite where q misses a mode for good
    right_mass    share of 4000 draws of q nearer to the heavier mode; 0.7 is right

The defaults of each family, 32 draws a step, 800 steps (flows 400) in float64; a single normal starts at the std 4, wide
enough to see both modes. "Score alone": without what the families learn from the values of log p. "ELBO": the
reparameterised evidence lower bound over the same family.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from posterity.bench.bench import Cell, Limit, Row, finite
from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.score import ScoreVI
from posterity.posterior.dense import Dense
from posterity.posterior.flow import Flow
from posterity.posterior.normal_mixture import NormalMixture
from posterity.posterior.posterior import Posterior
from posterity.problem.reference import Mixture, mixture
from posterity.random import Random
from posterity.training.infer import infer

__all__ = ["LIMITS", "METHODS", "cells", "claims"]

LIMITS = {"mog8_tempered_kl": Limit(high=0.02), "mog8_right_mass": Limit(0.6, 0.8)}

STEPS, FLOW_STEPS, SEEDS, EXACT, DRAWS = 800, 400, 3, 100_000, 4000
WIDE = 4.0  # std of a single normal at the start
TARGETS = {"separation 3, std 1": (3.0, 1.0), "separation 4, std 0.5": (4.0, 0.5)}
NORMALS: dict[str, Callable[[], Algorithm]] = {
    "one normal, score": lambda: ScoreVI("dense", draws=32, init_std=WIDE),
    "one normal, ELBO": lambda: ADVI("full", draws=32, init_std=WIDE),
    "mixture of 8": lambda: ScoreVI("mixture"),
    "mixture of 8, score alone": lambda: ScoreVI("mixture", reweight=False),
    "mixture of 8, score alone, not tempered": lambda: ScoreVI("mixture", reweight=False, temper=0.0),
}
FLOWS: dict[str, Callable[[], Algorithm]] = {
    "flow": lambda: ScoreVI("flow"),
    "flow, score alone": lambda: ScoreVI("flow", reweight=False),
    "flow, score alone, 4 inner steps": lambda: ScoreVI("flow", reweight=False, inner_steps=4),
    "flow, ELBO": lambda: ScoreVI("flow", objective="elbo"),
    "flow, ELBO, not tempered": lambda: ScoreVI("flow", objective="elbo", temper=0.0),
}
METHODS = {**NORMALS, **FLOWS}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """One cell per target and method."""
    steps, seeds = (8, 1) if quick else (None, SEEDS)
    return {
        f"{title}: {method}": partial(_cell, title, method, steps, seeds) for title in TARGETS for method in METHODS
    }


def _cell(title: str, method: str, steps: int | None, seeds: int) -> list[Row]:
    target = mixture(*TARGETS[title])
    steps = steps or (FLOW_STEPS if method in FLOWS else STEPS)
    rows = []
    for seed in range(seeds):
        began = time.process_time()
        posterior = infer(target, METHODS[method](), steps, seed=seed)
        seconds = time.process_time() - began
        rows.append(
            {"target": title, "method": method, "seed": seed, **_measures(target, posterior), "seconds": seconds}
        )
    return rows


def _measures(target: Mixture, posterior: Posterior) -> Row:
    found = target.forward_kl(partial(_log_prob, posterior), EXACT, Random(1))
    draws = torch.stack([draw["x"] for draw in posterior.draws(DRAWS, Random(2))])
    return {
        "kl": finite(found.value),
        "kl_standard_error": finite(found.standard_error),
        "right_mass": target.right_mass(draws),
    }


def _log_prob(posterior: Posterior, x: Tensor) -> Tensor:
    """[n] log density of any of these families at x [n, d]."""
    if isinstance(posterior, NormalMixture | Flow):
        return posterior.log_prob(x)
    assert isinstance(posterior, Dense)
    covariance = posterior.factor @ posterior.factor.mT
    return torch.distributions.MultivariateNormal(posterior.mean()["x"], covariance).log_prob(x)


def claims(rows: list[Row]) -> dict[str, float]:
    """On the nearer modes: the worst of the mixture, and the medians over the seeds of the flows."""
    near = next(iter(TARGETS))

    def of(method: str, field: str) -> list[float]:
        kept = [row[field] for row in rows if row["method"] == method and row["target"] == near]
        return [math.inf if value is None else value for value in kept]

    return {
        "mog8_tempered_kl": max(of("mixture of 8", "kl")),
        "mog8_right_mass": max(of("mixture of 8", "right_mass"), key=lambda mass: abs(mass - 0.7)),
        "flow_kl": statistics.median(of("flow", "kl")),
        "flow_score_kl": statistics.median(of("flow, score alone", "kl")),
        "flow_inner_steps_kl": statistics.median(of("flow, score alone, 4 inner steps", "kl")),
        "flow_elbo_kl": statistics.median(of("flow, ELBO", "kl")),
    }
