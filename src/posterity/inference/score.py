"""Score-based variational inference: q is moved until its own score, grad log q, is that of the posterior.

The objective and what its families share stand in `score_matching.py`, each family in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm
from posterity.inference.score_dense import ScoreDense
from posterity.inference.score_diagonal import ScoreDiagonal
from posterity.inference.score_flow import ScoreFlow
from posterity.inference.score_low_rank import ScoreLowRank
from posterity.inference.score_mixture import ScoreMixture

__all__ = ["FAMILIES", "ScoreVI"]

FAMILIES: dict[str, Callable[..., Algorithm]] = {
    "diagonal": ScoreDiagonal,
    "dense": ScoreDense,
    "low-rank-plus-diagonal": ScoreLowRank,
    "mixture": ScoreMixture,
    "flow": ScoreFlow,
}


def ScoreVI(family: str = "diagonal", **options: Any) -> Algorithm:
    """Score-based variational inference over one family of distributions; Kim (2026).

    Args:
        family: "diagonal" (independent normals), "dense" (one normal over all weights, for small networks),
            "low-rank-plus-diagonal" (its covariance), "mixture" (of independent normals) or "flow" (over few weights).
        options: of the family's algorithm: `ScoreDiagonal`, `ScoreDense`, `ScoreLowRank`, `ScoreMixture`, `ScoreFlow`.

    Raises:
        CompatibilityError: an unknown family.
        ValueError: an option out of range.

    >>> ScoreVI().name, ScoreVI("mixture", components=3).components
    ('score-vi', 3)
    """
    if family not in FAMILIES:
        known = ", ".join(repr(name) for name in FAMILIES)
        raise CompatibilityError(f"ScoreVI has no family {family!r}: choose one of {known}")
    return FAMILIES[family](**options)
