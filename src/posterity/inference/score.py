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
from posterity.inference.score_low_rank import ScoreLowRank

__all__ = ["FAMILIES", "ScoreVI"]

FAMILIES: dict[str, Callable[..., Algorithm]] = {
    "diagonal": ScoreDiagonal,
    "dense": ScoreDense,
    "low-rank": ScoreLowRank,
}


def ScoreVI(family: str = "diagonal", **options: Any) -> Algorithm:
    """Score-based variational inference over one family of distributions; Kim (2026).

    Args:
        family: "diagonal" (independent normals), "dense" (one normal over all weights, for small networks) or "low-rank"
            (low-rank plus diagonal covariance).
        options: of the family's algorithm: `ScoreDiagonal`, `ScoreDense`, `ScoreLowRank`.

    Raises:
        CompatibilityError: an unknown family.
        ValueError: an option out of range.

    >>> ScoreVI().name, ScoreVI("low-rank", rank=3).rank
    ('score-vi', 3)
    """
    if family not in FAMILIES:
        known = ", ".join(repr(name) for name in FAMILIES)
        raise CompatibilityError(f"ScoreVI has no family {family!r}: choose one of {known}")
    return FAMILIES[family](**options)
