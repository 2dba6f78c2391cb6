"""What can be driven by a loop that is not ours."""

from __future__ import annotations

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan
from posterity.interfaces.driven.question import answered, asked
from posterity.problem.info import Info
from posterity.problem.likelihoods import Likelihood
from posterity.problem.likelihoods.base import ClassLikelihood
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import tree_map, weights

__all__ = ["check_drivable", "check_known"]

_DRIVABLE = "po.MAP(), po.IVON(), po.MeanFieldVI(), po.ScoreVI() and po.OptimizerLaplace() can be"


def check_drivable(algorithm: Algorithm, problem: NetworkProblem) -> None:
    """Try one step with a gradient of zeros, on a state that is thrown away.

    Raises:
        PriorError: a prior that the algorithm cannot use.
        CompatibilityError: it needs several members or stages, batches, or passes of its own; with what can be driven.
    """
    algorithm.check_prior(problem)
    if reason := _reason(algorithm, problem):
        raise CompatibilityError(
            f"{type(algorithm).__name__} cannot be driven by a loop that is not ours ({reason}): {_DRIVABLE}; "
            "po.fit runs every method"
        )


def _reason(algorithm: Algorithm, problem: NetworkProblem) -> str | None:
    plan, random = Plan(1, 10, 10), Random(0)
    if algorithm.members > 1:
        return f"its {algorithm.members} members each need a network and batches of their own"
    if algorithm.stages(plan) != [(algorithm, plan)]:
        return "it runs in several stages"
    if type(algorithm).emit is not Algorithm.emit:
        return "its draws are streamed to a folder"
    if type(algorithm).check is not Algorithm.check:
        return "it looks at a batch first"
    start = problem.start()
    try:
        state = algorithm.init(problem, [start], random.fold("init"), plan)
        thetas = asked(algorithm, problem, state, random)
        if thetas.keys() != start.keys():
            return "its gradients are by other tensors than the network's"
        again = asked(algorithm, problem, state, random)
        if not all(leaf.equal(again[name]) for name, leaf in thetas.items()):
            return "its step draws from a global generator"
        zeros = tree_map(lambda leaf: leaf.new_zeros(leaf.shape), weights(thetas))
        nothing = next(iter(zeros.values())).new_zeros(1)
        answered(algorithm, problem, state, random, zeros, Info(nothing, nothing, nothing == 0, {}), 1)
    except CompatibilityError as error:
        return str(error)
    return None


def check_known(likelihood: Likelihood) -> None:
    """Raise CompatibilityError where the likelihood must see all targets before the first step."""
    balanced = getattr(likelihood, "class_weight", None) == "balanced"
    if likelihood.needs_survey and (balanced or not isinstance(likelihood, ClassLikelihood)):
        raise CompatibilityError(
            f"the {likelihood.name} likelihood must know the targets: pass po.{type(likelihood).__name__}(...)"
            ".surveyed([targets])"
        )
