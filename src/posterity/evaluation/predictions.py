"""Other people's predictions, as arrays or frames, made into what is evaluated here.

classes      probs [rows, classes], or [draws, rows, classes]: their mixture
regression   {"mean", "std"}, normal, [rows] or [draws, rows]; {"mean", "lower", "upper"}, intervals of one level
frames       the columns that `posterity predict` writes: p_<class>..., or mean and std, or mean, lower and upper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.errors import DataError, ShapeError
from posterity.evaluation.proper import check_probs
from posterity.prediction.classes import entropies
from posterity.prediction.predictive import CategoricalPredictive, GaussianMixture, Predictive
from posterity.problem.data import as_tensor
from posterity.problem.likelihoods import Categorical, Gaussian
from posterity.problem.scaling import Scaling

__all__ = ["Intervals", "as_predictive", "is_predictions"]


@dataclass(frozen=True)
class Intervals:
    """Point predictions with the intervals of one level: all that some models say. [rows] each."""

    mean: Tensor
    lower: Tensor
    upper: Tensor
    level: float
    via: str = "given"

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """(lower, upper). Raises DataError for another level than the one that is known."""
        if level != self.level:
            raise DataError(f"the intervals given are of level {self.level:g}: say levels=({self.level:g},)")
        return self.lower, self.upper


def is_predictions(value: Any) -> bool:
    """Whether a value holds predictions, rather than a model that makes them."""
    return isinstance(value, Predictive | Intervals | Mapping | Tensor) or hasattr(value, "__array__")


def as_predictive(predictions: Any, labels: tuple[Any, ...] | None = None, level: float = 0.9) -> Any:
    """Predictions as something that metrics are computed of.

    Args:
        predictions: a `Predictive`; class probabilities; or a mapping or frame, as above.
        labels: of the columns of `probs`, sorted as in scikit-learn; 0, 1, ... unless given. A frame names its own.
        level: of the intervals, where only those are given.

    Raises:
        DataError: NaN, probabilities outside [0, 1] or whose sum is not 1 (to 1e-3), a std that is not positive.
        ShapeError: another shape.
    """
    if isinstance(predictions, Predictive | Intervals):
        return predictions
    if isinstance(predictions, Mapping) or hasattr(predictions, "columns"):
        return _from_columns(predictions, labels, level)
    return _classes(as_tensor(predictions, "predictions"), labels)


def _from_columns(columns: Any, labels: tuple[Any, ...] | None, level: float) -> Any:
    names = [str(name) for name in (columns if isinstance(columns, Mapping) else columns.columns)]
    if "probs" in names:
        return _classes(as_tensor(columns["probs"], "probs"), labels)
    if probs := [name for name in names if name.startswith("p_")]:
        given = labels or _labels([name.removeprefix("p_") for name in probs])
        return _classes(torch.stack([as_tensor(columns[name], name) for name in probs], -1), given)
    if "mean" not in names:
        raise DataError(f"predictions need probs, p_<class> columns, or a mean; the columns are {', '.join(names)}")
    found = {
        name: as_tensor(columns[name], name).double() for name in ("mean", "std", "lower", "upper") if name in names
    }
    for name, values in found.items():
        if not bool(values.isfinite().all()):
            raise DataError(f"the predicted {name} holds NaN or infinity")
        if values.shape != found["mean"].shape:
            raise ShapeError(f"mean {list(found['mean'].shape)} and {name} {list(values.shape)} differ")
    if "std" in found:
        if not bool((found["std"] > 0).all()):
            raise DataError("the predicted std must be positive")
        mean, std = (found[name] if found[name].ndim > 1 else found[name][None] for name in ("mean", "std"))
        return GaussianMixture(Gaussian(std=1.0, scaling=Scaling.identity()), len(mean), "given", mean, std)
    if "lower" in found and "upper" in found:
        return Intervals(found["mean"], found["lower"], found["upper"], level)
    raise DataError("a mean says nothing of its spread: give std, or lower and upper, beside it")


def _labels(names: list[str]) -> tuple[Any, ...]:
    """The classes that columns are called after: numbers where all of them are whole."""
    return tuple(map(int, names)) if all(name.lstrip("-").isdigit() for name in names) else tuple(names)


def _classes(probs: Tensor, labels: tuple[Any, ...] | None) -> CategoricalPredictive:
    if probs.ndim not in (2, 3):
        raise ShapeError(
            f"probabilities are [rows, classes] or [draws, rows, classes], got {list(probs.shape)}; of two classes give "
            "both columns"
        )
    rows = probs.movedim(0, 1) if probs.ndim == 3 else probs[:, None]  # rows first: errors name them
    draws = check_probs("probs", rows).double().movedim(1, 0)
    total = draws.sum(-1)
    if bool(((total - 1).abs() > 1e-3).any()):
        worst = total.flatten()[(total - 1).abs().argmax()]
        raise DataError(f"the probabilities of a row must add up to 1; one row's add up to {worst:.4g}")
    if labels is not None and len(labels) != draws.shape[-1]:
        raise ShapeError(f"{len(labels)} labels do not go with {draws.shape[-1]} columns of probabilities")
    draws = draws / total[..., None]
    likelihood = Categorical(classes=tuple(range(draws.shape[-1])) if labels is None else tuple(labels))
    aleatoric = entropies(draws.log()).mean(0)
    return CategoricalPredictive.of(likelihood, draws.mean(0).log(), aleatoric, draws=len(draws), via="given")
