"""What a fit is of: data that were looked at, and the network, likelihood and prior as one problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from posterity.errors import CompatibilityError
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.map import MAP
from posterity.problem.batches import Reader
from posterity.problem.data import Source
from posterity.problem.likelihoods import Likelihood, likelihood_from
from posterity.problem.magnitude import warn_of_magnitude
from posterity.problem.network import Network
from posterity.problem.priors import Prior
from posterity.problem.problem import NetworkProblem
from posterity.random import Random
from posterity.training.held_out import sources
from posterity.training.starts import Builder
from posterity.training.survey import Survey, check_held_out, survey

__all__ = ["Prepared", "built", "chosen"]


def chosen(method: Any) -> Algorithm:
    """The algorithm, `MAP()` where none is given.

    Raises:
        CompatibilityError: something else.
    """
    if not isinstance(method := MAP() if method is None else method, Algorithm):
        raise CompatibilityError(f"method must be an algorithm such as po.MAP(), got {method!r}")
    return method


def built(network: Any, random: Random) -> tuple[Builder | None, nn.Module]:
    """What builds the network, where it is given so, and the network.

    Raises:
        CompatibilityError: neither a module nor a function.
    """
    if isinstance(network, nn.Module):
        return None, network
    if not callable(network):
        raise CompatibilityError(f"network must be a torch.nn.Module or a function that builds one, got {network!r}")
    with random.fold("builder").forked(data=True):
        module = network()
    return network, module


class Prepared:
    """The data of a fit, surveyed, and its network. Arguments and errors as in `fit`.

    Attributes:
        random: of the fit.
        training, held_out: the data.
        network: as it was given.
        found: what the survey says.
    """

    def __init__(
        self,
        module: nn.Module,
        data: Any,
        likelihood: Likelihood | str,
        random: Random,
        *,
        validation: Any = None,
        batch_size: int | None = None,
        data_size: int | None = None,
        class_weight: Any = None,
        sample_weight: Any = None,
        target: str | int | None = None,
        output: Any = None,
        device: torch.device | str | None = None,
    ) -> None:
        named = isinstance(sample_weight, str | int)
        self._reader = Reader(target, sample_weight if named else None)
        self.random = random
        weight = None if named else sample_weight
        self.training: Source
        self.held_out: Source | None
        self.training, self.held_out = sources(data, validation, self._reader, batch_size, weight, random)
        self.network = Network(module, output=output, device=device)
        least = 2 if self.network.running_statistics_in_training() else 1
        weighted = _weighted(likelihood_from(likelihood), class_weight)
        self.found: Survey = survey(self.training, weighted, data_size, random.fold("survey"), least)

    def problem(self, prior: Prior | str | float, **options: Any) -> NetworkProblem:
        """The problem; options as in `NetworkProblem`."""
        return NetworkProblem(
            self.network, self.found.likelihood, prior, data_size=self.found.data_size, reader=self._reader, **options
        )

    def probe(self, problem: NetworkProblem) -> None:
        """Try the problem on the first batch, and on the first that is held out."""
        warn_of_magnitude(self.found.first.inputs)
        stream = self.random.fold("survey")
        problem.probe(self.found.first, self.random.fold("probe"), more=self.training.epoch(stream))
        if self.held_out is not None:
            check_held_out(problem, self.held_out, stream)

    def plan(self, epochs: int | None, steps: int | None, accumulation: int) -> Plan:
        """How long the first stage runs: `steps`, or `epochs`, 10 unless given."""
        per_epoch = -(-self.found.batches // accumulation)
        return Plan(self.found.batch_size * accumulation, steps or per_epoch * (epochs or 10), per_epoch)


def _weighted(likelihood: Likelihood, class_weight: Any) -> Likelihood:
    if class_weight is None:
        return likelihood
    if not any(field.name == "class_weight" for field in dataclasses.fields(likelihood)):  # type: ignore[arg-type]
        raise CompatibilityError(f"class_weight= does not go with the {likelihood.name} likelihood")
    if isinstance(class_weight, torch.Tensor):
        class_weight = class_weight.tolist()
    if isinstance(class_weight, Sequence) and not isinstance(class_weight, str):
        class_weight = tuple(class_weight)
    return dataclasses.replace(likelihood, class_weight=class_weight)  # type: ignore[type-var]
