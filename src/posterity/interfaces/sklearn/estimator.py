"""What the classifier and the regressor share: parameters, encoded rows, predictions by blocks, the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

import posterity as po
from posterity.errors import DataError
from posterity.interfaces.settings import Settings
from posterity.interfaces.sklearn import folder as folders
from posterity.interfaces.sklearn.needed import (
    BaseEstimator,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
)
from posterity.interfaces.sklearn.rows import encoded, frame_of
from posterity.interfaces.sklearn.training import Rows, method_of, module_of, prepared, trained
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.prepared import Prepared
from posterity.interfaces.tables.words import pandas
from posterity.prediction.predictive import Predictive, concat

__all__ = ["Estimator", "missing"]


class Estimator(BaseEstimator):
    """Parameters are attributes of their names; what a fit found ends in `_`."""

    task: ClassVar[str]

    # --- fit ---------------------------------------------------------------------------------------------------------

    def _rows(self, X: Any, y: Any, sample_weight: Any, warm: bool) -> Rows:
        """Checked rows, those of weight 0 left out. `y` is [rows] already."""
        frame = frame_of(self, X, reset=not warm, least=2)
        check_consistent_length(frame, y)
        if sample_weight is None:
            return Rows(frame, y, None)
        weight = check_sample_weight(sample_weight, frame, dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weight)
        if not len(kept):
            raise DataError("sample_weight must hold a weight above zero: all of them are zero")
        if len(kept) == len(weight):
            return Rows(frame, y, weight)
        if len(kept) < 2:
            raise DataError("all rows but one have the sample_weight 0: a fit needs at least 2 rows")
        return Rows(frame.iloc[kept].reset_index(drop=True), y[kept], weight[kept])

    def _fit(
        self, rows: Rows, previous: Estimator | None, labels: tuple[Any, ...] | None = None, class_weight: Any = None
    ) -> None:
        """Learn the columns and fit, from where `previous` stands if it is given."""
        if not isinstance(self.validation, int | float) or not 0 <= self.validation < 1:
            raise DataError(f"validation is the share of the rows to hold out, in [0, 1), got {self.validation!r}")
        settings = Settings(
            likelihood=getattr(self, "likelihood", None), validation=self.validation, data_weight=self.data_weight,
            prior=self.prior if isinstance(self.prior, int | float) else 1.0, epochs=self.epochs,
            batch_size=self.batch_size, calibrate=self.calibrate,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )  # fmt: skip
        columns: Columns | None = getattr(previous, "columns_", None)
        made = prepared(rows, self.task, labels, settings, columns)
        made, likelihood = self._aimed(made, previous)
        self.model_ = trained(
            made, rows.weight, self.network, method_of(self.method), likelihood, self.prior, class_weight=class_weight,
            start=getattr(previous, "model_", None), via=self.via, draws=self.draws, verbose=self.verbose,
        )  # fmt: skip
        self.columns_ = made.columns

    def _aimed(self, made: Prepared, previous: Any) -> tuple[Prepared, po.Likelihood]:
        """The targets as the network is to see them, and their likelihood."""
        raise NotImplementedError

    def _previous(self) -> Self | None:
        """The estimator itself where a fit goes on from the last one."""
        return self if self.warm_start and hasattr(self, "model_") else None

    # --- predict -----------------------------------------------------------------------------------------------------

    def predictive(self, X: Any) -> Predictive:
        """What is said about each row: a distribution over the target, with where its spread comes from.

        It has `entropy`, `epistemic`, `aleatoric` of classes, `mean`, `std`, `quantile`, `cdf`, `log_prob` of numbers, and
        goes into `po.evaluate(estimator.predictive(X), y)`.
        """
        return concat(list(self._blocks(X)))

    def about(self, X: Any) -> Callable[[int], str]:
        """What a row of `X` looks like, by its number: for `show=` of `po.evaluate`."""
        check_is_fitted(self)
        frame = frame_of(self, X, reset=False)
        return lambda row: self.columns_.about(frame, row)

    def _blocks(self, X: Any) -> Iterator[Predictive]:
        check_is_fitted(self)
        inputs = encoded(self.columns_, frame_of(self, X, reset=False))
        return self.model_.predict_blocks(inputs, via=self.via, draws=self.draws)

    # --- keep --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything to a folder of tensors and JSON. A module of your own is code: only its tensors are kept.

        Raises StorageError: as `BayesianModel.save`.
        """
        check_is_fitted(self)
        folders.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], **params: Any) -> Self:
        """What `save` wrote; no code in the folder is run.

        Args:
            params: parameters that a folder cannot hold, such as network=MyNet() or method=MyMethod(), and any others.

        Raises:
            StorageError: nothing there, corrupt, newer, or of another estimator.
            CompatibilityError: a parameter that is needed and not given, or another network.
        """
        return folders.load(cls, folder, params)

    def _module(self) -> nn.Module:
        """A network of the fitted one's kind."""
        outputs = 1 + (getattr(self, "likelihood", None) == "heteroscedastic")
        outputs = len(self.classes_) if self.task == "classification" else outputs
        found = module_of(self.network, method_of(self.method), self.columns_.width, outputs)
        if isinstance(found, nn.Module):
            return found
        with po.Random(0).fold("load").forked():
            return found()

    def _facts(self) -> dict[str, Any]:
        """What a fit found beside the model and the columns, as JSON."""
        raise NotImplementedError

    def _take(self, facts: dict[str, Any]) -> None:
        """Take what `_facts` gave."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if isinstance(model := state.get("model_"), po.BayesianModel):
            state["model_"] = folders.packed(model)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(packed := self.__dict__.get("model_"), dict):
            self.model_ = folders.unpacked(packed, self._module())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # missing values are filled in and flagged
        return tags


def missing(y: NDArray[Any]) -> NDArray[np.bool_]:
    """[rows] where a target is NaN, None, NaT or NA."""
    return np.asarray(pandas().isna(y), dtype=bool)
