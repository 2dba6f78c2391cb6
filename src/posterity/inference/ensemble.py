"""Ensembles: an algorithm with `members` set.

Every State carries a leading member axis, so an ensemble is no algorithm of its own: its members share one step, each on
its own stream of batches and noise. Deep ensembles: Lakshminarayanan, Pritzel and Blundell (2017).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posterity.inference.algorithm import Algorithm
from posterity.inference.map import MAP

__all__ = ["DeepEnsemble", "Ensemble"]


def Ensemble(algorithm: Algorithm, members: int = 5, init: str = "reset") -> Algorithm:
    """`algorithm` run from several starts.

    Args:
        algorithm: any algorithm.
        members: their number, >= 1. The first starts at the user's weights.
        init: the others start at fresh weights ("reset": every submodule's `reset_parameters`) or at the "same" ones,
            which suits pretrained trunks, where only data order and noise differ.

    Raises:
        ValueError: members < 1 or an unknown `init`.

    >>> Ensemble(MAP(), 3).members
    3
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"Ensemble takes an algorithm first, such as Ensemble(MAP(), 5); got {algorithm!r}")
    if init not in ("reset", "same"):
        raise ValueError(f"init must be 'reset' or 'same', got {init!r}")
    return replace(algorithm, members=members, member_init=init)


def DeepEnsemble(members: int = 5, init: str = "reset", **hyperparameters: Any) -> MAP:
    """`members` networks by maximum a posteriori, from independent starts on independent batch orders."""
    ensemble = Ensemble(MAP(**hyperparameters), members, init)
    assert isinstance(ensemble, MAP)
    return ensemble
