"""Whether what is guaranteed is kept: 400 calibrations on populations whose truth is known.

selective    a row of sureness u, uniform in [0, 1] and surest at 0, is wrong with probability eta(u), so that the risk of
             those surer than u is R(u) = (1/u) int_0^u eta. `exceeded` is the share of calibrations after which R of what is
             answered is above max_risk = 0.02; it may be 0.05. `coverage` is the mean share answered, `possible` the largest
             share with R <= max_risk.

    easy, medium, hard    R grows with coverage, and reaches max_risk at 0.82, 0.63 and 0.35
    edge                  every row is wrong with probability 0.0201: whatever is answered is too much
    overconfident         of the surest 0.4 % of the rows every second is wrong; R falls below max_risk and rises again
    ties                  medium, with ten values of sureness only

conformal    a prediction that is wrong in mean, width and probabilities, calibrated on 199 rows at level 0.9 and judged on
             1000; `covered` is the mean share inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from posterity.bench.bench import Cell, Limit, Row
from posterity.evaluation.conformal_scores import (
    CLASS_SCORES,
    NUMBER_SCORES,
    class_scores,
    conformal_quantile,
    number_scores,
    widened,
)
from posterity.evaluation.predictions import as_predictive
from posterity.evaluation.risk_control import control_risk
from posterity.random import Random

__all__ = ["LIMITS", "POPULATIONS", "cells", "claims"]

MAX_RISK, CONFIDENCE, LEVEL, REPETITIONS, SIZES = 0.02, 0.95, 0.9, 400, (600, 2000)
CALIBRATION, JUDGED = 199, 1000
DELTA = 1 - CONFIDENCE

LIMITS = {
    "exceeded_worst": Limit(high=DELTA + 2 * math.sqrt(DELTA * CONFIDENCE / REPETITIONS)),
    **{f"covered_{score}": Limit(LEVEL - 0.01, LEVEL + 0.03) for score in (*NUMBER_SCORES, *CLASS_SCORES)},
}

Rate = Callable[[Tensor], Tensor]


_TEN = torch.arange(1, 11, dtype=torch.float64) / 10


def _tied(u: Tensor) -> Tensor:
    return _TEN[torch.searchsorted(_TEN, u)]


# the error rate of a row at u, and the risk of all rows surer than u
POPULATIONS: dict[str, tuple[Rate, Rate]] = {
    "easy": (lambda u: 0.003 + 0.4 * u**6, lambda u: 0.003 + 0.4 * u**6 / 7),
    "medium": (lambda u: 0.004 + 0.5 * u**4, lambda u: 0.004 + 0.1 * u**4),
    "hard": (lambda u: 0.5 * u**2, lambda u: 0.5 * u**2 / 3),
    "edge": (lambda u: torch.full_like(u, 0.0201), lambda u: torch.full_like(u, 0.0201)),
    "overconfident": (
        lambda u: torch.where(u < 0.004, 0.5, 0.004 + 0.3 * u**4),
        lambda u: torch.where(u < 0.004, 0.5, (0.002 + 0.004 * (u - 0.004) + 0.06 * u**5) / u.clamp_min(1e-9)),
    ),
    "ties": (lambda u: 0.004 + 0.5 * u**4, lambda u: 0.004 + 0.1 * u**4),
}


def cells(quick: bool, peers: bool) -> Mapping[str, Cell]:
    """A cell per population and number of rows, then one per kind of score."""
    times = 20 if quick else REPETITIONS
    found: dict[str, Cell] = {
        f"{name}, {rows} rows": partial(_selective, name, rows, times) for name in POPULATIONS for rows in SIZES
    }
    return {**found, "numbers": partial(_numbers, times), "classes": partial(_classes, times)}


def _selective(name: str, rows: int, times: int) -> list[Row]:
    rate, risk = POPULATIONS[name]
    exceeded, coverage, holds = 0, 0.0, 0
    for repetition in range(times):
        generator = Random(repetition).fold(name).fold(rows).generator()
        u = torch.rand(rows, generator=generator, dtype=torch.float64)
        wrong = torch.rand(rows, generator=generator, dtype=torch.float64) < rate(u)
        found = control_risk(-(_tied(u) if name == "ties" else u), ~wrong, MAX_RISK, CONFIDENCE)
        answered = torch.tensor(min(max(-found.cut, 0.0), 1.0), dtype=torch.float64)
        if name == "ties":  # what lies between two values is never seen
            answered = _TEN[answered >= _TEN].amax() if found.holds else answered
        if found.holds:
            holds += 1
            coverage += answered.item()
            exceeded += bool(risk(answered) > MAX_RISK)
    grid = torch.linspace(1e-4, 1, 10_000, dtype=torch.float64)
    inside = grid[risk(grid) <= MAX_RISK]
    return [
        {
            "population": name,
            "rows": rows,
            "repetitions": times,
            "exceeded": exceeded / times,
            "answers": holds / times,
            "coverage": coverage / times,
            "possible": inside.max().item() if len(inside) else 0.0,
        }
    ]


def _numbers(times: int) -> list[Row]:
    """y ~ N(x, (0.5 + |x|)^2), predicted N(0.9 x, 0.7^2 + 0.1 x^2)."""
    covered = dict.fromkeys(NUMBER_SCORES, 0.0)
    width = dict.fromkeys(NUMBER_SCORES, 0.0)
    for repetition in range(times):
        generator = Random(repetition).fold("numbers").generator()
        x, noise = torch.randn(2, CALIBRATION + JUDGED, generator=generator, dtype=torch.float64)
        y = x + (0.5 + x.abs()) * noise
        parts = (slice(0, CALIBRATION), slice(CALIBRATION, None))
        held, new = (as_predictive({"mean": 0.9 * x[one], "std": (0.49 + 0.1 * x[one] ** 2).sqrt()}) for one in parts)
        for score in NUMBER_SCORES:
            quantile = conformal_quantile(number_scores(held, y[parts[0]], score, LEVEL), LEVEL)
            lower, upper = widened(new, score, LEVEL, quantile)
            covered[score] += ((lower <= y[parts[1]]) & (y[parts[1]] <= upper)).double().mean().item() / times
            width[score] += (upper - lower).mean().item() / times
    return [
        {"score": score, "repetitions": times, "covered": covered[score], "size": width[score]}
        for score in NUMBER_SCORES
    ]


def _classes(times: int) -> list[Row]:
    """Seven classes of normal logits, predicted at half their temperature."""
    covered = dict.fromkeys(CLASS_SCORES, 0.0)
    size = dict.fromkeys(CLASS_SCORES, 0.0)
    for repetition in range(times):
        generator = Random(repetition).fold("classes").generator()
        logits = torch.randn(CALIBRATION + JUDGED, 7, generator=generator, dtype=torch.float64)
        y = torch.multinomial(logits.softmax(1), 1, generator=generator)
        probs = (2 * logits).softmax(1)
        for score in CLASS_SCORES:
            scores = class_scores(probs, score)
            true = scores.gather(1, y)[:, 0]
            member = scores[CALIBRATION:] <= conformal_quantile(true[:CALIBRATION], LEVEL)
            covered[score] += member.gather(1, y[CALIBRATION:]).double().mean().item() / times
            size[score] += member.sum(1).double().mean().item() / times
    return [
        {"score": score, "repetitions": times, "covered": covered[score], "size": size[score]} for score in CLASS_SCORES
    ]


def claims(rows: list[Row]) -> dict[str, float]:
    """How often max_risk was exceeded, in the worst population and in each; the coverage of each score."""
    selective = [row for row in rows if "population" in row]
    found = {"exceeded_worst": max((row["exceeded"] for row in selective), default=math.nan)}
    for row in selective:
        key = f"{row['population']}_{row['rows']}"
        found |= {f"{key}_exceeded": row["exceeded"], f"{key}_coverage": row["coverage"]}
    for row in rows:
        if "score" in row:
            found |= {f"covered_{row['score']}": row["covered"], f"size_{row['score']}": row["size"]}
    return found
