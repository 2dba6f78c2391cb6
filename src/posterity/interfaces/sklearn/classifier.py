"""`PosterityClassifier`: any method and network of this library as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

import posterity as po
from posterity.errors import DataError
from posterity.interfaces.sklearn.estimator import Estimator, missing
from posterity.interfaces.sklearn.needed import ClassifierMixin, check_classification_targets, column_or_1d
from posterity.interfaces.tables.prepared import Prepared
from posterity.interfaces.tables.words import listed, rows_where
from posterity.problem.targets import IGNORE, Label

__all__ = ["PosterityClassifier"]


class PosterityClassifier(ClassifierMixin, Estimator):
    """A classifier whose probabilities come from a posterior over a network's weights.

    `X` is an array of numbers, or a frame of pandas or polars with numbers, categories, text of few values, dates and
    missing values; what becomes of a column is said by docs/tables.md. Rows of `sample_weight` 0 are left out.

    Args:
        method: a name, as of `posterity fit --method`, or an algorithm such as po.IVON().
        network: "linear", "mlp" or "resmlp"; a torch.nn.Module, which is not changed; or a function (inputs, outputs) that
            builds one.
        prior: the std of a weight's normal prior times the root of its fan-in; or a `po.Prior`.
        data_weight: every row counts so many times.
        epochs, batch_size: by the number of rows unless given.
        validation: share of the rows, each class in its share, that pick snapshots and fit the temperature, in [0, 1).
        calibrate: fit a temperature; wherever 30 rows are held out, unless given.
        class_weight: "balanced", or a mapping from labels to weights; multiplies the log-likelihood of their rows.
        via, draws: how to predict, as of `BayesianModel.predict`.
        warm_start: a further `fit` goes on from the weights of the last one, with its columns and classes.
        random_state: of everything random in a fit: its seed is drawn from it.
        verbose: 1 tells what was decided about the columns, and shows progress.

    Attributes:
        classes_: the sorted labels. columns_: what the columns became. model_: the fitted `BayesianModel`.

    Raises (all are ValueErrors): DataError, CompatibilityError.
    """

    task: ClassVar[str] = "classification"
    classes_: NDArray[Any]

    def __init__(
        self, method: Any = "deep-ensemble", network: Any = "mlp", *, prior: Any = 2.0, data_weight: float = 1.0,
        epochs: int | None = None, batch_size: int | None = None, validation: float = 0.15,
        calibrate: bool | None = None, class_weight: Any = None, via: str | None = None, draws: int | None = None,
        warm_start: bool = False, random_state: Any = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.method = method
        self.network = network
        self.prior = prior
        self.data_weight = data_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.validation = validation
        self.calibrate = calibrate
        self.class_weight = class_weight
        self.via = via
        self.draws = draws
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to the rows of `X` with the labels `y`.

        Raises DataError: one class only, missing labels, unusable columns; CompatibilityError: parameters that do not go
        together.
        """
        previous = self._previous()
        rows = self._rows(X, _labels(y, X), sample_weight, warm=previous is not None)
        classes, codes = np.unique(rows.y, return_inverse=True)
        if previous is None:
            if len(classes) < 2:
                raise DataError(
                    f"only one class, {classes.tolist()[0]!r}, in {len(codes):,} rows: a classifier needs rows of at least "
                    "two classes"
                )
        elif strange := sorted(set(classes.tolist()) - set(previous.classes_.tolist())):
            raise DataError(
                f"warm_start goes on with the classes {listed(previous.classes_.tolist())}, and y holds {listed(strange)}: "
                "fit a new one"
            )
        else:
            classes = previous.classes_
            codes = np.searchsorted(classes, rows.y)
        names = _names(classes)
        rows = type(rows)(rows.frame, np.array(names)[codes], rows.weight)
        self._fit(rows, previous, names, _weights(self.class_weight, classes, names))
        self.classes_ = classes
        return self

    def _aimed(self, made: Prepared, previous: Any) -> tuple[Prepared, po.Likelihood]:
        return made, po.Categorical(classes=cast(tuple[Label, ...], made.target.labels))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """[rows, classes] probabilities in the order of `classes_`; each row sums to 1."""
        logs = [pred.log_probs.double() for pred in self._blocks(X)]  # type: ignore[attr-defined]
        probs = np.concatenate([each.exp().numpy() for each in logs])
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> NDArray[Any]:
        """[rows] the most probable of `classes_`."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _facts(self) -> dict[str, Any]:
        kind = self.classes_.dtype.str if self.classes_.dtype.kind != "O" else "O"
        return {"classes": self.classes_.tolist(), "dtype": kind}

    def _take(self, facts: dict[str, Any]) -> None:
        self.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["dtype"]))


def _labels(y: Any, X: Any) -> NDArray[Any]:
    """[rows] labels of one type."""
    if y is None:
        raise DataError("this classifier requires y to be passed, but the target y is None")
    found = column_or_1d(_plain(y), warn=True)
    if (gone := missing(found)).any():
        raise DataError(
            f"y contains NaN, None or NA in {rows_where(gone)}: remove these rows, a label is not filled in"
        )
    if found.dtype.kind == "f" and (bad := np.isinf(found)).any():
        raise DataError(f"y contains infinity in {rows_where(bad)}: labels are text, booleans or whole numbers")
    if found.dtype == object and all(isinstance(value, bool | np.bool_) for value in found):
        found = found.astype(bool)
    check_classification_targets(found)
    return found


def _plain(y: Any) -> Any:
    """Series and tensors as arrays."""
    return np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y) if hasattr(y, "__array__") else y


def _names(classes: NDArray[Any]) -> tuple[Any, ...]:
    """Labels as the likelihood has them, in the order of `classes`: whole numbers, booleans or text."""
    plain = [value.item() if hasattr(value, "item") else value for value in classes]
    plain = [int(value) if isinstance(value, float) and value.is_integer() else value for value in plain]
    if all(isinstance(value, int) for value in plain) and IGNORE not in plain:
        return tuple(plain)
    return tuple(map(str, plain))


def _weights(class_weight: Any, classes: NDArray[Any], names: tuple[Any, ...]) -> Any:
    """Class weights as `po.fit` takes them. Raises DataError: an unknown word or label."""
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return class_weight
    if not isinstance(class_weight, Mapping):
        raise DataError(f"class_weight must be 'balanced' or a mapping from labels to weights, got {class_weight!r}")
    known = dict(zip(classes.tolist(), names))
    if unknown := [label for label in class_weight if label not in known]:
        raise DataError(f"class_weight names {unknown[0]!r}, which is no class of y: they are {listed(known)}")
    return {known[label]: float(weight) for label, weight in class_weight.items()}
