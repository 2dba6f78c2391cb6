"""Where predictions come from: a fitted model, or an estimator around one; and what must not change between two of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from posterity.errors import CompatibilityError, DataError
from posterity.model import BayesianModel
from posterity.posterior.files import atomic_json, read_json, strict_json
from posterity.prediction.draws import default_via
from posterity.random import Random
from posterity.tree import Tree

__all__ = ["Source", "kept", "opened", "way_of"]


class Source:
    """Predictions of one model, always made in one way.

    Args:
        model: a `BayesianModel`; or a fitted `PosterityClassifier` or `PosterityRegressor`, which brings via and draws.
        via, draws: as in `BayesianModel.predict`.

    Raises:
        DataError: something else, or an estimator that was not fitted.
        CompatibilityError: `via` or `draws` beside an estimator.
    """

    def __init__(self, model: Any, via: str | None = None, draws: int | None = None) -> None:
        estimator = hasattr(model, "predictive")
        fitted = getattr(model, "model_", None) if estimator else model
        if not isinstance(fitted, BayesianModel):
            what = "it was not fitted" if estimator else "a fitted model, or an estimator of posterity, is needed"
            raise DataError(f"a {type(model).__name__} makes no predictions: {what}")
        if estimator and (via is not None or draws is not None):
            raise CompatibilityError("an estimator has its own via and draws: set them there")
        self.model, self.fitted, self.estimator = model, fitted, estimator
        self.via = getattr(model, "via", None) if estimator else via
        self.draws = getattr(model, "draws", None) if estimator else draws
        self._weights: str | None = None

    def blocks(self, x: Any) -> Iterator[Any]:
        """Predictions, block by block."""
        if self.estimator:
            yield self.model.predictive(x)
        else:
            yield from self.fitted.predict_blocks(x, via=self.via, draws=self.draws)

    def labelled(self, data: Any) -> Iterator[tuple[Any, Any]]:
        """Predictions with raw targets, block by block. Raises DataError without targets."""
        if not self.estimator:
            yield from self.fitted.predict_with_targets(data, via=self.via, draws=self.draws)
            return
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise DataError("beside an estimator the labelled rows are a pair: (X, y)")
        yield self.model.predictive(data[0]), self._targets(data[1])

    def labels(self, pred: Any) -> tuple[Any, ...]:
        """Of the classes, as the user knows them."""
        if self.estimator:
            return tuple(self.model.classes_.tolist())
        return tuple(pred.likelihood.names(pred.log_probs.shape[-1]))

    def label(self, pred: Any) -> Any:
        """[rows] the most probable class, as the user knows it: an array or a tensor."""
        return self.model.classes_[pred.index.numpy()] if self.estimator else pred.label

    def _targets(self, y: Any) -> Any:
        """The targets of an estimator as its model knows them: by position among its classes."""
        classes = getattr(self.model, "classes_", None)
        values = np.asarray(y)
        if classes is None:
            return torch.as_tensor(values.astype(np.float64))
        if strange := sorted(set(values.tolist()) - set(classes.tolist()), key=str):
            raise DataError(f"y holds labels that the estimator does not know: {', '.join(map(repr, strange[:5]))}")
        names = self.fitted.problem.likelihood.names(len(classes))  # type: ignore[attr-defined]
        return np.array(names)[np.searchsorted(classes, values)]

    def fingerprint(self) -> dict[str, Any]:
        """What predictions depend on beside the inputs, in JSON types."""
        via = self.via or default_via(self.fitted.posterior)
        found: dict[str, Any] = {
            "weights": self._digest(),
            "temperature": self.fitted.temperature,
            "via": via,
            "draws": self.draws,
            "seed": int(self.fitted.settings.get("seed", 0)),
        }
        return {**found, "propagation": self.fitted.propagation.to_json()} if via == "propagation" else found

    def check(self, before: Mapping[str, Any], what: str) -> None:
        """Raise CompatibilityError, naming what differs, unless predictions are made as they were `before`."""
        now = self.fingerprint()
        for name in sorted(now.keys() | before.keys()):
            old, new = before.get(name), now.get(name)
            if old == new:
                continue
            shown = "" if name in ("weights", "propagation") else f" (it was {old!r} and is {new!r})"
            raise CompatibilityError(
                f"the {name} of the model changed since {what} was calibrated{shown}: what was found then says nothing of "
                "its predictions now, calibrate again"
            )

    def _digest(self) -> str:
        """Of weights, buffers and frozen tensors; made once, as a posterior does not change."""
        if self._weights is None:
            posterior = self.fitted.posterior
            tensors: Tree = posterior.tensors() or next(iter(posterior.draws(1, Random(0))))  # streamed: the first draw
            made = hashlib.sha256()
            for tree in (tensors, self.fitted.problem.network.constants):
                for name, value in sorted(tree.items()):
                    made.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                    made.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
            self._weights = made.hexdigest()[:16]
        return self._weights


def kept(record: Mapping[str, Any], path: str | os.PathLike[str] | None, null: bool = False) -> dict[str, Any]:
    """A record in JSON types; with a path also written there, whole or not at all.

    Args:
        null: NaN is null; as of `strict_json`.
    """
    found = strict_json(record, null=null)
    if path is not None:
        atomic_json(path, found)
    return found


def opened(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """What a message calls a record, and the record, read where it is a path."""
    return ("this record", source) if isinstance(source, Mapping) else (os.fspath(source), read_json(source))


def way_of(model: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """via and draws as they were; an estimator has its own."""
    return {} if hasattr(model, "predictive") else {"via": before["via"], "draws": before["draws"]}
