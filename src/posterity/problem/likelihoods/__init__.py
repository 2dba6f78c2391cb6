"""Likelihoods p(y | outputs), by name or as frozen dataclasses.

    Classes   "categorical", "bernoulli", "multilabel", "tokens"
    Numbers   "gaussian", "heteroscedastic", "student-t"
    Counts    "poisson"

A new one is a `Likelihood` subclass; `LIKELIHOODS[name] = Class` makes it known by name and to saved runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posterity.errors import CompatibilityError
from posterity.problem.likelihoods.base import ClassLikelihood, Likelihood, Outputs
from posterity.problem.likelihoods.binary import Bernoulli, Multilabel
from posterity.problem.likelihoods.classification import Categorical
from posterity.problem.likelihoods.counts import Poisson
from posterity.problem.likelihoods.regression import Gaussian, Heteroscedastic, LocationScale, StudentT
from posterity.problem.likelihoods.tokens import Tokens

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "ClassLikelihood",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "LocationScale",
    "Multilabel",
    "Outputs",
    "Poisson",
    "StudentT",
    "Tokens",
    "likelihood_from",
    "likelihood_from_json",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (Categorical, Bernoulli, Multilabel, Gaussian, Heteroscedastic, StudentT, Poisson, Tokens)
}


def likelihood_from(spec: str | Likelihood) -> Likelihood:
    """A likelihood, or the one of that name with its defaults.

    >>> likelihood_from("student-t")
    StudentT(standardize=True, scaling=None, df=4)

    Raises:
        CompatibilityError: an unknown name; the known ones are listed.
    """
    if isinstance(spec, Likelihood):
        return spec
    if isinstance(spec, str) and spec in LIKELIHOODS:
        return LIKELIHOODS[spec]()
    raise CompatibilityError(f"unknown likelihood {spec!r}: give a Likelihood or one of {', '.join(LIKELIHOODS)}")


def likelihood_from_json(content: Mapping[str, Any]) -> Likelihood:
    """The inverse of `Likelihood.to_json`, for any known name."""
    name = content.get("name")
    if name not in LIKELIHOODS:
        raise CompatibilityError(f"unknown likelihood {name!r}: the known ones are {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS[name].from_json(content)
