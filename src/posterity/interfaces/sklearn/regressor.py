"""`PosterityRegressor`: any method and network of this library as a scikit-learn regressor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.sklearn.estimator import Estimator, missing
from posterity.interfaces.sklearn.needed import RegressorMixin, column_or_1d
from posterity.interfaces.sklearn.rows import index_of
from posterity.interfaces.tables.prepared import Prepared
from posterity.interfaces.tables.words import pandas, rows_where
from posterity.interfaces.transformed import TransformedMixture
from posterity.interfaces.transforms import TRANSFORMS, transform_from_json
from posterity.prediction.predictive import GaussianMixture, Predictive
from posterity.problem.likelihoods import likelihood_from

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["PosterityRegressor"]

_LIKELIHOODS = ("gaussian", "heteroscedastic", "student-t", "poisson")


class PosterityRegressor(RegressorMixin, Estimator):
    """A regressor that predicts a distribution, in the units of `y`, from a posterior over a network's weights.

    `X` is an array of numbers, or a frame of pandas or polars with numbers, categories, text of few values, dates and
    missing values; what becomes of a column is said by docs/tables.md. Rows of `sample_weight` 0 are left out. Parameters
    that are not named here are those of `PosterityClassifier`.

    Args:
        likelihood: "gaussian" (one noise std, learned), "heteroscedastic" (a std of each row), "student-t" (forgives
            outliers) or "poisson" (counts).
        target_transform: None; "log" for targets above 0; or "yeo-johnson" for skewed ones. What is predicted is mapped back
            exactly. With the first two likelihoods.

    Attributes:
        transform_: the transform with what it learned, or None. columns_: what the columns became. model_: the fitted
            `BayesianModel`, of the transformed target.

    Raises (all are ValueErrors): DataError, CompatibilityError.
    """

    task: ClassVar[str] = "regression"

    def __init__(
        self, method: Any = "deep-ensemble", network: Any = "mlp", *, likelihood: str = "gaussian",
        target_transform: str | None = None, prior: Any = 2.0, data_weight: float = 1.0, epochs: int | None = None,
        batch_size: int | None = None, validation: float = 0.15, calibrate: bool | None = None, via: str | None = None,
        draws: int | None = None, warm_start: bool = False, random_state: Any = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.method = method
        self.network = network
        self.likelihood = likelihood
        self.target_transform = target_transform
        self.prior = prior
        self.data_weight = data_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation = validation
        self.calibrate = calibrate
        self.via = via
        self.draws = draws
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to the rows of `X` with the numbers `y`.

        Raises DataError: missing or infinite targets, targets that cannot be transformed, unusable columns;
        CompatibilityError: parameters that do not go together.
        """
        if self.likelihood not in _LIKELIHOODS:
            raise CompatibilityError(f"likelihood must be one of {', '.join(_LIKELIHOODS)}, got {self.likelihood!r}")
        if self.target_transform is not None:
            if self.target_transform not in TRANSFORMS:
                known = ", ".join(map(repr, TRANSFORMS))
                raise CompatibilityError(
                    f"target_transform must be None or one of {known}, got {self.target_transform!r}"
                )
            if self.likelihood not in _LIKELIHOODS[:2]:
                raise CompatibilityError(
                    f"target_transform goes with {' and '.join(_LIKELIHOODS[:2])}: transformed back, the moments of "
                    f"{self.likelihood} may not exist"
                )
        previous = self._previous()
        self._fit(self._rows(X, _numbers(y), sample_weight, warm=previous is not None), previous)
        return self

    def _aimed(self, made: Prepared, previous: Any) -> tuple[Prepared, po.Likelihood]:
        kind = TRANSFORMS.get(self.target_transform or "")
        if previous is not None and type(previous.transform_) is not (kind or type(None)):
            raise CompatibilityError("warm_start goes on with the target_transform of the last fit: leave it as it was")
        transform = None
        if kind is not None:
            transform = kind.learn(made.y[made.parts.train]) if previous is None else previous.transform_
            transform.check(made.y)
            made = dataclasses.replace(made, y=transform.forward(torch.from_numpy(made.y)).numpy())
        self.transform_ = transform
        if previous is not None and previous.model_.problem.likelihood.name == self.likelihood:
            return made, previous.model_.problem.likelihood  # the network's outputs keep their units
        return made, likelihood_from(self.likelihood)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """[rows] means; with `return_std`, also [rows] stds of the predicted distribution, noise included."""
        found = [(pred.mean, pred.std) if return_std else (pred.mean,) for pred in self._blocks(X)]  # type: ignore[attr-defined]
        mean, *std = (np.concatenate([part.reshape(-1).double().numpy() for part in parts]) for parts in zip(*found))
        return (mean, *std) if return_std else mean

    def predict_interval(self, X: Any, levels: float | Sequence[float] = (0.5, 0.9)) -> DataFrame:
        """A frame with a row per row of `X`, in units of `y`: mean, std, and lower_<level>, upper_<level> of each level.

        The intervals are central: P(Y < lower) = P(Y > upper) = (1 - level) / 2. The index is that of a pandas `X`.

        Raises ValueError: a level outside (0, 1).
        """
        levels = [float(level) for level in np.atleast_1d(levels)]
        if bad := [level for level in levels if not 0 < level < 1]:
            raise DataError(f"levels must lie in (0, 1), got {bad[0]:g}: fractions, not percent")
        names = ["mean", "std", *(f"{end}_{level:g}" for level in levels for end in ("lower", "upper"))]
        blocks = []
        for pred in self._blocks(X):
            ends = [end for level in levels for end in pred.interval(level)]  # type: ignore[attr-defined]
            values = [pred.mean, pred.std, *ends]  # type: ignore[attr-defined]
            blocks.append(np.stack([value.reshape(-1).double().numpy() for value in values], 1))
        return pandas().DataFrame(np.concatenate(blocks), columns=names, index=index_of(X))

    def _blocks(self, X: Any) -> Iterator[Predictive]:
        blocks = super()._blocks(X)
        if (transform := self.transform_) is None:
            return blocks
        return (TransformedMixture.of(pred, transform) for pred in blocks if isinstance(pred, GaussianMixture))

    def _facts(self) -> dict[str, Any]:
        return {"transform": None if self.transform_ is None else self.transform_.to_json()}

    def _take(self, facts: dict[str, Any]) -> None:
        self.transform_ = transform_from_json(facts["transform"])


def _numbers(y: Any) -> NDArray[np.float64]:
    """[rows] finite numbers."""
    if y is None:
        raise DataError("this regressor requires y to be passed, but the target y is None")
    found = column_or_1d(np.asarray(y) if hasattr(y, "__array__") else y, warn=True)
    if np.iscomplexobj(found):
        raise DataError("Complex data not supported: y holds complex numbers")
    if (gone := missing(found)).any():
        raise DataError(f"y contains NaN in {rows_where(gone)}: remove these rows, a target is not filled in")
    try:
        numbers = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"y holds values that are no numbers ({error}): for classes use PosterityClassifier") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"y contains infinity in {rows_where(~np.isfinite(numbers))}: remove these rows")
    return numbers
