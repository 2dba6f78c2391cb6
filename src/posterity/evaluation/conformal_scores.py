"""Scores of split conformal prediction, larger = stranger, and the quantile of them that holds for one more row.

    classes    lac         1 - p_y, for the smallest sets                                     Sadinle et al. (2019)
               aps         the probability of all classes likelier than y: adaptive           Romano et al. (2020)
               raps        aps + 0.01 (rank of y - 5)+, for fewer long sets                   Angelopoulos et al. (2021)
    numbers    quantile    max(l - y, y - u), where [l, u] is the model's own interval        Romano et al. (2019)
               normalised  |y - mean| / std                                                   Lei et al. (2018)
               absolute    |y - mean|

What is kept of a new row is every y whose score is at most the ceil((n + 1) level)-th smallest of n calibration rows:
it holds the true one with probability level to level + 1 / (n + 1) without ties, and at least level with them, whatever the
model (Vovk et al., 2005). The class scores are those of the sources without their random tie-break (u = 0), so that a row's
set depends on that row alone; the likeliest class is always in an aps or raps set.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError
from posterity.prediction.predictive import CategoricalPredictive

__all__ = ["CLASS_SCORES", "NUMBER_SCORES", "class_scores", "conformal_quantile", "number_scores", "widened"]

CLASS_SCORES = ("lac", "aps", "raps")
NUMBER_SCORES = ("quantile", "normalised", "absolute")
_PENALTY, _FREE = 0.01, 5  # of raps, as in its source: classes from the sixth on


def conformal_quantile(scores: Tensor, level: float) -> float:
    """The ceil((n + 1) level)-th smallest of [n] scores. Raises DataError on NaN, or where n rows cannot give the level.

    >>> conformal_quantile(torch.arange(1.0, 10.0), 0.9)
    9.0
    """
    if not 0 < level < 1:
        raise DataError(f"level must be a fraction between 0 and 1, got {level}")
    n = len(scores)
    rank = math.ceil((n + 1) * level - 1e-9)  # (9 + 1) 0.9 is 9, rounded up or not
    if rank > n:
        raise DataError(f"level {level:g} needs at least {math.ceil(level / (1 - level) - 1e-9)} rows, got {n}")
    if bool(scores.isnan().any()):
        raise DataError("a score is NaN: a prediction or a target is not finite")
    return scores.double().sort().values[rank - 1].item()


def class_scores(probs: Tensor, score: str) -> Tensor:
    """[rows, classes] float64 scores of every class, from probabilities of that shape."""
    probs = probs.double()
    if score == "lac":
        return 1 - probs
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    likelier = ordered.cumsum(1) - ordered
    first = torch.searchsorted(-ordered, -ordered)  # equal probabilities have equal scores
    likelier = likelier.gather(1, first)
    if score == "raps":
        likelier = likelier + _PENALTY * (first + 1 - _FREE).clamp(min=0)
    return torch.empty_like(probs).scatter(1, order, likelier)


def number_scores(pred: Any, y: Tensor, score: str, level: float) -> Tensor:
    """[rows] float64 scores of targets [rows], in units of the target (normalised: in stds)."""
    if score == "quantile":
        lower, upper = (one_number(bound) for bound in pred.interval(level))
        return torch.maximum(lower - y, y - upper)
    distance = (y - one_number(pred.mean)).abs()
    return distance / one_number(pred.std) if score == "normalised" else distance


def widened(pred: Any, score: str, level: float, quantile: float) -> tuple[Tensor, Tensor]:
    """(lower, upper), [rows] float64: the y whose score is at most the quantile; their middle where there is none."""
    if score == "quantile":
        lower, upper = (one_number(bound) for bound in pred.interval(level))
        middle = (lower + upper) / 2
        return torch.minimum(lower - quantile, middle), torch.maximum(upper + quantile, middle)
    mean = one_number(pred.mean)
    half = quantile * one_number(pred.std) if score == "normalised" else torch.full_like(mean, quantile)
    return mean - half, mean + half


def one_number(values: Tensor) -> Tensor:
    """[rows] float64, of [rows] or [rows, 1]."""
    if values.numel() != len(values):
        raise CompatibilityError(
            f"conformal intervals are for one number per row, the predictions are {list(values.shape)}"
        )
    return values.double().flatten()


def kind_of(pred: Any) -> str:
    """ "classes" or "numbers". Raises CompatibilityError for tokens and several labels."""
    if not hasattr(pred, "probs"):
        return "numbers"
    if not isinstance(pred, CategoricalPredictive) or pred.log_probs.ndim != 2:
        raise CompatibilityError("conformal sets are for one class per row: not tokens or several labels")
    return "classes"
