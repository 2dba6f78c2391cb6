"""From the outputs of draws to a `Predictive`, one draw at a time.

    r = Reducer(likelihood, temperature=1.0)
    for theta in draws:
        r.add(network(theta, x), likelihood_parameters)
    pred = r.result(via="draws")

Classes keep running means only, so memory does not grow with draws; mixtures keep their components. Temperature T > 1
flattens: logits / T; scales * sqrt(T) for normal densities, which is p^(1/T) normalised, and by convention for
Student-t.

`reducer` goes by the likelihood's type: `@reducer.register(MyLikelihood)` on a `Reducer` adds a kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.prediction.base import Predictive
from posterity.prediction.classes import CategoricalPredictive, MultilabelPredictive, entropies
from posterity.prediction.closed import NormalLogits
from posterity.prediction.components import GaussianMixture, PoissonMixture, StudentMixture
from posterity.prediction.mixture import MixturePredictive
from posterity.problem.likelihoods import (
    ClassLikelihood,
    Likelihood,
    LocationScale,
    Multilabel,
    Outputs,
    Poisson,
    StudentT,
)
from posterity.problem.likelihoods.base import exact

__all__ = [
    "ClassReducer",
    "MixtureReducer",
    "MultilabelReducer",
    "PoissonReducer",
    "Reducer",
    "StudentReducer",
    "reducer",
]

_BLOCK = 256  # draws


class Reducer(ABC):
    """Takes the outputs of one draw after the other for one block of rows.

    `Reducer(likelihood, ...)` is the kind that the likelihood's type wants, as `reducer(likelihood, ...)` is.

    Args:
        temperature: > 0; 1 leaves the likelihood as it is.
        keep_draws: classes also keep each draw's probabilities, `pred.per_draw` `[draw, row, ...]`.

    Raises:
        CompatibilityError: an unregistered likelihood; a temperature that is not > 0, or that counts cannot take.
    """

    def __new__(cls, likelihood: Any, *args: Any, **kwargs: Any) -> Reducer:
        kind = reducer.dispatch(type(likelihood)) if cls is Reducer else cls
        return super().__new__(kind) if isinstance(kind, type) else kind(likelihood)

    def __init__(self, likelihood: Any, temperature: float = 1.0, keep_draws: bool = False) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise CompatibilityError(f"temperature must be finite and > 0, got {temperature}")
        self.likelihood = likelihood
        self.temperature = temperature
        self.keep_draws = keep_draws
        self.count = 0
        self._shapes: list[tuple[int, ...]] = []

    @torch.no_grad()
    def add(self, outputs: Outputs | NormalLogits, parameters: Mapping[str, Tensor] | None = None) -> None:
        """The outputs of the block's rows under one more draw, and that draw's likelihood parameters; or their moments.

        Raises:
            CompatibilityError, ShapeError: outputs that the likelihood cannot read, or shaped unlike those before.
        """
        shown = outputs.mean if isinstance(outputs, NormalLogits) else outputs
        self.likelihood.check(shown)
        shapes = [tuple(part.shape) for part in (shown if isinstance(shown, tuple) else (shown,))]
        if self.count and shapes != self._shapes:
            raise ShapeError(f"draw {self.count} has outputs of shape {shapes}, the draws before it {self._shapes}")
        self._shapes = shapes
        self.count += 1
        self._add(outputs, parameters or {})

    @torch.no_grad()
    def result(self, via: str = "draws") -> Predictive:
        """The predictive of what was added so far.

        Raises:
            DataError: nothing was.
        """
        if self.count == 0:
            raise DataError("no draws to predict from: add the outputs of at least one")
        return self._result(via)

    def held(self, draws: int) -> int:
        """Bytes that it holds after as many draws, by those that it saw; 0 of a kind that does not say."""
        return 0

    @abstractmethod
    def _add(self, outputs: Any, parameters: Mapping[str, Tensor]) -> None:
        """Take draw number `count`."""

    @abstractmethod
    def _result(self, via: str) -> Predictive:
        """The predictive of `count` draws."""


@singledispatch
def reducer(likelihood: Likelihood, temperature: float = 1.0, keep_draws: bool = False) -> Reducer:
    """An empty `Reducer`, of the kind registered for the likelihood's type."""
    raise CompatibilityError(
        f"no predictive is known for {type(likelihood).__name__}: give a likelihood of this library, or register a "
        "Reducer for it with `reducer.register`"
    )


def _wide(outputs: Tensor) -> Tensor:
    """Outputs with one prediction per row in float64; dense ones, where memory counts, in float32."""
    if outputs.ndim > 2:
        return exact(outputs)
    return (outputs.cpu() if outputs.device.type == "mps" else outputs).double()  # MPS has no float64


def _log_mean(mean: Tensor, new: Tensor, count: int) -> Tensor:
    """log of the running mean of exp: `mean` of count - 1 terms and `new`. Equal terms stay as they are, bit for bit."""
    both = torch.logaddexp(mean + math.log1p(-1 / count), new - math.log(count))
    return torch.where(mean == new, mean, both)


@reducer.register(ClassLikelihood)
class ClassReducer(Reducer):
    """Running means of probabilities (in log space) and of entropies."""

    predictive: type[CategoricalPredictive] = CategoricalPredictive

    def __init__(self, likelihood: ClassLikelihood, temperature: float = 1.0, keep_draws: bool = False) -> None:
        super().__init__(likelihood, temperature, keep_draws)
        self._kept: list[Tensor] = []

    def _add(self, outputs: Tensor | NormalLogits, parameters: Mapping[str, Tensor]) -> None:
        if isinstance(outputs, NormalLogits):
            log_probs = self.likelihood.log_probs(outputs.at(self.temperature, _wide))
            entropy = (self.predictive.total(entropies(log_probs)) - self._epistemic(outputs.points())).clamp_min(0.0)
        else:
            log_probs = self.likelihood.log_probs(_wide(outputs) / self.temperature)
            entropy = self.predictive.total(entropies(log_probs))
        if self.count == 1:
            self._log_probs, self._entropy = log_probs, entropy
        else:
            self._log_probs = _log_mean(self._log_probs, log_probs, self.count)
            self._entropy = self._entropy + (entropy - self._entropy) / self.count
        if self.keep_draws:
            self._kept.append(self.predictive.shown(log_probs).float().cpu())

    def held(self, draws: int) -> int:
        kept = sum(probs.nbytes for probs in self._kept)
        return self._log_probs.nbytes + self._entropy.nbytes + kept * draws // self.count

    def _epistemic(self, points: Iterable[Tensor]) -> Tensor:
        """[rows, ...] mutual information in nats of label and point."""
        apart = type(self)(self.likelihood, self.temperature)
        for outputs in points:
            apart.add(outputs)
        entropy = self.predictive.total(entropies(apart._log_probs))
        return (entropy - apart._entropy).clamp_min(0.0)

    def _result(self, via: str) -> Predictive:
        kept = torch.stack(self._kept) if self.keep_draws else None
        return self.predictive.of(
            self.likelihood, self._log_probs, self._entropy, draws=self.count, via=via, per_draw=kept
        )


@reducer.register(Multilabel)
class MultilabelReducer(ClassReducer):
    """As `ClassReducer`, a yes or no for each label."""

    predictive = MultilabelPredictive


@reducer.register(LocationScale)
class MixtureReducer(Reducer):
    """The location and scale of every draw."""

    predictive: type[MixturePredictive] = GaussianMixture

    def __init__(self, likelihood: Likelihood, temperature: float = 1.0, keep_draws: bool = False) -> None:
        super().__init__(likelihood, temperature, keep_draws)
        self._blocks: list[tuple[Tensor, ...]] = []  # [draw, row, ...]
        self._kept: list[tuple[Tensor, ...]] = []  # of the draws since the last block

    def _add(self, outputs: Any, parameters: Mapping[str, Tensor]) -> None:
        location, log_scale = self.likelihood.location_and_log_scale(outputs, parameters)
        scale = log_scale.exp() * math.sqrt(self.temperature)
        self._keep(_single(location), _single(scale.expand(location.shape)))

    def held(self, draws: int) -> int:
        kept = sum(part.nbytes for parts in (*self._blocks, *self._kept) for part in parts)
        return kept * draws // self.count

    def _keep(self, *parts: Tensor) -> None:
        self._kept.append(parts)
        if len(self._kept) == _BLOCK:
            self._close()

    def _close(self) -> None:
        """Thousands of small tensors among a network's temporaries tear the heap; a few large ones do not."""
        if self._kept:
            self._blocks.append(tuple(torch.stack(parts) for parts in zip(*self._kept)))
            self._kept = []

    def _result(self, via: str) -> Predictive:
        self._close()
        return self.predictive(self.likelihood, self.count, via, *(torch.cat(parts) for parts in zip(*self._blocks)))


@reducer.register(StudentT)
class StudentReducer(MixtureReducer):
    """As `MixtureReducer`, with Student-t components."""

    predictive = StudentMixture


@reducer.register(Poisson)
class PoissonReducer(MixtureReducer):
    """The log rate of every draw."""

    predictive = PoissonMixture

    def __init__(self, likelihood: Poisson, temperature: float = 1.0, keep_draws: bool = False) -> None:
        super().__init__(likelihood, temperature, keep_draws)
        if temperature != 1.0:
            raise CompatibilityError(f"counts have no scale to temper: poisson takes temperature 1, got {temperature}")

    def _add(self, outputs: Any, parameters: Mapping[str, Tensor]) -> None:
        self._keep(_single(exact(outputs)))


def _single(values: Tensor) -> Tensor:
    """One output per row is `[rows]`, however the network says it."""
    return (values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values).detach().cpu()
