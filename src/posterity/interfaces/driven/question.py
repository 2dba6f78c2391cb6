"""A step of an algorithm in two halves: where it wants the gradient, and what it does with it.

    weights = asked(algorithm, problem, state, random)
    state, info = answered(algorithm, problem, state, random, gradient, info, rows)

`step` is run twice: up to its question for a gradient, where it is left, and again with the answer. Nothing is written into
the state before the question, and draws are addressed, so both runs ask at the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm
from posterity.problem.batches import Batch
from posterity.problem.info import Info
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["answered", "asked"]


class _Asked(Exception):
    def __init__(self, thetas: Tree) -> None:
        self.thetas = thetas


class _Question:
    """The problem, except that the gradient comes from elsewhere, once a step."""

    def __init__(self, problem: NetworkProblem, answer: tuple[Tensor, Tree, Info] | None = None) -> None:
        self._problem, self._answer, self._served = problem, answer, False

    def __getattr__(self, name: str) -> Any:
        if name in ("nll", "hvp", "outputs"):
            raise CompatibilityError(f"a step that calls {name} makes passes of its own")
        return getattr(self._problem, name)

    def nlls(self, thetas: Tree, batches: Sequence[Any], randoms: Sequence[Random]) -> tuple[Tensor, Tree, Info]:
        if self._answer is None:
            raise _Asked(thetas)
        if self._served:
            raise CompatibilityError("a step that wants several gradients makes passes of its own")
        self._served = True
        return self._answer


def asked(algorithm: Algorithm, problem: NetworkProblem, state: Any, random: Random) -> Tree:
    """[1, ...] the weights at which the next step wants the gradient, with the changing buffers.

    Raises:
        CompatibilityError: the step never asks, or makes passes of its own.
    """
    question: Any = _Question(problem)
    try:
        algorithm.step(question, state, (Batch(None, rows=1),), random)
    except _Asked as found:
        return found.thetas
    raise CompatibilityError("a step that never wants a gradient has nothing to learn from a loop")


def answered(
    algorithm: Algorithm, problem: NetworkProblem, state: Any, random: Random, gradient: Tree, info: Info, rows: int
) -> tuple[Any, Info]:
    """The step, from the [1, ...] gradient of the mean NLL over `rows` rows; it may be written over."""
    question: Any = _Question(problem, (info.nll, gradient, info))
    return algorithm.step(question, state, (Batch(None, rows=rows),), random)
