"""Means and variances of what a network says, from the moments of its weights, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.posterior.dense import Dense, Kronecker
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.factors import Factors
from posterity.posterior.mc_dropout import Masked
from posterity.posterior.mixture import Mixture
from posterity.posterior.moments import Correlated, Deterministic, FactoredNormal, Moment, Normal
from posterity.posterior.point import Point
from posterity.posterior.posterior import Posterior
from posterity.prediction.noisy import Noisy
from posterity.prediction.propagation.correlated import CorrelatedOutput, CorrelatedWeight
from posterity.prediction.propagation.covariance import covaried
from posterity.prediction.propagation.eager import Propagated, followed, unwrapped
from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.head import POINTS, check_head, said_by
from posterity.prediction.propagation.rank_one import RankOneWeight, rank_one_errors, saves
from posterity.prediction.propagation.run import Pass, outputs_scaled, pass_of, running
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.propagation.value import MeanVar, Value
from posterity.problem.batches import Batch
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.tree import LIKELIHOOD, Tree, pick

__all__ = [
    "Way",
    "components",
    "likelihood_parameters",
    "points_of_each",
    "propagate",
    "values_of",
    "ways",
    "weight_values",
]

FEW = 16  # networks
MUCH = 0.1  # of the norm of a weight's variances
Way = Callable[[Batch, Random | None], list[tuple[Any, Tree]]]


def components(posterior: Posterior) -> list[Posterior]:
    """What is propagated one by one: the parts of a mixture, up to 16 networks of an ensemble or chain, else the posterior.

    Of more networks the moments over all of them are taken.

    Raises:
        CompatibilityError: masks of dropout, which are not in the weights.
    """
    if isinstance(posterior, Masked):
        raise CompatibilityError("the spread of dropout is in masks, not in the weights: predict with via='draws'")
    if isinstance(posterior, Mixture):
        return list(posterior.components)
    if posterior.finite is not None and posterior.finite <= FEW:
        return [Point(theta) for theta in posterior.draws(None, Random(0))]
    one_layer = (
        isinstance(posterior, Dense | Kronecker) and posterior.layer is not None
    )  # exact, or said where it is not
    if not (isinstance(posterior, Diagonal | Factors) or one_layer):
        warnings.warn(
            f"propagation takes the weights as independent, and those of a {posterior.kind} posterior are not: compare "
            "with via='draws'",
            PosterityWarning,
            stacklevel=2,
        )
    return [posterior]


def weight_values(posterior: Posterior, variance: Literal["full", "rank-one"] = "full") -> dict[str, Value]:
    """Every weight and buffer as a value; parameters of the likelihood at their mean."""
    return {
        name: moment.mean if name.startswith(LIKELIHOOD) else _value(moment, variance)
        for name, moment in posterior.moments().items()
    }


def _value(moment: Moment, variance: Literal["full", "rank-one"]) -> Value:
    match moment:
        case Deterministic(mean):
            return mean
        case Normal(mean, std):
            kind = RankOneWeight.of if variance == "rank-one" and saves(mean.shape) else MeanVar
            return kind(mean, std.square())
        case FactoredNormal():
            return FactoredWeight(moment)
        case Correlated():
            return CorrelatedWeight(*moment)
    raise CompatibilityError(f"propagation knows no moments of the kind {type(moment).__name__}")


def values_of(posterior: Posterior, settings: Propagation) -> list[dict[str, Value]]:
    """For each component of the posterior the values of its weights; their means where the variance does not help."""
    parts = components(posterior)
    if not settings.helps:
        return [dict(part.mean()) for part in parts]
    variance = settings.rules.variance
    if variance == "rank-one":
        _tell(parts)
    return [weight_values(part, variance) for part in parts]


def _tell(parts: Sequence[Posterior]) -> None:
    """Say what rank-one variances err by, where it is much."""
    errors = {name: error for part in parts for name, error in rank_one_errors(part).items()}
    worst = max(errors, key=errors.__getitem__, default="")
    if errors and errors[worst] > MUCH:
        warnings.warn(
            f"rank-one variances are off by up to {errors[worst]:.2g} of their norm (at {worst!r}; "
            f"{sum(error > MUCH for error in errors.values())} of {len(errors)} weights are above {MUCH}): compare with "
            'Rules(variance="full")',
            PosterityWarning,
            stacklevel=2,
        )


def ways(problem: NetworkProblem, posterior: Posterior, points: int | None, settings: Propagation) -> list[Way]:
    """For each component of the posterior, what stands for its draws on a batch.

    Args:
        points: of all components together, 64 unless given; at least 16 of each.
    """
    check_head(problem.likelihood, settings.rules.head)
    parts = values_of(posterior, settings)
    return [partial(_said, problem, values, points_of_each(points, len(parts)), settings) for values in parts]


def points_of_each(points: int | None, parts: int) -> int:
    """How many points each of so many components has."""
    points = points or POINTS
    return points if parts == 1 else max(16, points // parts)


def likelihood_parameters(values: Mapping[str, Value]) -> Tree:
    """The likelihood's own parameters among the values."""
    return pick({name: leaf for name, leaf in values.items() if isinstance(leaf, Tensor)}, LIKELIHOOD)


def _said(
    problem: NetworkProblem,
    values: dict[str, Value],
    points: int,
    settings: Propagation,
    batch: Batch,
    random: Random | None,
) -> list[tuple[Any, Tree]]:
    if isinstance(batch.inputs, Noisy):
        mean, std = batch.inputs
        batch = batch._replace(inputs=Propagated(MeanVar(mean, std.square())))
    output = propagate(problem, values, batch, pass_of(settings))
    parameters = likelihood_parameters(values)
    said = said_by(output, problem.likelihood, points, settings.rules.head)
    return [(one, parameters) for one in said]


def propagate(problem: NetworkProblem, values: dict[str, Value], inputs: Any, one: Pass | None = None) -> Any:
    """The outputs' values.

    Args:
        values: of the weights, as `weight_values` gives them.
        one: settings and sites of this pass.

    Returns:
        A value, or the tuple of them that the likelihood reads; a `Joint` with `Rules(covariance=True)`, and of a correlated
        layer that comes last.

    Raises:
        CompatibilityError: an operation without a rule; see `covaried` for those of a covariance.
    """
    if one is not None and one.rules.covariance:
        return covaried(problem, values, inputs, one)
    theta: Tree = {name: Propagated(leaf) if isinstance(leaf, MeanVar) else leaf for name, leaf in values.items()}
    with running(one or Pass()), followed(problem.network.module):
        found = outputs_scaled(unwrapped(problem.outputs(theta, inputs)))
        return found.joint() if isinstance(found, CorrelatedOutput) else found
