"""Baselines as more than one bench sets them."""

from __future__ import annotations

from typing import Any

from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.schedule import Cosine

__all__ = ["full_rank_advi"]


def full_rank_advi(rate: float, stick: bool = False, **options: Any) -> Algorithm:
    """ADVI over a full covariance, with one cosine rate for means and factor."""
    rates = {"learning_rate": Cosine(rate), "factor_learning_rate": Cosine(rate)}
    return ADVI("full", stick_the_landing=stick, **rates, **options)
